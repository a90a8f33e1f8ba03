"""The thread of one tier: reads before writes, one thing at a time, and nobody ever waits for it in a step."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.interface import Tier, TierError, cause_of
from octavo.execution.tiers.pages import Page
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.telemetry.log import logger

_DAMAGED = frozenset({"torn", "corrupt", "foreign", "stale"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A load or store that is over. `page` was used by it."""

    ticket: int
    page: Page
    loaded: bool
    cause: str
    seconds: float


class TierThread:
    """Works on one tier. The worker's thread gives orders; outcomes go to `done`, which must take them from here.

    Args:
        tier: called by this thread only from now on.
        done: called with every outcome, on this thread.
    """

    def __init__(self, tier: Tier, envelope: Envelope, done: Callable[[Outcome], None]) -> None:
        self.name = tier.name
        self._tier = tier
        self._envelope = envelope
        self._generation = tier.generation
        self._done = done
        self._blob = aligned_bytes(envelope.blob_bytes)
        self._wake = threading.Condition()
        self._loads: deque[Callable[[], None]] = deque()
        self._others: deque[Callable[[], None]] = deque()
        self._working = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"octavo-tier-{tier.name}", daemon=True)
        self._thread.start()

    def load(self, key: bytes, page: Page, ticket: int) -> None:
        """Read a blob into a page, before anything that is not a load."""
        self._give(self._loads, lambda: self._transfer(key, page, ticket, loads=True))

    def store(self, key: bytes, page: Page, ticket: int) -> None:
        """Write a page."""
        self._give(self._others, lambda: self._transfer(key, page, ticket, loads=False))

    def delete(self, key: bytes) -> None:
        """Forget a blob, after what was ordered before."""
        self._give(self._others, lambda: self._attempt("forget a block", lambda: self._tier.delete(key)))

    def clear(self, generation: int) -> None:
        """Forget everything, after what was ordered before."""

        def clear() -> None:
            self._generation = generation
            self._attempt("forget everything", lambda: self._tier.clear(generation))

        self._give(self._others, clear)

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is left to do, at most so long; false when something is."""
        with self._wake:
            return self._wake.wait_for(lambda: not (self._loads or self._others or self._working), seconds)

    def close(self, seconds: float) -> None:
        """Finish what was ordered, at most so long, and end. A call that hangs is left behind."""
        self.wait(seconds)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(seconds)

    def _give(self, queue: deque[Callable[[], None]], job: Callable[[], None]) -> None:
        with self._wake:
            queue.append(job)
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._working = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._loads or self._others or self._closing)
                if self._closing:
                    break
                job = self._loads.popleft() if self._loads else self._others.popleft()
                self._working = True
            job()
        self._attempt("close", self._tier.close)

    def _transfer(self, key: bytes, page: Page, ticket: int, loads: bool) -> None:
        began, cause = time.perf_counter(), ""
        try:
            if loads:
                self._load(key, page)
            else:
                self._envelope.seal(key, self._generation, page.data, self._blob)
                self._tier.put(key, self._blob)
        except Exception as error:  # whatever a tier raises, the engine goes on without this block
            cause = cause_of(error)
            logger("tiers").debug("%s: %s failed: %s", self.name, "load" if loads else "store", error)
        self._done(Outcome(ticket, page, loads, cause, time.perf_counter() - began))

    def _load(self, key: bytes, page: Page) -> None:
        length = self._tier.get(key, self._blob)
        try:
            self._envelope.open(key, self._generation, self._blob, length, page.data)
        except TierError as error:
            if error.cause in _DAMAGED:
                self._attempt("remove a damaged block", lambda: self._tier.delete(key))
            raise

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            logger("tiers").warning("%s: could not %s: %s", self.name, what, error)
