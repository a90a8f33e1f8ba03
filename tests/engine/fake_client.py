"""Stand-ins for what the frontend sees: a tokenizer without files, an engine on rails."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.engine.client import EngineInfo, EngineStats, Pause
from octavo.errors import EngineDeadError, OctavoError
from octavo.execution.sleep import Part
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, SequenceTimes, TokenLogprobs


class ByteTokenizer:
    """A token for every byte, a beginning and an end. Implements `octavo.text.tokenizer.Tokenizer`."""

    bos_token_id: int | None = 256
    eos_token_ids: tuple[int, ...] = (257,)
    vocab_size = 258
    special_ids = frozenset({256, 257})
    added_ids = special_ids
    special_tokens: Mapping[str, str] = {"bos_token": "<s>", "eos_token": "</s>"}
    strips_first_space = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """UTF-8 bytes, after the beginning."""
        return [256] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; what is not UTF-8 becomes U+FFFD."""
        special = {} if skip_special_tokens else {256: b"<s>", 257: b"</s>"}
        parts = [bytes([token]) if token < 256 else special.get(token, b"") for token in ids]
        return b"".join(parts).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte of a token; none for a special one."""
        return bytes([token_id]) if token_id < 256 else b""

    def token(self, token_id: int) -> str | None:
        """A token's spelling."""
        if token_id < 256:
            return chr(token_id)
        return {256: "<s>", 257: "</s>"}.get(token_id)

    def id_of(self, token: str) -> int | None:
        """The id of a spelling."""
        if len(token) == 1 and ord(token) < 256:
            return ord(token)
        return {"<s>": 256, "</s>": 257}.get(token)

    def longest_token(self) -> int:
        """Characters of the longest token."""
        return len("</s>")


# --- engine ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a stream of a FakeEngineClient says, a token at a time, and how it ends (None: never, until cancelled)."""

    token_ids: Sequence[int]
    finish_reason: FinishReason | None = FinishReason.STOP
    stop_token_id: int | None = None
    error: str | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0


Script = Callable[[GenerationRequest, int], Answer]


def echo(asked: GenerationRequest, index: int) -> Answer:
    """Repeat the prompt's tokens, as many as were asked for."""
    del index
    tokens = asked.prompt_token_ids[: asked.stopping.max_tokens]
    ended = len(tokens) < asked.stopping.max_tokens
    return Answer(tokens, FinishReason.STOP if ended else FinishReason.LENGTH)


@dataclass
class _Stream:
    request: GenerationRequest
    index: int
    answer: Answer
    left: deque[int]
    said: int = 0


@dataclass
class FakeEngineClient:
    """An `EngineClient` that follows a script. Every `receive` gives each live stream one token.

    `refuse`: what the next submits raise. `dead`: every call raises EngineDeadError.
    """

    script: Script = echo
    info: EngineInfo = field(default_factory=lambda: EngineInfo(1024, 64, 16, 8, 256, 258, 0.1))
    refuse: OctavoError | None = None
    dead: bool = False
    closed: bool = False
    resets: int = 0
    asleep: int = 0
    paused: bool = False
    submitted: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _streams: list[_Stream] = field(default_factory=list)
    _ready: list[SequenceOutput] = field(default_factory=list)
    _prompt_tokens: int = 0
    _generated: int = 0
    _steps: int = 0

    def submit(self, request: GenerationRequest) -> None:
        """Start n streams."""
        self._check()
        if self.refuse is not None:
            raise self.refuse
        self.submitted.append(request)
        self._prompt_tokens += len(request.prompt_token_ids)
        for index in range(request.n):
            answer = self.script(request, index)
            self._streams.append(_Stream(request, index, answer, deque(answer.token_ids)))

    def cancel(self, request_ids: Sequence[str]) -> None:
        """End live streams with ABORT."""
        self._check()
        self.cancelled.extend(request_ids)
        ended = [stream for stream in self._streams if stream.request.id in request_ids]
        self._streams = [stream for stream in self._streams if stream not in ended]
        self._ready += [self._output(stream, (), FinishReason.ABORT) for stream in ended]

    def cancel_streams(self, streams: Sequence[tuple[str, int]]) -> None:
        """End single ones."""
        self._check()
        ended = [stream for stream in self._streams if (stream.request.id, stream.index) in streams]
        self._streams = [stream for stream in self._streams if stream not in ended]
        self._ready += [self._output(stream, (), FinishReason.ABORT) for stream in ended]

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]:
        """One step."""
        del timeout
        self._check()
        outputs, self._ready = self._ready, []
        self._steps += bool(self._streams)
        for stream in list(self._streams):
            token = stream.left.popleft() if stream.left else None
            ends = not stream.left and stream.answer.finish_reason is not None
            if token is None and not ends:
                continue  # has said everything, waits to be cancelled
            if ends:
                self._streams.remove(stream)
            tokens = () if token is None else (token,)
            self._generated += len(tokens)
            outputs.append(self._output(stream, tokens, stream.answer.finish_reason if ends else None))
        return outputs

    def stats(self) -> EngineStats:
        """Counts of the script so far."""
        self._check()
        return EngineStats(
            running=len(self._streams),
            used_blocks=len(self._streams),
            num_blocks=self.info.num_blocks,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated,
            steps=self._steps,
            step_seconds=self._steps * 0.001,
            under_way=len(self._streams),
            paused=self.paused,
            asleep=self.asleep,
        )

    def pause(self, how: Pause = "wait") -> None:
        """Go on with what there is, or end it."""
        self._check()
        self.paused = True
        if how == "abort":
            self.cancel([stream.request.id for stream in self._streams])

    def resume(self) -> None:
        """Go on."""
        self._check()
        self.paused = False

    def sleep(self, level: int = 1) -> None:
        """Note the level."""
        self._check()
        self.asleep = level

    def wake(self, parts: Sequence[Part] | None = None) -> None:
        """Wake as a whole."""
        del parts
        self._check()
        self.asleep = 0

    def reset_prefix_cache(self) -> bool:
        """Count the calls."""
        self._check()
        self.resets += 1
        return True

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _check(self) -> None:
        if self.dead:
            raise EngineDeadError("the fake engine is dead")

    def _output(self, stream: _Stream, tokens: tuple[int, ...], reason: FinishReason | None) -> SequenceOutput:
        answer, first = stream.answer, stream.said == 0
        logprobs = tuple(answer.logprobs[stream.said : stream.said + len(tokens)])
        stream.said += len(tokens)
        own_end = reason is not None and reason is not FinishReason.ABORT
        return SequenceOutput(
            stream.request.id,
            stream.index,
            tokens,
            logprobs,
            answer.prompt_logprobs if first else (),
            reason,
            answer.stop_token_id if own_end else None,
            answer.num_cached_tokens,
            SequenceTimes(stream.request.arrival, stream.request.arrival, 0.0, 0.0) if reason else None,
            answer.error if own_end else None,
        )
