"""The same load on a server without paging: each request reserves one contiguous piece of cache for as long as it runs.

This is how servers did it before paging (as described by Kwon et al., SOSP 2023, sections 3.1 and 6.1): `whole`
reserves the longest sequence there may be; `power` the next power of two of the answer's length, as if that were
known by then; `exact` knows the future. Pieces are found first fit. First come, first served; whole prompts, within
the step's token budget.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.simulate.costs import StepCosts
from octavo.scheduling.step_time import StepLoad, pairs_of

Reserve = Callable[[int, int], int]  # (prompt, answer) -> slots


def reservations(longest: int) -> dict[str, Reserve]:
    """The ways to reserve, when no sequence may be longer than `longest`."""
    return {
        "whole": lambda _prompt, _answer: longest,
        "power": lambda prompt, answer: min(longest, prompt + (1 << (answer - 1).bit_length())),
        "exact": lambda prompt, answer: prompt + answer,
    }


class Arena:
    """Token slots in a row, given out in contiguous pieces."""

    def __init__(self, size: int) -> None:
        self._holes: list[tuple[int, int]] = [(0, size)]  # start and length, in order

    def take(self, size: int) -> int | None:
        """Where the first hole begins that is large enough."""
        for position, (start, length) in enumerate(self._holes):
            if length >= size:
                self._holes[position : position + 1] = [(start + size, length - size)] if length > size else []
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """A piece is free again; neighbouring holes become one."""
        insort(self._holes, (start, size))
        position = self._holes.index((start, size))
        for left in (position, position - 1):
            if 0 <= left < len(self._holes) - 1:
                (first, length), (following, more) = self._holes[left : left + 2]
                if first + length == following:
                    self._holes[left : left + 2] = [(first, length + more)]


@dataclass(slots=True)
class _Row:
    prompt: int
    answer: int
    start: int
    reserved: int
    length: int


@dataclass(slots=True)
class Contiguous:
    """What a run showed, while something waited. Seconds are virtual."""

    seconds: float = 0.0
    row_seconds: float = 0.0
    tokens: int = 0  # that were generated
    filled: float = 0.0  # slot-seconds that hold a token
    reserved: float = 0.0

    @property
    def concurrency(self) -> float:
        """Rows of a step, on average over the time."""
        return self.row_seconds / self.seconds


@dataclass(slots=True)
class _Server:
    arena: Arena
    reserve: Reserve
    tokens: int
    most_rows: int
    running: list[_Row] = field(default_factory=list)

    def admit(self, waiting: list[tuple[int, int]]) -> list[_Row]:
        """Start whoever is next, while there is a piece and the budget lasts."""
        budget, new = self.tokens - len(self.running), []
        while waiting and len(self.running) + len(new) < self.most_rows and waiting[-1][0] <= budget:
            prompt, answer = waiting[-1]
            size = self.reserve(prompt, answer)
            start = self.arena.take(size)
            if start is None:
                break
            waiting.pop()
            budget -= prompt
            new.append(_Row(prompt, answer, start, size, prompt))
        return new


def serve(
    load: Sequence[tuple[int, int]], slots: int, reserve: Reserve, costs: StepCosts, tokens: int, most_rows: int
) -> Contiguous:
    """Serve prompts and answers of these lengths, all there from the beginning, until the last one has started."""
    server, seen, waiting = _Server(Arena(slots), reserve, tokens, most_rows), Contiguous(), list(reversed(load))
    while waiting:
        new = server.admit(waiting)
        old = server.running
        count = len(old) + len(new)
        pairs = sum([row.length for row in old]) + sum(pairs_of(0, row.prompt) for row in new)
        seconds = costs.seconds(StepLoad(len(old) + sum(row.prompt for row in new), count, pairs))
        server.running = old + new
        for row in server.running:
            row.length += 1
        seen.seconds += seconds
        seen.row_seconds += seconds * count
        seen.tokens += count
        seen.filled += seconds * sum([row.length for row in server.running])
        seen.reserved += seconds * sum([row.reserved for row in server.running])
        for row in [row for row in server.running if row.length >= row.prompt + row.answer]:
            server.arena.give_back(row.start, row.reserved)
            server.running.remove(row)
    return seen
