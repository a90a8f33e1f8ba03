"""What the server knows of responses: those under way, and the store of the others."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from octavo.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.serving.responses.schema import JsonObject, ResponseObject
from octavo.serving.responses.store import ResponseStore, StoredResponse
from octavo.telemetry.log import logger

T = TypeVar("T")

_LOST = {"code": "server_error", "message": "the server ended before the response was complete"}
_LONGEST_CHAIN = 4096
_CLOSE_SECONDS = 5.0
_MONTH = 30 * 86_400.0  # as OpenAI keeps them
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, Any]]).decode
_encode = msgspec.json.Encoder().encode


class UnknownResponseError(OctavoError):
    """There is no such response, or it belongs to somebody else."""

    status = 404


@dataclass(eq=False, slots=True)
class BackgroundRun:
    """A response that goes on without its client. Owner: the event loop."""

    response: ResponseObject
    tenant: str
    streamed: bool
    events: list[bytes] = field(default_factory=list[bytes])
    task: "asyncio.Task[None] | None" = None
    ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, events: list[bytes]) -> None:
        """More events."""
        self.events += events
        self._wake()

    def end(self) -> None:
        """There are no more."""
        self.ended = True
        self._wake()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """The events from a number on, until the last."""
        while True:
            changed = self._changed
            if start < len(self.events):
                told = self.events[start:]
                start = len(self.events)
                yield b"".join(told)
            elif self.ended:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Responses:
    """Owner: the event loop; the store is used by a thread of its own.

    Args:
        where: a file, "memory" or "none".
        most_bytes, most_seconds: bounds of the store.
        or_memory: where the file cannot be used, keep responses in memory.
    """

    def __init__(
        self,
        where: str = "memory",
        most_bytes: int = 64 << 20,
        most_seconds: float = _MONTH,
        or_memory: bool = False,
    ) -> None:
        self.running: dict[str, BackgroundRun] = {}
        self._bounds = most_bytes, most_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-responses")
        self._store: ResponseStore | None = None
        self._where = where
        self._or_memory = or_memory

    @property
    def keeps(self) -> bool:
        """Anything is kept."""
        return self._where != "none"

    def open(self) -> None:
        """Open the store; without that it is opened when it is first needed.

        Raises:
            ConfigError: it cannot be.
        """
        if not self.keeps or self._store is not None:
            return
        path = None if self._where == "memory" else Path(self._where).expanduser()
        try:
            self._store = ResponseStore(path, *self._bounds, _lost)
        except ConfigError as error:
            if not self._or_memory:
                raise
            logger("serving").warning("%s (responses are kept in memory)", error)
            self._store = ResponseStore(None, *self._bounds, _lost)

    async def put(self, item: StoredResponse) -> bool:
        """Keep a response; false where that fails, which is logged."""
        try:
            await self._call(lambda store: store.put(item))
        except Exception as error:
            logger("serving").error("response %s could not be stored: %s", item.id, error)
            return False
        return True

    async def get(self, number: str, tenant: str) -> StoredResponse:
        """A response of this tenant; one under way as it was when it began.

        Raises:
            UnknownResponseError: there is none.
        """
        found = await self._call(lambda store: store.get(number, tenant)) if self.keeps else None
        if found is None:
            raise UnknownResponseError(f"there is no response {number[:128]!r}; it may have been deleted or too old")
        return found

    async def delete(self, number: str, tenant: str) -> None:
        """Forget a response.

        Raises:
            UnknownResponseError: there is none.
        """
        if not self.keeps or not await self._call(lambda store: store.delete(number, tenant)):
            raise UnknownResponseError(f"there is no response {number[:128]!r}; it may have been deleted or too old")

    async def items_before(self, number: str, tenant: str) -> list[JsonObject]:
        """All items of the conversation that ends with a response.

        Raises:
            InvalidRequestError: it, or one before it, is not there or not complete.
        """
        turns: list[list[JsonObject]] = []
        at: str | None = number
        while at is not None:
            found = await self._call(lambda store, one=at: store.get(one, tenant)) if self.keeps else None
            if found is None or len(turns) >= _LONGEST_CHAIN:
                raise InvalidRequestError(
                    f"previous_response_id: response {at[:128]!r} is not kept here; send the whole conversation",
                    "previous_response_id",
                )
            if found.live:
                raise InvalidRequestError(
                    f"previous_response_id: response {at[:128]!r} is still under way", "previous_response_id"
                )
            turns.append([*_decode_items(found.input), *_decode(found.response)["output"]])
            at = found.previous
        return [item for turn in reversed(turns) for item in turn]

    async def close(self) -> None:
        """End what is under way, and keep what it has."""
        tasks = [run.task for run in self.running.values() if run.task is not None]
        for task in tasks:
            task.cancel("the server is shutting down")
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):
                await asyncio.get_running_loop().run_in_executor(self._thread, store.close)
        self._thread.shutdown(wait=False)

    async def _call(self, work: Callable[[ResponseStore], T]) -> T:
        def called() -> T:
            self.open()
            assert self._store is not None
            return work(self._store)

        return await asyncio.get_running_loop().run_in_executor(self._thread, called)


def _lost(response: bytes) -> bytes:
    return _encode({**_decode(response), "status": "failed", "error": _LOST})
