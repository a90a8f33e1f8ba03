"""Remembers what live requests have been told, so that an engine that was started again goes on where its clients are.

A request gives the same tokens whenever it runs, so one that an engine died with is given to the next engine as it was,
and what comes again is held back.
"""

from array import array
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from octavo.errors import EngineDeadError
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput

# Deaths that a request may be part of. One that was there at two may be the cause, and would take others with it.
MOST_DEATHS = 1
# Ends that follow from the tokens; others, a deadline above all, may come sooner than before.
_OF_THE_MODEL = frozenset((FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION))


class _Told:
    """What one sample stream has been told, and how far the engine of today has come with it."""

    __slots__ = ("ended", "prompt_logprobs", "repeated", "repeated_logprobs", "reported", "token_ids")

    def __init__(self) -> None:
        self.token_ids = array("q")
        self.prompt_logprobs = 0
        self.reported = False  # its cache report
        self.ended = False
        self.repeated = 0  # tokens of `token_ids` that have come again
        self.repeated_logprobs = 0

    def begin_again(self) -> None:
        self.repeated = self.repeated_logprobs = 0

    def news(self, output: SequenceOutput) -> SequenceOutput | None:
        """What of an output has not been told yet; None: nothing.

        Raises:
            EngineDeadError: other tokens come than before.
        """
        known = len(self.token_ids) - self.repeated
        known_logprobs = self.prompt_logprobs - self.repeated_logprobs
        if not known and not known_logprobs and not (self.reported and output.cache_report):
            self._note(output)
            return output
        again = output.token_ids[:known]
        if tuple(self.token_ids[self.repeated : self.repeated + len(again)]) != again or (
            output.finish_reason in _OF_THE_MODEL and len(output.token_ids) < known
        ):
            raise EngineDeadError("the engine was started again, and the answer came out another one; send it again")
        self.repeated += len(again)
        skipped = min(known_logprobs, len(output.prompt_logprobs))
        self.repeated_logprobs += skipped
        left = msgspec.structs.replace(
            output,
            token_ids=output.token_ids[len(again) :],
            logprobs=output.logprobs[len(again) :],
            prompt_logprobs=output.prompt_logprobs[skipped:],
            cache_report=None if self.reported else output.cache_report,
        )
        if not left.token_ids and not left.prompt_logprobs and left.finish_reason is None and not left.cache_report:
            return None
        self._note(left)
        return left

    def _note(self, output: SequenceOutput) -> None:
        self.token_ids.extend(output.token_ids)
        self.repeated = len(self.token_ids)
        self.prompt_logprobs += len(output.prompt_logprobs)
        self.repeated_logprobs = self.prompt_logprobs
        self.reported = self.reported or output.cache_report is not None


class _Entry:
    __slots__ = ("deaths", "request", "sent", "told")

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.told = [_Told() for _ in range(request.n)]
        self.deaths = 0
        self.sent = True

    def to_send(self) -> GenerationRequest:
        """The request as one that was taken on; the first token was in time if it was told."""
        begun = any(told.token_ids for told in self.told)
        return replace(self.request, resumed=True, ttft_deadline=None if begun else self.request.ttft_deadline)


class Journal:
    """The live requests, in the order in which they came. Owner: the thread of the engine's consumer."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, request: GenerationRequest) -> None:
        """A request went to the engine."""
        self._entries[request.id] = _Entry(request)

    def drop(self, request_id: str) -> None:
        """It is over."""
        del self._entries[request_id]

    def end(self, request_id: str, index: int) -> None:
        """One of its sample streams is over; what comes of it after that is held back."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.told[index].ended = True

    def news(self, outputs: Iterable[SequenceOutput]) -> tuple[list[SequenceOutput], dict[str, EngineDeadError]]:
        """What is new of live requests; and the requests that came out otherwise than before, with the error."""
        found: list[SequenceOutput] = []
        wrong: dict[str, EngineDeadError] = {}
        for output in outputs:
            entry = self._entries.get(output.request_id)
            if entry is None or entry.told[output.index].ended or output.request_id in wrong:
                continue
            try:
                left = entry.told[output.index].news(output)
            except EngineDeadError as error:
                wrong[output.request_id] = error
            else:
                if left is not None:
                    found.append(left)
        return found, wrong

    def death(self) -> list[str]:
        """The engine has died. Returns the requests that are not to be given to another one."""
        for entry in self._entries.values():
            if entry.sent:
                entry.deaths += 1
                entry.sent = False
                for told in entry.told:
                    told.begin_again()
        return [name for name, entry in self._entries.items() if entry.deaths > MOST_DEATHS]

    def unsent(self) -> list[tuple[GenerationRequest, tuple[int, ...]]]:
        """What the next engine has to be given, each with its sample streams that are over; from now on it has them."""
        found: list[tuple[GenerationRequest, tuple[int, ...]]] = []
        for entry in self._entries.values():
            if not entry.sent:
                entry.sent = True
                found.append((entry.to_send(), tuple(index for index, told in enumerate(entry.told) if told.ended)))
        return found
