"""vLLM's `LLMEngine`: add requests, call `step` until nothing is unfinished."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from octavo.api.engine_args import EngineArgs, read_options
from octavo.api.offline import OfflineEngine
from octavo.api.outputs import RequestCollector, RequestOutput, delta_output
from octavo.api.pooled import Tokenizing, answer_of
from octavo.api.pooling_outputs import PoolingOutput, PoolingRequestOutput
from octavo.api.prompts import PromptType
from octavo.api.receipts import with_seed
from octavo.api.tokenizer import ApiTokenizer, tokenizer_of
from octavo.api.views import MISSING, View, model_config, refuse, supported_tasks, vllm_config
from octavo.engine.build import Engine
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.execution.sleep import PARTS, Part
from octavo.flow.delta import TextDelta
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams
from octavo.inputs.pooling import PER_TOKEN
from octavo.telemetry.metrics import Reading

__all__ = ["EngineArgs", "LLMEngine"]

Output = RequestOutput | PoolingRequestOutput[PoolingOutput]


class LLMEngine:
    """An engine in this process, stepped by its owner. One owner.

    Raises:
        UserError: an option, the model or the machine does not fit.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._begin(OfflineEngine(read_options(model, options)))

    def _begin(self, offline: OfflineEngine) -> None:
        self._offline = offline
        self._collectors: dict[str, tuple[RequestCollector, RequestOutputKind]] = {}
        self._pooled: dict[str, tuple[GenerationRequest, bool]] = {}  # and whether every token has an answer

    @classmethod
    def over(cls, offline: OfflineEngine) -> "LLMEngine":
        """The engine that an `LLM` has."""
        engine = cls.__new__(cls)
        engine._begin(offline)
        return engine

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, usage_context: object = None, **unsupported: Any) -> "LLMEngine":
        """As the constructor."""
        del usage_context  # nothing is reported to anybody
        refuse_options(**unsupported)
        return cls(**engine_args.options)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams | None = None,
        arrival_time: float | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: object = None,
        priority: int = 0,
    ) -> str:
        """Queue a prompt; gives its id back.

        Args:
            arrival_time: when it came, as `time.time()` tells (None: now).
            tokenization_kwargs: truncate_prompt_tokens, truncation_side, add_special_tokens.

        Raises:
            InvalidRequestError: the prompt or a parameter is wrong, or the id is in use.
        """
        refuse_options(lora_request=lora_request, trace_headers=trace_headers)
        if request_id in self._collectors or request_id in self._pooled:
            raise InvalidRequestError(f"request id {request_id!r} is in use", "request_id")
        chosen: SamplingParams | None = None
        per_token: bool | None = None  # of a pooled request
        if isinstance(params, PoolingParams):
            request, per_token = self._prepare_pooled(request_id, prompt, params, tokenization_kwargs)
        else:
            chosen, special = Tokenizing(None, tokenization_kwargs, None).of_sampling(with_seed(params))
            request = self._offline.prepare(prompt, chosen, priority, special, request_id)
        if arrival_time is not None:
            request = replace(request, arrival=time.monotonic() - max(0.0, time.time() - arrival_time))
        with self._offline.turn():
            self._offline.submit(request)
        self._offline.given_ids.add(request_id)
        if per_token is not None:
            self._pooled[request_id] = request, per_token
        else:
            kind = chosen.output_kind if chosen is not None else RequestOutputKind.CUMULATIVE
            self._collectors[request_id] = self._offline.collector(request, prompt, chosen), kind
        return request_id

    def _prepare_pooled(
        self, request_id: str, prompt: PromptType, params: PoolingParams, kwargs: Mapping[str, Any] | None
    ) -> tuple[GenerationRequest, bool]:
        processor = self._offline.frontend.pooling(self._offline.engine.info)
        options = Tokenizing(None, kwargs, None)
        task = processor.task_of(params.task)
        request = processor.prepare(prompt, options.applied(params), request_id, task, options.framing)
        return request, task in PER_TOKEN

    def abort_request(self, request_id: str | Sequence[str]) -> None:
        """End requests; nothing comes for them any more. Unknown ids do nothing."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        known = [name for name in ids if name in self._collectors or name in self._pooled]
        for name in known:
            self._forget(name)
        with self._offline.turn():
            self._offline.cancel(known)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._collectors or self._pooled)

    def get_num_unfinished_requests(self) -> int:
        """Requests without an end."""
        return len(self._collectors) + len(self._pooled)

    def step(self) -> list[Output]:
        """Run one step; an output of every request that it added to."""
        with self._offline.turn():
            deltas, self._offline.aside = self._offline.aside, []
            deltas += self._offline.step()
        touched: dict[str, Output] = {}
        for delta in deltas:
            if delta.request_id in self._collectors:
                self._grow(delta, touched)
            elif delta.request_id in self._pooled:
                request, per_token = self._pooled[delta.request_id]
                self._forget(delta.request_id)
                answer = answer_of(delta, request.prompt_token_ids)
                touched[delta.request_id] = answer.as_pooling(per_token)
        return list(touched.values())

    def _grow(self, delta: TextDelta, touched: dict[str, Output]) -> None:
        collector, kind = self._collectors[delta.request_id]
        collector.push(delta)
        if kind is RequestOutputKind.DELTA:
            touched[f"{delta.request_id} {delta.index}"] = delta_output(collector, delta)
        elif kind is RequestOutputKind.CUMULATIVE or collector.output.finished:
            touched[delta.request_id] = collector.snapshot()
        if collector.output.finished:
            self._forget(delta.request_id)

    def _forget(self, name: str) -> None:
        self._collectors.pop(name, None)
        self._pooled.pop(name, None)
        self._offline.given_ids.discard(name)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """What was built; for looking at, its interface may change."""
        return self._offline.engine

    @property
    def vllm_config(self) -> View:
        """What the engine is, under vLLM's names."""
        return vllm_config(self._offline.frontend, self.engine)

    @property
    def model_config(self) -> View:
        """The model, under vLLM's names."""
        return model_config(self._offline.frontend, self.engine)

    @property
    def tokenizer(self) -> ApiTokenizer:
        """As `get_tokenizer`."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> ApiTokenizer:
        """The model's tokenizer.

        Raises:
            UnsupportedError: skip_tokenizer_init.
        """
        return tokenizer_of(self._offline.frontend)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked: "generate", or tasks of pooling."""
        return supported_tasks(self._offline.frontend, self.engine.info)

    def get_metrics(self) -> list[Reading]:
        """Counters, gauges and histograms since the start, under Octavo's names and vLLM's.

        Raises:
            UnsupportedError: enable_metrics=False.
        """
        if self._offline.metrics is None:
            raise UnsupportedError("metrics are off: construct it with enable_metrics=True")
        return self._offline.metrics.readings()

    # --- managing ----------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes, those of tiers too. What runs goes on, but shares nothing from before."""
        del reset_running_requests, reset_connector
        with self._offline.turn():
            return self.engine.client.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """There are no media to forget."""

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release the KV cache's memory, and at level 2 the weights' as well; `wake_up` comes before the next prompt.

        Args:
            mode: as in vLLM; nothing can run while this is called, so it makes no difference.

        Raises:
            InvalidRequestError: there is no such level.
            UnsupportedError: construct it with enable_sleep_mode=True, on the native backend.
        """
        del mode
        with self._offline.turn():
            self.engine.client.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring memory back: "weights", "kv_cache", or both without `tags`.

        Raises:
            InvalidRequestError: an unknown tag.
        """
        parts: list[Part] = [part for part in PARTS if tags is None or part in tags]
        if len(parts) < len(set(tags or parts)):
            raise InvalidRequestError(f"tags may be {', '.join(PARTS)}", "tags")
        with self._offline.turn():
            self.engine.client.wake(parts)

    def is_sleeping(self) -> bool:
        """Something of it sleeps."""
        return self.engine.client.stats().asleep > 0

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what steps do until `stop_profile`; see docs/operations/server.md.

        Raises:
            InvalidRequestError: it records already, or another profiler watches this thread.
            ConfigError: `profiler_dir` cannot be written to.
        """
        self._offline.start_profile(profile_prefix)

    def stop_profile(self) -> list[str]:
        """End that; the files that were written.

        Raises:
            InvalidRequestError: nothing is being recorded.
            ConfigError: they cannot be written.
        """
        return self._offline.stop_profile()

    def close(self) -> None:
        """Release threads and memory. May be called twice."""
        self._offline.close()

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`; there is no step under way to wait for."""
        del timeout
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        refuse("LLMEngine", MISSING, name)


def refuse_options(**options: object) -> None:
    """Refuse arguments of vLLM's methods that ask for something missing; None, false and empty ones ask for nothing.

    Raises:
        UnsupportedError: names the first that does.
    """
    for name, value in options.items():
        if value not in (None, False, {}, [], ()):
            raise UnsupportedError(f"{name} is not supported yet; leave it out")
