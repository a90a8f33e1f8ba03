"""Carries out what plans order of tiers: copies between device and host memory at once, the rest on tiers' threads."""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress

from octavo.cache.tier import HOST
from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.interface import Tier
from octavo.execution.tiers.pages import DevicePages, HostPages
from octavo.execution.tiers.thread import EndedTransfer, TierThread, TierWork
from octavo.flow.plan import StepPlan, TierOrder
from octavo.flow.result import TierEvent

# How long a step without rows waits for news: long enough not to spin, short enough to hear of new requests.
_NEWS_SECONDS = 0.02
_CLOSE_SECONDS = 5.0


class TierTransfers:
    """The bytes of all tiers. Owner: the worker.

    Args:
        device: whose blocks are copied out and in.
        envelope: seals what leaves host memory.
        pages: of host memory.
        tiers: slower ones; closed by `close`.
        threaded: each tier has a thread of its own; else whoever made this runs `works`.
    """

    def __init__(
        self, device: DevicePages, envelope: Envelope, pages: int, tiers: Sequence[Tier], threaded: bool = True
    ) -> None:
        self._device = device
        self._host = HostPages(pages, device.page_bytes)
        self._outcomes: queue.SimpleQueue[EndedTransfer] = queue.SimpleQueue()
        self.works = {tier.name: TierWork(tier, envelope, self._outcomes.put) for tier in tiers}
        self._threads = [TierThread(work) for work in self.works.values() if threaded]
        self._events: list[TierEvent] = []
        self._under_way = 0

    def spill(self, plan: StepPlan) -> None:
        """What comes before everything else of a step: forget, spill, begin what slower tiers are to do."""
        self._collect()
        for order in plan.orders:
            if order.kind == "clear":
                self._clear(order.generation)
            elif order.kind == "drop" and order.tier == HOST:
                self._host.drop(order.key)
        for spill in plan.spills:
            began, page = time.perf_counter(), self._host.take(spill.key)
            if page is None:
                self._events.append(TierEvent(spill.ticket, "room"))
                continue
            self._device.read_page(spill.block, page.data)
            page.ready = True
            self._events.append(TierEvent(spill.ticket, "", time.perf_counter() - began))
        for order in plan.orders:
            if order.tier != HOST:
                self._begin(order)

    def fetch(self, plan: StepPlan) -> None:
        """What comes right before the forward: contents return to the device."""
        for fetch in plan.fetches:
            began, page = time.perf_counter(), self._host.find(fetch.key)
            if page is None:
                self._events.append(TierEvent(fetch.ticket, "missing"))
                continue
            self._device.write_page(fetch.block, page.data)
            self._events.append(TierEvent(fetch.ticket, "", time.perf_counter() - began))

    def events(self, wait: bool = False) -> tuple[TierEvent, ...]:
        """What happened since the last call.

        Args:
            wait: when nothing did and something is under way, wait for it, a moment at most.
        """
        self._collect()
        if wait and not self._events and self._under_way:
            with suppress(queue.Empty):
                self._take(self._outcomes.get(timeout=_NEWS_SECONDS))
            self._collect()
        events = tuple(self._events)
        self._events.clear()
        return events

    def release(self) -> None:
        """Give the memory of a host memory that is empty back to the system."""
        self.settle(_CLOSE_SECONDS)
        self._host.release()

    def settle(self, seconds: float) -> None:
        """Wait until every tier has done what it was told, at most so long."""
        deadline = time.monotonic() + seconds
        for work in self.works.values():
            work.wait_until_done(max(0.0, deadline - time.monotonic()))
        self._collect()

    def close(self) -> None:
        """Finish what was begun, and end the threads."""
        for thread in self._threads:
            thread.close(_CLOSE_SECONDS)

    def _begin(self, order: TierOrder) -> None:
        work = self.works[order.tier]
        if order.kind == "drop":
            work.delete(order.key)
            return
        loads = order.kind == "load"
        page = self._host.take(order.key) if loads else self._host.find(order.key)
        if page is None:
            self._events.append(TierEvent(order.ticket, "room" if loads else "missing"))
            return
        self._host.use(page)
        self._under_way += 1
        if loads:
            work.load(order.key, page, order.ticket)
        else:
            work.store(order.key, page, order.ticket)

    def _clear(self, generation: int) -> None:
        self._host.clear()
        for work in self.works.values():
            work.clear(generation)

    def _collect(self) -> None:
        while True:
            try:
                self._take(self._outcomes.get_nowait())
            except queue.Empty:
                return

    def _take(self, outcome: EndedTransfer) -> None:
        self._under_way -= 1
        self._host.done(outcome.page)
        if outcome.loaded:
            outcome.page.ready = not outcome.cause
            if outcome.cause:
                self._host.fail(outcome.page)
        self._events.append(TierEvent(outcome.ticket, outcome.cause, outcome.seconds))
