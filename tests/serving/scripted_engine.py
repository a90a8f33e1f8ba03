"""A tokenizer of bytes and an engine that says what a script tells it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from octavo.engine.client import EngineInfo, EngineStats, Pause
from octavo.execution.sleep import Part
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, SequenceTimes, TokenLogprobs
from octavo.text.tokenizer import EncodedParts

END = 256
VOCAB = 257
CONTEXT = 512


class ByteTokenizer:
    """Token ids are bytes; 256 ends a text."""

    vocab_size = VOCAB
    eos_token_ids = (END,)
    bos_token_id = None
    special_ids = frozenset({END})
    added_ids = frozenset({END})
    special_tokens = MappingProxyType({"eos_token": "<end>"})
    strips_first_space = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def encode_parts(
        self, texts: Sequence[str], add_special_tokens: bool = True, limit: int | None = None, side: str = "right"
    ) -> EncodedParts:
        ids = self.encode(texts[0])
        return EncodedParts(ids[:limit] if side == "right" or limit is None else ids[-limit:])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])

    def token(self, token_id: int) -> str | None:
        return "<end>" if token_id == END else chr(token_id)

    def id_of(self, token: str) -> int | None:
        return END if token == "<end>" else None

    def longest_token(self) -> int:
        return 4


Script = Callable[[GenerationRequest, int], Sequence[int]]


def say(text: str) -> Script:
    """Every stream says this text, then ends."""
    return lambda _request, _index: [*text.encode(), END]


hello = say("Hello, world!")


def endless(_request: GenerationRequest, _index: int) -> Sequence[int]:
    """A stream that ends only by its length."""
    return [ord("x")] * CONTEXT


@dataclass(slots=True)
class _Stream:
    request: GenerationRequest
    index: int
    tokens: list[int]
    sent: int = 0


@dataclass
class ScriptedClient:
    """An EngineClient.

    Args:
        step_seconds: how long a step takes.
        fail_at: the output number at which streams fail.
        hold_at: how many tokens a stream has at most; it goes on when this is None again. What runs is then sure to run
            still, however slow the machine is.
    """

    script: Script = hello
    step_seconds: float = 0.0
    tokens_per_step: int = 1
    fail_at: int | None = None
    max_running: int = 1024
    hold_at: int | None = None
    cancelled: list[str] = field(default_factory=list)
    ended: list[tuple[str, int]] = field(default_factory=list)
    steps: int = 0
    paused: bool = False
    frozen: bool = False
    asleep: int = 0

    def __post_init__(self) -> None:
        self.info = EngineInfo(CONTEXT, 100, 16, 64, 512, VOCAB, 0.0)
        self._live: list[_Stream] = []
        self._aborted: list[_Stream] = []

    def submit(self, request: GenerationRequest) -> None:
        # A model that must not end goes on past its script.
        more = [END] * CONTEXT if request.stopping.ignore_eos else []
        self._live += [_Stream(request, i, [*self.script(request, i), *more]) for i in range(request.n)]

    def cancel(self, request_ids: Sequence[str]) -> None:
        self.cancelled += request_ids
        gone = [stream for stream in self._live if stream.request.id in request_ids]
        self._aborted += gone
        self._live = [stream for stream in self._live if stream not in gone]

    def cancel_streams(self, streams: Sequence[tuple[str, int]]) -> None:
        gone = [stream for stream in self._live if (stream.request.id, stream.index) in streams]
        self.ended += streams
        self._aborted += gone
        self._live = [stream for stream in self._live if stream not in gone]

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]:
        outputs = [self._output(stream, (), FinishReason.ABORT) for stream in self._aborted]
        self._aborted.clear()
        going = self._going()
        if going is None:
            time.sleep(0.001)
        elif self._live and not self.frozen:
            self.steps += 1
            if self.step_seconds:
                time.sleep(self.step_seconds)  # the forward of a slower model
            outputs += [self._advance(stream) for stream in going]
        return outputs

    def _going(self) -> list[_Stream] | None:
        """The streams that the next step advances; None: all of them are held."""
        first, most = self._live[: self.max_running], self.hold_at
        going = [stream for stream in first if most is None or stream.sent < most]
        return None if first and not going else going

    def _advance(self, stream: _Stream) -> SequenceOutput:
        stopping = stream.request.stopping
        if self.fail_at is not None and stream.sent >= self.fail_at:
            return self._finish(stream, (), FinishReason.ERROR, "the step failed")
        tokens: list[int] = []
        for token in stream.tokens[stream.sent : stream.sent + self.tokens_per_step]:
            tokens.append(token)
            stream.sent += 1
            if (token == END and not stopping.ignore_eos) or token in stopping.stop_token_ids:
                return self._finish(stream, tuple(tokens), FinishReason.STOP)
            if stream.sent >= stopping.max_tokens:
                return self._finish(stream, tuple(tokens), FinishReason.LENGTH)
        return self._output(stream, tuple(tokens), None)

    def _finish(
        self, stream: _Stream, tokens: tuple[int, ...], reason: FinishReason, error: str | None = None
    ) -> SequenceOutput:
        self._live = [other for other in self._live if other is not stream]
        return self._output(stream, tokens, reason, error)

    def _output(
        self, stream: _Stream, tokens: tuple[int, ...], reason: FinishReason | None, error: str | None = None
    ) -> SequenceOutput:
        request = stream.request
        top, prompt_top = request.sampling.logprobs, request.sampling.prompt_logprobs
        first = stream.sent <= self.tokens_per_step and stream.index == 0 and bool(tokens)
        stop = tokens[-1] if tokens and tokens[-1] in request.stopping.stop_token_ids else None
        at = request.arrival
        return SequenceOutput(
            request.id,
            stream.index,
            tokens,
            tuple(_entry(token, top) for token in tokens) if top is not None else (),
            tuple(_entry(t, prompt_top) for t in request.prompt_token_ids[1:])
            if first and prompt_top is not None
            else (),
            reason,
            stop,
            num_cached_tokens=3 if first else 0,
            times=SequenceTimes(at, at + 0.5, at + 0.75, at + 1.75) if reason else None,
            error=error,
        )

    def stats(self) -> EngineStats:
        running = min(len(self._live), self.max_running)
        return EngineStats(
            running,
            len(self._live) - running,
            running,
            100,
            steps=self.steps,
            step_seconds=0.01 * self.steps,
            under_way=len(self._live),
            paused=self.paused,
            asleep=self.asleep,
        )

    def pause(self, how: Pause = "wait") -> None:
        self.paused, self.frozen = True, how == "keep"
        if how == "abort":
            self.cancel([stream.request.id for stream in self._live])

    def resume(self) -> None:
        self.paused = self.frozen = False

    def sleep(self, level: int = 1) -> None:
        self.asleep = level

    def wake(self, parts: Sequence[Part] | None = None) -> None:
        self.asleep = 0

    def reset_prefix_cache(self) -> bool:
        return not self._live

    def close(self) -> None:
        self._live.clear()


def _entry(token: int, top: int) -> TokenLogprobs:
    """The drawn token is the second likeliest."""
    others = [(token + 1 + i) % 256 for i in range(top)]
    if top > 1:
        others[1] = token
    values = [-0.25, *(-0.5 - i for i in range(1, top))][:top]
    return TokenLogprobs((token, *others), (-1.5, *values), 2)
