"""What is under way between the tiers: every transfer gets a ticket, and its outcome decides what is where."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from octavo.cache.block import BlockId
from octavo.cache.tier import HOST, HostLevel, HostPage, SlowLevel, TierKey, split_key
from octavo.cache.tier_device import DeviceBlocks
from octavo.flow.plan import BlockFetch, BlockSpill, StepPlan, TierOrder
from octavo.flow.result import TierEvent

Orders = tuple[tuple[BlockSpill, ...], tuple[BlockFetch, ...], tuple[TierOrder, ...]]


@dataclass(slots=True)
class _Ticket:
    """Something under way. `void`: what it brings is not wanted any more."""

    kind: str  # "spill", "fetch", "load" or "store"
    key: TierKey
    page: HostPage
    level: SlowLevel | None = None  # of a load or store
    block: BlockId = -1  # of a fetch
    index: int = 0
    void: bool = False


class TierLedger:
    """Begins transfers, and settles them when their outcome is known. Mutable; the CacheTiers own it."""

    def __init__(self, host: HostLevel, slow: Sequence[SlowLevel]) -> None:
        self.setbacks = 0  # how often something that could be had turned out not to be
        self.returned: dict[TierKey, str] = {}  # where blocks on the device came back from, until someone uses them
        self._host = host
        self._slow = tuple(slow)
        self._device: DeviceBlocks | None = None
        self._tickets: dict[int, _Ticket] = {}
        self._fetching: set[TierKey] = set()
        self._next = 0
        self._spills: dict[TierKey, BlockSpill] = {}
        self._fetches: list[BlockFetch] = []
        self._orders = [TierOrder("drop", level.name, key) for level in self._slow for key in level.surplus()]

    def attach(self, device: DeviceBlocks) -> None:
        """Whose blocks these tiers are for."""
        self._device = device

    @property
    def device(self) -> DeviceBlocks:
        """What was attached."""
        assert self._device is not None, "attach comes first"
        return self._device

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return bool(self._tickets)

    @property
    def fetches(self) -> int:
        """Blocks that the next plan brings back."""
        return len(self._fetches)

    def is_fetching(self, key: TierKey) -> bool:
        """The contents are on their way to the device."""
        return key in self._fetching

    # --- beginning ---------------------------------------------------------------------------------------------------

    def spill(self, block: BlockId, key: TierKey) -> bool:
        """Take a block's contents to host memory; false when there is no room."""
        page = self._page(key)
        if page is None:
            self._host.counters.refusals["room"] += 1
            return False
        self._spills[key] = BlockSpill(block, key, self._open(_Ticket("spill", key, page)))
        return True

    def fetch(self, key: TierKey, index: int, taker: str) -> None:
        """Bring contents that are in host memory back; they are the `index`-th block of request `taker`'s prefix."""
        page = self._host.find(key)
        assert page is not None
        assert page.ready
        page.users += 1  # before room is made for what the block holds now
        self._fetching.add(key)
        block = self.device.take(taker)
        self._fetches.append(BlockFetch(key, block, self._open(_Ticket("fetch", key, page, block=block, index=index))))

    def load(self, key: TierKey, level: SlowLevel, keep: Container[TierKey]) -> bool:
        """Bring contents from a slower tier to host memory; false when there is no room beside `keep`."""
        page = self._page(key, keep)
        if page is None:
            return False
        level.touch(key)
        self._orders.append(TierOrder("load", level.name, key, self._open(_Ticket("load", key, page, level))))
        return True

    def store(self, key: TierKey, level: SlowLevel) -> None:
        """Copy contents that are in host memory, or on their way there, to a slower tier, if it has room."""
        page = self._host.find(key)
        room, victim = level.room()
        if victim is not None:
            self._orders.append(TierOrder("drop", level.name, victim))
        if not room or page is None:
            level.counters.refusals["room"] += 1
            return
        level.add(key)
        page.users += 1
        self._orders.append(TierOrder("store", level.name, key, self._open(_Ticket("store", key, page, level))))

    def forget(self, key: TierKey) -> None:
        """These contents must not come back from anywhere."""
        self.setbacks += 1
        for ticket in self._tickets.values():
            ticket.void |= ticket.kind == "fetch" and ticket.key == key
        self._spills.pop(key, None)
        if self._host.remove(key):
            self._orders.append(TierOrder("drop", HOST, key))
        for level in self._slow:
            if level.knows(key):
                self.drop(key, level)

    def drop(self, key: TierKey, level: SlowLevel) -> None:
        """Forget contents in a slower tier."""
        level.remove(key)
        self._orders.append(TierOrder("drop", level.name, key))

    def reset(self, generation: int) -> None:
        """Forget everything; what comes from now on is of `generation`."""
        self.setbacks += 1
        for fetch in self._fetches:  # no plan has ordered them
            del self._tickets[fetch.ticket]
            self._fetching.discard(fetch.key)
            self.device.give_back(fetch.block)
        # What is under way to the device still has its block; everything else is nobody's business any more.
        self._tickets = {number: ticket for number, ticket in self._tickets.items() if ticket.kind == "fetch"}
        for ticket in self._tickets.values():
            ticket.void = True
        self._spills.clear()
        self._fetches.clear()
        self.returned.clear()
        self._host.clear()
        for level in self._slow:
            level.clear()
        self._orders = [TierOrder("clear", HOST, generation=generation)]

    def empty_host(self) -> None:
        """Let host memory go; what slower tiers hold stays."""
        self.setbacks += 1
        for key in self._host.idle():
            self._host.remove(key)
            self._orders.append(TierOrder("drop", HOST, key))

    def take(self) -> Orders:
        """What the next plan must order."""
        taken = tuple(self._spills.values()), tuple(self._fetches), tuple(self._orders)
        self._spills.clear()
        self._fetches.clear()
        self._orders.clear()
        return taken

    def _page(self, key: TierKey, keep: Container[TierKey] = ()) -> HostPage | None:
        room, victim = self._host.room(keep)
        if victim is not None:
            self._orders.append(TierOrder("drop", HOST, victim))
        return self._host.add(key) if room else None

    def _open(self, ticket: _Ticket) -> int:
        self._next += 1
        self._tickets[self._next] = ticket
        return self._next

    # --- settling ----------------------------------------------------------------------------------------------------

    def commit(self, events: Iterable[TierEvent], now: float) -> None:
        """Take note of how things went. What is not known (any more) counts for nothing."""
        for event in events:
            ticket = self._tickets.pop(event.ticket, None)
            if ticket is not None:
                self._settle(ticket, event, now)

    def fail(self, plan: StepPlan, now: float) -> None:
        """A step failed: nobody knows what became of what it ordered, so it is undone."""
        for part in (*plan.spills, *plan.fetches, *plan.orders):
            ticket = self._tickets.pop(part.ticket, None)
            if ticket is None:
                continue
            self._settle(ticket, TierEvent(part.ticket, "step"), now)
            if ticket.level is not None:
                self.drop(ticket.key, ticket.level)
            if ticket.kind != "store":
                self._orders.append(TierOrder("drop", HOST, ticket.key))

    def _settle(self, ticket: _Ticket, event: TierEvent, now: float) -> None:
        page = ticket.page
        if ticket.kind == "spill":
            self._settle_spill(ticket, event)
        elif ticket.kind == "fetch":
            page.users -= 1
            self._settle_fetch(ticket, event)
        elif ticket.level is not None and ticket.kind == "load":
            self._settle_load(ticket, ticket.level, event, now)
        elif ticket.level is not None:
            page.users -= 1
            _settle_store(ticket.key, ticket.level, event, now)

    def _settle_spill(self, ticket: _Ticket, event: TierEvent) -> None:
        ticket.page.arriving = False
        if event.ok:
            self._host.counters.written_pages += 1
        else:
            self._lose(ticket)
            self._host.counters.refusals[event.cause] += 1

    def _settle_fetch(self, ticket: _Ticket, event: TierEvent) -> None:
        self._fetching.discard(ticket.key)
        if ticket.void or not event.ok:
            self.device.give_back(ticket.block)
            if not event.ok:
                self._lose(ticket)
                self._host.counters.misses[event.cause] += 1
            return
        lane, key = split_key(ticket.key)
        self.device.adopt(lane, key, ticket.block, ticket.index)
        self._host.cost.observe(event.seconds)
        self._host.counters.read_pages += 1
        self.returned[ticket.key] = ticket.page.origin
        for level in (self._host, *self._slow):
            level.counters.hits += level.name == ticket.page.origin
        ticket.page.origin = HOST

    def _settle_load(self, ticket: _Ticket, level: SlowLevel, event: TierEvent, now: float) -> None:
        ticket.page.arriving = False
        if event.ok:
            level.succeeded()
            level.cost.observe(event.seconds)
            level.counters.read_pages += 1
            ticket.page.origin = level.name
            return
        self._lose(ticket)
        level.counters.misses[event.cause] += 1
        if event.cause == "error":
            level.failed(now)
        if event.cause != "room":  # whatever is there is not what it should be
            self.drop(ticket.key, level)

    def _lose(self, ticket: _Ticket) -> None:
        """The page's contents did not come, or are gone."""
        self.setbacks += 1
        if self._host.find(ticket.key) is ticket.page:
            self._host.remove(ticket.key)


def _settle_store(key: TierKey, level: SlowLevel, event: TierEvent, now: float) -> None:
    if event.ok:
        level.succeeded()
        level.arrived(key)
        level.counters.written_pages += 1
        return
    level.remove(key)
    level.counters.refusals[event.cause] += 1
    if event.cause in ("full", "error"):
        level.failed(now)
