"""An engine and its text side in the caller's process: requests in, text deltas out. `LLM` and the commands use it."""

import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from octavo.api.outputs import RequestCollector, RequestOutput
from octavo.api.prompts import PromptType, text_of
from octavo.api.receipts import open_offline
from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine, locate_model
from octavo.engine.frontend import build_frontend
from octavo.engine.meter import EngineMeter
from octavo.engine.profile import EngineProfile, profile_directory
from octavo.errors import EngineDeadError
from octavo.flow.beam_search_params import BeamSearchParams
from octavo.flow.delta import TextDelta
from octavo.flow.receipt import ReceiptFields
from octavo.flow.request import GenerationRequest
from octavo.flow.sampling_params import SamplingParams
from octavo.telemetry.metrics import MetricsStore, NoMetrics


class OfflineEngine:
    """Everything needed to generate, in one thread at a time of one process. One owner, or several that take `turn`s.

    Raises:
        UserError: the configuration, the model or the machine does not fit.
    """

    def __init__(self, config: EngineConfig) -> None:
        source = locate_model(config)
        self.config = config
        self.frontend = build_frontend(config, source)
        self.engine = build_engine(config, source, self.frontend.grammars)
        self.inputs = self.frontend.inputs(self.engine.info, shorten_output=True)
        self.metrics = MetricsStore(self.frontend.name) if config.telemetry.enable_metrics else None
        self._outputs = self.frontend.outputs()
        self._meter = EngineMeter(self.metrics or NoMetrics())
        self.profile = EngineProfile()  # of steps, in the thread that starts it
        self._lock = threading.RLock()
        self._ids = count()
        self.given_ids: set[str] = set()  # of live requests whose caller has chosen the id
        self.aside: list[TextDelta] = []  # of requests that `stream` was not asked for; whoever steps takes them
        self._process = os.getpid()
        self._closed = False

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """Alone among the threads that share this engine; whoever runs or changes it holds a turn meanwhile.

        Raises:
            EngineDeadError: it belongs to the process that this one was forked from.
        """
        if os.getpid() != self._process:
            raise EngineDeadError(
                "the threads of this engine stayed in the process that this one was forked from: "
                "make it in the process that uses it, or start that one with multiprocessing's 'spawn'"
            )
        with self._lock:
            yield

    def next_id(self) -> str:
        """An id that no request has had."""
        return next(name for number in self._ids if (name := str(number)) not in self.given_ids)

    def prepare(
        self,
        prompt: PromptType,
        params: SamplingParams | None,
        priority: int = 0,
        add_special_tokens: bool = True,
        request_id: str | None = None,
    ) -> GenerationRequest:
        """A request for `stream`.

        Raises:
            InvalidRequestError, UnsupportedError: what is wrong with it.
        """
        return self.inputs.prepare(
            prompt,
            params,
            request_id if request_id is not None else self.next_id(),
            arrival=time.monotonic(),
            priority=priority,
            add_special_tokens=add_special_tokens,
        )

    def prepare_beams(self, prompt: PromptType, params: BeamSearchParams) -> GenerationRequest:
        """A beam search for `stream`; its answers bring the log-probabilities of twice as many tokens as beams.

        Raises:
            InvalidRequestError: what is wrong with it.
        """
        request = self.inputs.prepare_beams(prompt, params, self.next_id(), arrival=time.monotonic())
        return replace(request, sampling=replace(request.sampling, logprobs=2 * params.beam_width))

    def text_of_prompt(self, output: RequestOutput) -> str:
        """The prompt's text, decoded when it was given as token ids."""
        if output.prompt is not None or self.frontend.tokenizer is None:
            return output.prompt or ""
        return self.frontend.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=True)

    def collector(
        self,
        request: GenerationRequest,
        prompt: PromptType,
        params: SamplingParams | None = None,
        before: ReceiptFields | None = None,
    ) -> RequestCollector:
        """What grows a RequestOutput of this request's deltas.

        Args:
            params: the request's; they may ask for a receipt.
            before: of the answer that is to be given again.
        """
        receipt = None
        if params is not None and params.deterministic:
            receipt = open_offline(request, params, self.fingerprint(), before)
        return RequestCollector(request, text_of(prompt), self.frontend.token_text, receipt)

    def fingerprint(self) -> dict[str, str]:
        """Of all that decides the bits of answers."""
        return self.frontend.answers_fingerprint(self.engine.info)

    def stream(self, requests: Iterable[GenerationRequest]) -> Iterator[list[TextDelta]]:
        """Run requests; each item holds the deltas of one or more steps.

        Closing the iterator early, or an exception such as KeyboardInterrupt, cancels what is unfinished.

        Raises:
            EngineDeadError: the engine was closed.
        """
        waiting = deque(requests)
        live: dict[str, int] = {}  # streams without an end, by request
        # Requests beyond this many wait here, so that the engine's own limit on waiting ones never refuses any.
        most = max(1, min(self.config.scheduling.max_waiting, 4 * self.engine.info.max_num_seqs))
        try:
            while waiting or live:
                while waiting and len(live) < most:
                    request = waiting.popleft()
                    self.submit(request)
                    live[request.id] = request.n
                deltas = self.step()
                self.aside += [delta for delta in deltas if delta.request_id not in live]
                deltas = [delta for delta in deltas if delta.request_id in live]
                _settle(deltas, live)
                if deltas:
                    yield deltas
        finally:
            self.cancel(sorted(live))

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request to the engine; `step` brings what comes of it.

        Raises:
            EngineDeadError: the engine was closed.
            OverloadedError: too many wait.
        """
        if self._closed:
            raise EngineDeadError("this engine was closed")
        self.engine.client.submit(request)
        self._outputs.add(request)
        self._meter.admitted(request)

    def step(self) -> list[TextDelta]:
        """Run until something was generated, or nothing is left to do."""
        client, before = self.engine.client, self.engine.client.stats() if self.profile.running else None
        self.profile.begin_turn()
        steps = client.receive()
        if before is not None:
            self.profile.end_turn(before, client.stats())
        self._meter.stepped(steps, client.stats())
        deltas = self._outputs.push(steps)
        if cancels := self._outputs.take_cancels():
            client.cancel(cancels)
        if ends := self._outputs.take_ends():
            client.cancel_streams(ends)
        for delta in deltas:
            if delta.finish_reason is not None:
                self._meter.delivered(delta)
        return deltas

    def cancel(self, request_ids: Sequence[str]) -> None:
        """End requests and forget them: every block returns, nothing more comes for them."""
        for request_id in request_ids:
            self._outputs.drop(request_id)
            self._meter.dropped(request_id)
        if request_ids:
            self.engine.client.cancel(request_ids)

    def start_profile(self, prefix: str | None = None) -> None:
        """Record what steps do; see `EngineProfile`.

        Raises:
            InvalidRequestError, ConfigError: as there.
        """
        with self.turn():
            self.profile.start(profile_directory(self.config), prefix or "octavo")

    def stop_profile(self) -> list[str]:
        """End that: the files that were written.

        Raises:
            InvalidRequestError, ConfigError: as in `EngineProfile`.
        """
        with self.turn():
            return list(self.profile.stop()[0])

    def close(self) -> None:
        """Release threads; the engine cannot be used any more. May be called twice."""
        if os.getpid() != self._process:
            return  # its threads are not here
        with self._lock:
            if not self._closed:
                self._closed = True
                self.engine.close()


def _settle(deltas: Sequence[TextDelta], live: dict[str, int]) -> None:
    """Take the streams that have ended out of `live`."""
    for delta in deltas:
        if delta.finish_reason is not None:
            live[delta.request_id] -= 1
            if not live[delta.request_id]:
                del live[delta.request_id]
