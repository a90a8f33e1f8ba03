"""Runs a file of requests without a server: `octavo run-batch`. What is done is kept in a journal.

The journal, OUT.part, has a line for each result: a digest of the input line, and the result. A run that is broken off,
by whatever, goes on from there when the same command is given again.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
from starlette.applications import Starlette

from octavo.config.engine import EngineConfig
from octavo.engine.frontend import build_frontend
from octavo.engine.supervisor import EngineSupervisor
from octavo.errors import InvalidRequestError
from octavo.serving.app import build_app
from octavo.serving.batches.call import Caller, LineRunner, result_of
from octavo.serving.batches.lane import Room, room_beside
from octavo.serving.batches.lines import LineChecker, read_line
from octavo.serving.batches.schema import ENDPOINTS
from octavo.serving.batches.served import served_endpoints
from octavo.serving.keys import KeyRing
from octavo.serving.runtime import assemble

_LONGEST_LINE = 256 << 20


class Progress(Protocol):
    """Who wants to know what is done."""

    def ready(self) -> None:
        """The model is loaded."""
        ...

    def done(self, failed: bool) -> None:
        """A line."""
        ...

    def told(self, result: bytes) -> None:
        """A line and all before it; in the order of the input."""
        ...


class Entry(msgspec.Struct, frozen=True):
    """A line of the journal. digest: of the input line."""

    digest: str
    failed: bool
    result: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Journal:
    """Results so far, on disk.

    Args:
        path: the file; None keeps them in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.kept: dict[str, Entry] = {}
        self._path = path
        self._out: BinaryIO | None = None
        if path is None:
            return
        whole = 0
        if path.exists():
            data = path.read_bytes()
            for line in data.splitlines(keepends=True):
                if not line.endswith(b"\n"):  # torn by a kill
                    break
                try:
                    entry = _decode(line)
                except msgspec.DecodeError:
                    raise InvalidRequestError(
                        f"{path} is no journal of run-batch; delete it, or write elsewhere"
                    ) from None
                self.kept[entry.digest] = entry
                whole += len(line)
        self._out = path.open("ab")
        self._out.truncate(whole)

    def add(self, digest: str, failed: bool, result: bytes) -> None:
        """One more, on its way to the disk at once."""
        entry = Entry(digest, failed, msgspec.Raw(result.strip()))
        self.kept[digest] = entry
        if self._out is not None:
            self._out.write(_encode(entry) + b"\n")
            self._out.flush()

    def finish(self, order: Iterable[str], out: Path) -> None:
        """Write all results in this order, whole or not at all, and forget the journal."""
        part = out.with_name(out.name + ".new")
        with part.open("wb") as file:
            file.writelines(bytes(self.kept[digest].result) + b"\n" for digest in order)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
        self.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """No more comes."""
        if self._out is not None:
            self._out.close()


def journal_of(out: Path) -> Path:
    """Where the results of an unfinished run lie."""
    return out.with_name(out.name + ".part")


@dataclass(slots=True)
class BatchFile:
    """An input, checked.

    Raises:
        InvalidRequestError: names every line that is wrong.
    """

    file: BinaryIO
    checker: LineChecker = field(default_factory=lambda: LineChecker(ENDPOINTS, _LONGEST_LINE, None))
    digests: list[str] = field(default_factory=list[str])  # tell lines apart, also when the file has changed

    def __post_init__(self) -> None:
        """Look at every line."""
        self.checker.read(self.file)
        if self.checker.errors:
            told = [f"line {at.line}: {at.message}" if at.line else at.message for at in self.checker.errors]
            more = self.checker.wrong - len(told)
            raise InvalidRequestError("\n".join(["the input is wrong", *told, *([f"and {more} more"] if more else [])]))

        for place in range(len(self.checker.index)):
            self.digests.append(hashlib.sha256(self.line(place).strip()).hexdigest())

    def line(self, place: int) -> bytes:
        """A line."""
        return self.checker.index.read(self.file, place)


async def run_file(
    config: EngineConfig, supervisor: EngineSupervisor, batch: BatchFile, journal: Journal, progress: Progress
) -> None:
    """Answer the lines that the journal does not have.

    Args:
        supervisor: of the engine; closed here.
        progress: told of what is done.
    """
    async with unserved_app(config, supervisor) as (app, sequences):
        served = served_endpoints(app)
        if wrong := sorted({read_line(batch.line(place)).url for place in range(len(batch.digests))} - set(served)):
            raise InvalidRequestError(f"url: {wrong[0]} is not served with this model; {', '.join(served)} are")
        progress.ready()
        lines = _Lines(batch, journal, LineRunner(app, Caller(lag=0.0)), progress)
        await lines.run(Room(lambda: room_beside(0, sequences)))


@asynccontextmanager
async def unserved_app(
    config: EngineConfig, supervisor: EngineSupervisor
) -> AsyncGenerator[tuple[Starlette, int], None]:
    """The application without a socket, and how many sequences its engine takes."""
    try:
        supervisor.launch()
        config = replace(config, serving=replace(config.serving, response_store="none", file_store="none"))
        frontend = await asyncio.to_thread(build_frontend, config)
        state, store = await assemble(config, frontend, supervisor)
        app, _ = build_app(state, store, KeyRing())
        yield app, state.engine.info.max_num_seqs
    finally:
        await supervisor.close()


@dataclass(slots=True)
class _Lines:
    """All lines of a file. Owner: the event loop."""

    batch: BatchFile
    journal: Journal
    runner: LineRunner
    progress: Progress
    _next: int = 0

    async def run(self, room: Room) -> None:
        """Until every line has a result."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            for place, digest in enumerate(self.batch.digests):
                if digest in self.journal.kept:
                    continue
                await room.enter()
                for task in [task for task in under_way if task.done()]:
                    under_way.discard(task)
                    task.result()
                under_way.add(asyncio.ensure_future(self._ask(room, place)))
            await asyncio.gather(*under_way)
            self._tell()
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)

    async def _ask(self, room: Room, place: int) -> None:
        try:
            line = read_line(self.batch.line(place))
            answer = await self.runner.run(line)
        finally:
            room.leave()
        failed = answer.status_code != 200
        self.journal.add(self.batch.digests[place], failed, result_of(line, answer))
        self.progress.done(failed)
        self._tell()

    def _tell(self) -> None:
        digests = self.batch.digests
        while self._next < len(digests) and (entry := self.journal.kept.get(digests[self._next])) is not None:
            self.progress.told(bytes(entry.result) + b"\n")
            self._next += 1
