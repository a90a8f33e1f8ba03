"""When requests are too late to be worth any more work."""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expiry:
    """A deadline that has passed. `first_token`: only streams without a token are too late."""

    request_id: str
    first_token: bool


class Deadlines:
    """The deadlines of unfinished requests, next one first. A heap with lazy deletion. The Scheduler owns it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, bool]] = []
        self._serials: dict[str, int] = {}  # ids may come again: only entries of the present request count
        self._next = 0

    def __len__(self) -> int:
        """Requests that have a deadline."""
        return len(self._serials)

    def add(self, request_id: str, end: float | None, first_token: float | None) -> None:
        """Watch a request. Clock readings in seconds; None: no such deadline."""
        if end is None and first_token is None:
            return
        self._next += 1
        self._serials[request_id] = self._next
        for at, first in ((end, False), (first_token, True)):
            if at is not None:
                heapq.heappush(self._heap, (at, self._next, request_id, first))

    def forget(self, request_id: str) -> None:
        """A request has ended. Unknown ids do nothing."""
        if self._serials.pop(request_id, None) is None:
            return
        if len(self._heap) > 4 * len(self._serials) + 64:
            self._heap = [entry for entry in self._heap if self._serials.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[Expiry]:
        """Take out the deadlines that have passed, earliest first."""
        passed: list[Expiry] = []
        while self._heap and self._heap[0][0] <= now:
            _, serial, request_id, first = heapq.heappop(self._heap)
            if self._serials.get(request_id) == serial:
                passed.append(Expiry(request_id, first))
        return passed
