"""The thread of one tier: reads before writes, one thing at a time, and nobody ever waits for it in a step."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from logging import DEBUG, WARNING

from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.interface import Tier, TierError, cause_of
from octavo.execution.tiers.pages import Page
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.telemetry.log import logger

_DAMAGED = frozenset({"torn", "corrupt", "foreign", "stale"})


@dataclass(frozen=True, slots=True)
class EndedTransfer:
    """A load or store that is over. `page` was used by it."""

    ticket: int
    page: Page
    loaded: bool
    cause: str
    seconds: float


class TierWork:
    """What one tier has to do, in order: loads before everything else. Thread-safe.

    Args:
        tier: called by `run_next` and `close` only.
        done: called with every outcome, by `run_next`.
    """

    def __init__(self, tier: Tier, envelope: Envelope, done: Callable[[EndedTransfer], None]) -> None:
        self._tier = tier
        self._envelope = envelope
        self._generation = tier.generation
        self._wanted = tier.generation  # what is ordered now is of; `_generation` comes after it
        self._done = done
        self._blob = aligned_bytes(envelope.blob_bytes)
        self._change = threading.Condition()
        self._loads: deque[Callable[[], None]] = deque()
        self._others: deque[Callable[[], None]] = deque()
        self._working = False

    @property
    def name(self) -> str:
        """The tier's."""
        return self._tier.name

    def load(self, key: bytes, page: Page, ticket: int) -> None:
        """Read a blob into a page, before anything that is not a load."""
        self._order(self._loads, key, page, ticket)

    def store(self, key: bytes, page: Page, ticket: int) -> None:
        """Write a page."""
        self._order(self._others, key, page, ticket)

    def delete(self, key: bytes) -> None:
        """Forget a blob, after what was ordered before."""
        self._give(self._others, lambda: self._attempt("forget a block", lambda: self._tier.delete(key), DEBUG))

    def clear(self, generation: int) -> None:
        """Forget everything. Transfers that were ordered before and have not begun move nothing: they hold pages."""
        self._wanted = generation

        def clear() -> None:
            self._generation = generation
            self._attempt("forget everything", lambda: self._tier.clear(generation))

        self._give(self._others, clear)

    def run_next(self) -> bool:
        """Do one thing; false when there is none."""
        with self._change:
            if not (self._loads or self._others):
                return False
            job = self._loads.popleft() if self._loads else self._others.popleft()
            self._working = True
        job()
        with self._change:
            self._working = False
            self._change.notify_all()
        return True

    def wait_for_work(self, ends: Callable[[], bool]) -> None:
        """Return when there is something to do, or when it `ends`; see `wake`."""
        with self._change:
            self._change.wait_for(lambda: self._loads or self._others or ends())

    def wait_until_done(self, seconds: float) -> bool:
        """Wait until nothing is left to do, at most so long; false when something is."""
        with self._change:
            return self._change.wait_for(lambda: not (self._loads or self._others or self._working), seconds)

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """Nothing more is to be done."""
        self._attempt("close", self._tier.close)

    def _give(self, queue: deque[Callable[[], None]], job: Callable[[], None]) -> None:
        with self._change:
            queue.append(job)
            self._change.notify_all()

    def _order(self, queue: deque[Callable[[], None]], key: bytes, page: Page, ticket: int) -> None:
        generation, loads = self._wanted, queue is self._loads
        self._give(queue, lambda: self._transfer(key, page, ticket, loads, generation))

    def _transfer(self, key: bytes, page: Page, ticket: int, loads: bool, generation: int) -> None:
        began, cause = time.perf_counter(), ""
        try:
            if generation != self._wanted:
                raise TierError("stale", "it was forgotten meanwhile")
            if loads:
                self._load(key, page)
            else:
                self._envelope.seal(key, self._generation, page.data, self._blob)
                self._tier.put(key, self._blob)
        except Exception as error:  # whatever a tier raises, the engine goes on without this block
            cause = cause_of(error)
            logger("tiers").debug("%s: %s failed: %s", self.name, "load" if loads else "store", error)
        self._done(EndedTransfer(ticket, page, loads, cause, time.perf_counter() - began))

    def _load(self, key: bytes, page: Page) -> None:
        length = self._tier.get(key, self._blob)
        try:
            self._envelope.open(key, self._generation, self._blob, length, page.data)
        except TierError as error:
            if error.cause in _DAMAGED:
                self._attempt("remove a damaged block", lambda: self._tier.delete(key), DEBUG)
            raise

    def _attempt(self, what: str, action: Callable[[], object], level: int = WARNING) -> None:
        """A failure is told, not raised; `level` of what may happen thousands of times on a bad day is DEBUG."""
        try:
            action()
        except Exception as error:
            logger("tiers").log(level, "%s: could not %s: %s", self.name, what, error)


class TierThread:
    """Does a tier's work, one thing at a time, until it is closed."""

    def __init__(self, work: TierWork) -> None:
        self._work = work
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"octavo-tier-{work.name}", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Finish what was ordered, at most so long, and end. A call that hangs is left behind."""
        self._work.wait_until_done(seconds)
        self._closing = True
        self._work.wake()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing:
            if not self._work.run_next():
                self._work.wait_for_work(lambda: self._closing)
        self._work.close()
