"""Tokens from the engine to text for the caller: detokenizing, stop texts, one end for every stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from octavo.errors import InternalError
from octavo.flow.delta import TextDelta
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput
from octavo.outputs.logprobs import limited
from octavo.outputs.repetition import RepetitionWatch
from octavo.outputs.stop import StopMatcher
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Stream:
    """One of a request's n answers."""

    detokenizer: IncrementalDetokenizer | None  # None: token ids only
    matcher: StopMatcher | None
    watch: RepetitionWatch | None = None
    num_tokens: int = 0
    finished: bool = False


@dataclass(slots=True)
class _Live:
    """A request that has streams without an end. `engine_open`: streams that the engine has not ended."""

    request: GenerationRequest
    streams: list[_Stream]
    unfinished: int
    engine_open: int
    stop_names: dict[int, str] = field(default_factory=dict[int, str])


class _Cut(NamedTuple):
    """A stream's new text, how many of the new tokens belong to it, and the stop text that ended it."""

    text: str
    taken: int
    stop: str | None


class OutputProcessor:
    """Turns what steps added into text deltas. Owner: whoever receives the engine's outputs; not thread-safe.

    Every stream of a request ends with exactly one delta that has a finish_reason, and the texts of its deltas, joined,
    are the same however the engine cut the tokens into steps.

    Args:
        tokenizer: None: all deltas carry token ids only.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._live: dict[str, _Live] = {}
        self._cancels: list[str] = []
        self._ends: list[tuple[str, int]] = []

    def add(self, request: GenerationRequest) -> None:
        """Expect outputs of this request.

        Raises:
            InternalError: a live request has this id.
        """
        if request.id in self._live:
            raise InternalError(f"request id {request.id} is in use")
        streams = [self._stream(request) for _ in range(request.n)]
        self._live[request.id] = _Live(request, streams, request.n, request.n, self._stop_names(request))

    def push(self, outputs: Sequence[SequenceOutput]) -> list[TextDelta]:
        """The deltas of these outputs, in their order. Outputs of unknown or ended streams are passed over."""
        deltas: list[TextDelta] = []
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            if output.finish_reason is not None:
                live.engine_open -= 1
            stream = live.streams[output.index]
            if not stream.finished:
                deltas.append(self._delta(live, stream, _without_circles(stream, output)))
                if stream.finished and output.finish_reason is None and live.unfinished:
                    self._ends.append((output.request_id, output.index))
            if not live.unfinished:
                self._close(live)
        return deltas

    def take_cancels(self) -> list[str]:
        """Requests that ended at a stop text while the engine still works on them; it should be told to cancel them."""
        cancels, self._cancels = self._cancels, []
        return cancels

    def take_ends(self) -> list[tuple[str, int]]:
        """Streams that ended so while others of their request go on; the engine should be told to cancel them."""
        ends, self._ends = self._ends, []
        return ends

    def drop(self, request_id: str) -> None:
        """Forget a request; outputs of it that still come are passed over. Unknown ids do nothing."""
        self._live.pop(request_id, None)

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def _stream(self, request: GenerationRequest) -> _Stream:
        watch = None if request.repetition is None else RepetitionWatch(request.repetition)
        if self._tokenizer is None or not request.detokenize:
            return _Stream(None, None, watch)
        detokenizer = IncrementalDetokenizer(
            self._tokenizer,
            request.skip_special_tokens,
            request.spaces_between_special_tokens,
            request.shown_ids,
        )
        return _Stream(
            detokenizer,
            StopMatcher(request.stop, request.include_stop_str_in_output) if request.stop else None,
            watch,
        )

    def _stop_names(self, request: GenerationRequest) -> dict[int, str]:
        """Stop texts that name a special token; the engine stops at their ids."""
        if self._tokenizer is None or not request.stop:
            return {}
        ids = {text: self._tokenizer.id_of(text) for text in request.stop}
        stops = request.stopping.stop_token_ids
        return {i: text for text, i in ids.items() if i is not None and i in stops and i in self._tokenizer.special_ids}

    def _delta(self, live: _Live, stream: _Stream, output: SequenceOutput) -> TextDelta:
        request = live.request
        cut = _read(stream, output, request)
        count, reason, stop_reason = len(output.token_ids), output.finish_reason, _stop_reason(live, output)
        text = cut.text
        if cut.stop is not None:
            count, reason, stop_reason = cut.taken, FinishReason.STOP, cut.stop
        elif isinstance(stop_reason, str) and request.include_stop_str_in_output and request.skip_special_tokens:
            text += stop_reason
        if reason is not None:
            stream.finished = True
            live.unfinished -= 1
        stopped = cut.stop is not None
        return TextDelta(
            output.request_id,
            output.index,
            text,
            output.token_ids[:count] if stopped else output.token_ids,
            limited(output.logprobs[:count] if stopped else output.logprobs, request.sampling.logprobs),
            limited(output.prompt_logprobs, request.sampling.prompt_logprobs),
            reason,
            stop_reason,
            output.num_cached_tokens,
            output.times,
            None if stopped else output.error,
            output.cache_report,
            output.refused,
            output.pooled,
        )

    def _close(self, live: _Live) -> None:
        del self._live[live.request.id]
        if live.engine_open > 0:
            self._cancels.append(live.request.id)


def _without_circles(stream: _Stream, output: SequenceOutput) -> SequenceOutput:
    """The output, ended where the answer has begun to repeat itself."""
    if stream.watch is None:
        return output
    for number, token in enumerate(output.token_ids, 1):
        if stream.watch.push(token):
            kept, scored = output.token_ids[:number], output.logprobs[:number]
            return replace(
                output, token_ids=kept, logprobs=scored, finish_reason=FinishReason.REPETITION, stop_token_id=None
            )
    return output


def _stop_reason(live: _Live, output: SequenceOutput) -> int | str | None:
    token_id = output.stop_token_id
    return None if token_id is None else live.stop_names.get(token_id, token_id)


def _shown_ids(output: SequenceOutput, request: GenerationRequest) -> tuple[int, ...]:
    """The tokens that make text: a token that ended the answer does not, unless the stop is to be included."""
    ids = output.token_ids
    if output.finish_reason is not FinishReason.STOP or request.include_stop_str_in_output or not ids:
        return ids
    ends = ids[-1] == output.stop_token_id or ids[-1] in request.stopping.eos_token_ids
    return ids[:-1] if ends else ids


def _read(stream: _Stream, output: SequenceOutput, request: GenerationRequest) -> _Cut:
    """Decode an output's tokens; with stop texts one by one, so that the count of tokens up to the stop is known."""
    ids, detokenizer, matcher = _shown_ids(output, request), stream.detokenizer, stream.matcher
    before = stream.num_tokens
    stream.num_tokens += len(output.token_ids)
    if detokenizer is None:
        return _Cut("", len(ids), None)
    ended = output.finish_reason is not None
    if matcher is None:
        text = detokenizer.push(ids)
        return _Cut(text + detokenizer.finish() if ended else text, len(ids), None)
    texts: list[str] = []
    for number, piece in enumerate(_pieces(detokenizer, ids, ended), 1):
        # The piece after the last token is what finish() gave; it belongs to that token.
        count = min(number, len(ids))
        text, stop = matcher.push(piece, armed=before + count > request.stopping.min_tokens)
        texts.append(text)
        if stop is not None:
            return _Cut("".join(texts), count, stop)
    if ended:
        texts.append(matcher.finish())
    return _Cut("".join(texts), len(ids), None)


def _pieces(detokenizer: IncrementalDetokenizer, ids: Iterable[int], ended: bool) -> Iterable[str]:
    for token_id in ids:
        yield detokenizer.push((token_id,))
    if ended:
        yield detokenizer.finish()
