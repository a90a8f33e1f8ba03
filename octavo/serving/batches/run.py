"""Runs one batch: checks its input, asks its lines, and writes what came of them."""

import asyncio
import hashlib
import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import msgspec
from starlette.applications import Starlette

from octavo.serving.batches.call import Caller, LineRunner, result_of
from octavo.serving.batches.lines import LineChecker, LineIndex, read_line
from octavo.serving.batches.schema import (
    ENDED,
    BatchError,
    BatchErrors,
    BatchObject,
    Line,
    LineAnswer,
    LineError,
    Status,
)
from octavo.serving.files.kept import Files
from octavo.serving.files.schema import OUTPUT
from octavo.serving.files.store import MONTH, FileStore, StoredBatch
from octavo.telemetry.log import logger

_TRIES = 5  # of a line whose answer says that it is the server's fault
_BUSY = 429  # is no try: there was no room
_LONGEST_WAIT = 30.0  # seconds between two tries
_PAUSE = 30.0  # seconds after a fault of the server's own
_WHY = {
    "expired": LineError("batch_expired", "the batch's completion window passed before this line was answered"),
    "cancelled": LineError("batch_cancelled", "the batch was cancelled before this line was answered"),
}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BatchObject).decode


class Places(Protocol):
    """Where lines wait for their turn."""

    async def enter(self) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """What the batches of a server share. server: what is served. longest: bytes of a line."""

    app: Starlette
    room: Places
    server: str
    longest: int


class BatchRun:
    """One batch under way. Owner: the event loop.

    Args:
        item: as it is stored.
        files: where its files and results are kept.
        lane: what lines are asked of, and when.
    """

    def __init__(self, item: StoredBatch, files: Files, lane: "Lane") -> None:
        self.batch = _decode(item.body)
        self.tenant = item.tenant
        self.task: asyncio.Task[None] | None = None
        self._files, self._lane = files, lane
        self._runner = LineRunner(lane.app, Caller(item.tenant))
        self._fault: Exception | None = None
        self._cancelled = asyncio.Event()
        if self.batch.status == "cancelling":
            self._cancelled.set()

    async def cancel(self) -> None:
        """No more lines; those under way are ended."""
        if self.batch.status in ("validating", "in_progress"):
            await self._become("cancelling")
            self._cancelled.set()

    async def run(self) -> None:
        """Until the batch has ended. After a fault of the server's own, such as a full disk, it goes on later."""
        while True:
            try:
                return await self._run()
            except Exception as error:
                logger("batches").error("batch %s stops for a while: %s", self.batch.id, error, exc_info=error)
            await asyncio.sleep(_PAUSE)

    async def _run(self) -> None:
        number = self.batch.input_file_id
        path = await self._files.call(lambda store: store.path(number))
        try:
            file = await asyncio.to_thread(open, path, "rb")
        except OSError:
            await self._fail([BatchError(code="input_unreadable", message=f"{number} cannot be read any more")])
            return
        with file:
            checker = LineChecker((self.batch.endpoint,), self._lane.longest)
            await asyncio.to_thread(checker.read, file)
            if checker.errors:
                await self._fail(checker.errors)
                return
            done = await self._files.call(lambda store: store.done(self.batch.id))
            counts = self.batch.request_counts
            counts.total, counts.failed = len(checker.index), sum(done.values())
            counts.completed = len(done) - counts.failed
            if self.batch.status == "validating":
                await self._become("in_progress")
            end = await self._until_end(file, checker.index, done)
            await self._finish(file, checker.index, end)

    async def _until_end(self, file: BinaryIO, index: LineIndex, done: dict[int, bool]) -> Status:
        """Ask the lines that have no result; returns how the batch ends."""
        if self._cancelled.is_set():
            return "cancelled"
        if len(done) == len(index):
            return "completed"
        asking = asyncio.ensure_future(self._ask_all(file, index, done))
        stopping = asyncio.ensure_future(self._cancelled.wait())
        left = self.batch.expires_at - time.time()
        try:
            if left > 0:
                await asyncio.wait((asking, stopping), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._cancelled.is_set():
                return "cancelled"
            if asking.done():
                await asking
                return "completed"
            return "expired"
        finally:
            for task in (asking, stopping):
                task.cancel()
            await asyncio.wait((asking, stopping))

    async def _ask_all(self, file: BinaryIO, index: LineIndex, done: dict[int, bool]) -> None:
        under_way: set[asyncio.Task[None]] = set()
        self._fault = None
        try:
            for place in range(len(index)):
                if place in done or self._fault is not None:
                    continue
                await self._lane.room.enter()
                task = asyncio.ensure_future(self._ask(file, index, place))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)
            if self._fault is not None:
                raise self._fault
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)

    async def _ask(self, file: BinaryIO, index: LineIndex, place: int) -> None:
        try:
            line = read_line(await asyncio.to_thread(index.read, file, place))
            answer = await self._answer(line)
            failed = answer.status_code != 200
            result = result_of(line, answer)
            await self._files.call(lambda store: store.put_result(self.batch.id, place, failed, result))
        except Exception as error:
            self._fault = error
            return
        finally:
            self._lane.room.leave()
        counts = self.batch.request_counts
        counts.failed += failed
        counts.completed += not failed

    async def _answer(self, line: Line) -> LineAnswer:
        """The answer; one that is the server's fault is asked for again, in growing intervals."""
        faults, wait = 0, 0.25
        while True:
            answer = await self._runner.run(line)
            faults += answer.status_code >= 500
            if answer.status_code != _BUSY and (answer.status_code < 500 or faults >= _TRIES):
                return answer
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _fail(self, errors: list[BatchError]) -> None:
        self.batch.errors = BatchErrors(data=errors)
        await self._become("failed")

    async def _finish(self, file: BinaryIO, index: LineIndex, end: Status) -> None:
        if end != "cancelled":
            await self._become("finalizing")
        names = await self._files.call(lambda store: self._write(store, file, index, _WHY.get(end)))
        self.batch.output_file_id, self.batch.error_file_id = names
        await self._become(end)

    def _write(
        self, store: FileStore, file: BinaryIO, index: LineIndex, why: LineError | None
    ) -> tuple[str | None, str | None]:
        """Write both files, each in the order of the input; the ids of those that have lines."""
        number, counts = self.batch.id, self.batch.request_counts
        names: list[str | None] = []
        done = store.done(number)
        missing = [place for place in range(len(index)) if place not in done]
        counts.failed = sum(done.values()) + len(missing)
        counts.completed = len(index) - counts.failed

        def given_up() -> Iterator[tuple[int, bytes]]:
            for place in missing:
                yield place, result_of(read_line(index.read(file, place)), None, why)

        for kind, lines, count in (
            ("output", store.results(number, False), counts.completed),
            ("error", heapq.merge(store.results(number, True), given_up()), counts.failed),
        ):
            # Under the same name again, if a server ended while it was written.
            name = f"file-{hashlib.sha256(f'{number} {kind}'.encode()).hexdigest()[:32]}" if count else None
            names.append(name)
            if name is not None:
                with store.writing(name, self.tenant, f"{number}_{kind}.jsonl", OUTPUT, MONTH) as writing:
                    writing.out.writelines(body for _, body in lines)
        return names[0], names[1]

    async def _become(self, status: Status) -> None:
        """Enter a state, and keep that."""
        self.batch.status = status
        setattr(self.batch, f"{status}_at", int(time.time()))
        live = status not in ENDED
        await self._files.call(lambda store: store.put_batch(stored(self.batch, self.tenant, live), self._lane.server))


def stored(batch: BatchObject, tenant: str, live: bool) -> StoredBatch:
    """A batch as it is kept."""
    return StoredBatch(batch.id, tenant, float(batch.created_at), live, batch.input_file_id, _encode(batch))
