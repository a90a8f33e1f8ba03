"""Decides when lines of batches run: beside others few, alone as many as the engine takes; and goes on after a restart.

Each line's result is stored before the next thing happens to it, so that a line is never asked again once it has one,
however this process ends. What was only under way is asked again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.applications import Starlette

from octavo.serving.batches.run import BatchRun, Lane
from octavo.serving.batches.schema import BatchObject
from octavo.serving.files.kept import Files
from octavo.serving.files.store import StoredBatch
from octavo.telemetry.log import logger

_LOOK_SECONDS = 0.05  # between two looks for room; only while there is none
_SHARE = 8  # of the sequences that the engine takes, lines get one in so many beside others
_CLOSE_SECONDS = 5.0


class Room:
    """How many lines may run now. Owner: the event loop; lines wait in order, so batches take turns.

    Args:
        most: says how many there is room for.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self.busy = 0
        self._most = most
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    async def enter(self) -> None:
        """Wait for room."""
        async with self._turn:
            while self.busy >= self._most():
                self._left.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._left.wait(), _LOOK_SECONDS)
            self.busy += 1

    def leave(self) -> None:
        """A line has ended."""
        self.busy -= 1
        self._left.set()


def room_beside(others: int, sequences: int) -> int:
    """Lines that may run beside so many other requests, of an engine that takes so many sequences."""
    if others:
        return max(1, sequences // _SHARE)
    return sequences + max(1, sequences // 4)  # some wait, so that no step has to


class Batches:
    """The batches of this server. Owner: the event loop.

    Args:
        files: where they are kept.
        server: what is served; only batches of the same are taken over.
    """

    def __init__(self, files: Files, server: str = "") -> None:
        self.running: dict[str, BatchRun] = {}
        self.server = server
        self._files = files
        self._lane: Lane | None = None

    async def start(self, app: Starlette, longest: int, most: Callable[[], int]) -> None:
        """Lines are asked of `app` from now on; what a server before this one left unfinished goes on.

        Args:
            longest: bytes of a line.
            most: says how many lines may run.
        """
        self._lane = Lane(app, Room(most), self.server, longest)
        if not self._files.exists:
            return
        try:
            for item in await self._files.call(lambda store: store.adopt(self.server)):
                logger("batches").info("batch %s goes on", item.id)
                self.go_on(item)
        except Exception as error:  # the server serves without
            logger("batches").error("batches of before cannot be read: %s", error)

    def go_on(self, item: StoredBatch) -> BatchRun:
        """Run a batch that is stored."""
        assert self._lane is not None
        run = BatchRun(item, self._files, self._lane)
        self.running[item.id] = run
        run.task = asyncio.ensure_future(run.run())
        run.task.add_done_callback(lambda _: self.running.pop(item.id, None))
        return run

    def of(self, number: str, tenant: str) -> BatchObject | None:
        """A batch of this tenant that runs here, as it is."""
        run = self.running.get(number)
        return run.batch if run is not None and run.tenant == tenant else None

    async def close(self) -> None:
        """Stop; what is unfinished goes on at the next start."""
        tasks = [run.task for run in self.running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
