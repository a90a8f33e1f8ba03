"""Hands the deltas of requests to one consumer, who may be slower than the engine."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from octavo.errors import OctavoError
from octavo.flow.delta import TextDelta
from octavo.flow.request import GenerationRequest


class RequestStream:
    """The deltas of one or more requests, for one consumer. Iterate, then `close`; closing early cancels the rest.

    Each item holds every delta that came since the last: a slow consumer gets fewer and larger ones.
    """

    __slots__ = ("_close", "_deltas", "_error", "_waiter", "unfinished")

    def __init__(self, requests: Sequence[GenerationRequest], close: Callable[["RequestStream"], None]) -> None:
        # Sample streams that have not ended, by request id.
        self.unfinished = {request.id: request.n for request in requests}
        self._close = close
        self._deltas: deque[TextDelta] = deque()
        self._error: OctavoError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, delta: TextDelta) -> None:
        """Take a delta. The engine's side only."""
        self._deltas.append(delta)
        if delta.finish_reason is not None:
            left = self.unfinished[delta.request_id] - 1
            if left:
                self.unfinished[delta.request_id] = left
            else:
                del self.unfinished[delta.request_id]
        self._wake()

    def fail(self, error: OctavoError) -> None:
        """End with an error, after the deltas there are. The engine's side only."""
        self._error = error
        self._wake()

    def close(self) -> None:
        """Say that no more is wanted; cancels what is unfinished. Harmless when repeated."""
        self._close(self)

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> list[TextDelta]:
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if not self.unfinished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
