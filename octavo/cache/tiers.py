"""Where cached blocks go when the device has no room for them, and which come back: the policy of all tiers.

Blocks leave the device through host memory, where slower tiers take them from and bring them back to. What comes back
becomes an ordinary cached block of the device first, and only once it is there may a sequence count on it. So nothing
that a tier loses, spoils or delays can reach a sequence.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from octavo.cache.block import BlockHash, BlockId
from octavo.cache.prefix import Has, KeyAt, PrefixRule, Tail
from octavo.cache.tier import HOST, HostLevel, SlowLevel, TierKey, TierReading, tier_key
from octavo.cache.tier_cost import PrefillRate
from octavo.cache.tier_device import DeviceBlocks
from octavo.cache.tier_ledger import Orders, TierLedger
from octavo.flow.plan import StepPlan
from octavo.flow.result import TierEvent

# How long a sequence waits for its blocks when nobody knows yet how long computing them takes, and at least.
_PATIENCE, _LEAST_PATIENCE = 1.0, 0.05  # seconds

# of a staged prefix: nothing (more) to wait for; what comes next needs room on the device; blocks are on their way
Progress = Literal["done", "room", "coming"]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Sizes in bytes. `tails`: see PrefixRule. `step_bytes`: most that comes back to the device in one step."""

    tails: tuple[Tail, ...]
    block_size: int
    page_bytes: int
    step_bytes: int = 64 << 20
    generation: int = 0


@dataclass(slots=True)
class StagedPrefix:
    """A waiting sequence's prefix that is on its way back to the device. Written by the CacheTiers only.

    `owner` names the sequence's request. `hashes` are the sequence's own, which only grow. `missing`: (lane, index) of
    what is not on the device yet.
    """

    owner: str
    generation: int
    hashes: Sequence[BlockHash]
    length: int  # blocks
    patience: float  # seconds that it may take once there is room on the device
    setbacks: int  # of the TierLedger, when `missing` was made
    evictions: int  # of the CacheTiers, likewise
    deadline: float = 0.0  # 0: there was no room yet
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    fetched: set[TierKey] = field(default_factory=set[TierKey])  # each comes back once


class CacheTiers:
    """Decides what is spilled, stored and brought back. Ids only, never bytes. Mutable; the CacheManager owns it.

    Args:
        host: host memory.
        slow: the tiers behind it, quickest first; each gets a copy of whatever goes to host memory.
    """

    def __init__(self, options: TierOptions, host: HostLevel, slow: Sequence[SlowLevel]) -> None:
        self.generation = options.generation
        self.evictions = 0  # cached blocks that have left the device so far
        self.prefill = PrefillRate()
        self._options = options
        self._host = host
        self._slow = tuple(slow)
        self._ledger = TierLedger(host, slow)
        self._most_fetches = max(1, options.step_bytes // options.page_bytes)
        self._rule = PrefixRule(options.tails)
        self._now = 0.0

    def attach(self, device: DeviceBlocks) -> None:
        """Whose blocks these tiers are for."""
        self._ledger.attach(device)

    def tick(self, now: float) -> None:
        """The time, in monotonic seconds."""
        self._now = now

    # --- what leaves the device --------------------------------------------------------------------------------------

    def evicted(self, block: BlockId, lane: int, key: BlockHash) -> None:
        """A cached block is about to be given to someone else: keep its contents where that is worth it."""
        self.evictions += 1
        name = tier_key(lane, key)
        self._ledger.returned.pop(name, None)
        if self._host.holds(name):
            self._host.touch(name)
            return
        if not self._host.keeps and any(level.knows(name) for level in self._slow):
            return
        tail = self._options.tails[lane]
        recompute = self.prefill.seconds(tail.tokens)
        takers = [level for level in self._slow if self._takes(level, name, tail.pages, recompute)]
        keeps = self._host.keeps and self._host.cost.worth(tail.pages, recompute)
        if keeps or takers:
            self._spill(block, name, takers)
        elif self._host.keeps:
            self._host.counters.bypassed += 1

    def comes_back(self) -> bool:
        """Whether blocks that are evicted now will come back quicker than they are computed, from some tier."""
        recompute = self.prefill.seconds(self._options.block_size)
        pages = sum(not tail.group.is_state for tail in self._options.tails)
        levels: list[HostLevel | SlowLevel] = [level for level in self._slow if level.active(self._now)]
        if self._host.keeps:
            levels.append(self._host)
        return any(level.cost.expects(pages, recompute) for level in levels)

    def save(self, into_host: bool = False) -> None:
        """Begin to store what slower tiers do not hold yet, as much as host memory has room for.

        Args:
            into_host: without slower tiers, host memory takes what it has room for.
        """
        into_host = into_host and self._host.keeps and not self._slow
        for block, lane, key in self._ledger.device.published():
            name = tier_key(lane, key)
            takers = [level for level in self._slow if level.active(self._now) and not level.knows(name)]
            takers = [level for level in takers if len(level) < level.capacity]
            page = self._host.find(name)
            if page is None and (takers or (into_host and len(self._host) < self._host.capacity)):
                if not self._spill(block, name, takers):
                    break
            elif takers and page is not None and page.ready:
                for level in takers:
                    self._ledger.store(name, level)

    def forget(self, lane: int, key: BlockHash) -> None:
        """These contents must not be offered to anyone again."""
        self._ledger.forget(tier_key(lane, key))

    def reset(self, generation: int) -> None:
        """Forget everything; what comes from now on is of `generation`."""
        self.generation = generation
        self._ledger.reset(generation)

    def empty_host(self) -> None:
        """Let host memory go, if slower tiers have what it holds."""
        if self._slow:
            self._ledger.empty_host()

    def _takes(self, level: SlowLevel, name: TierKey, pages: int, recompute: float | None) -> bool:
        """A tier should get a copy of one of `pages` that save `recompute` seconds together."""
        if level.knows(name):
            return False
        if not level.active(self._now):
            level.counters.refusals["resting"] += 1
            return False
        if not level.cost.worth(pages, recompute):
            level.counters.bypassed += 1
            return False
        return True

    def _spill(self, block: BlockId, name: TierKey, takers: Iterable[SlowLevel]) -> bool:
        if not self._ledger.spill(block, name):
            return False
        for level in takers:
            self._ledger.store(name, level)
        return True

    # --- what comes back ---------------------------------------------------------------------------------------------

    def stage(
        self, owner: str, key_at: KeyAt, hashes: Sequence[BlockHash], limit: int, have: int
    ) -> StagedPrefix | None:
        """A sequence waits. If tiers hold more of its prefix than the device, and bringing that back is quicker than
        computing it: what has to come back, which `advance` makes happen.

        Args:
            owner: names its request.
            key_at: the hash of its i-th block; extends `hashes`.
            limit: most blocks.
            have: blocks of the prefix that the device holds.
        """
        if not len(self._host) and not any(map(len, self._slow)):
            return None
        usable = self._usable()
        for levels in (usable, []) if usable else ([],):
            length = self._rule.longest(self._holders(levels), key_at, limit)
            if levels is usable and length < limit:
                self._count_absent()
            tokens = (length - have) * self._options.block_size
            if tokens <= 0:
                return None
            estimate = self.prefill.seconds(tokens)
            patience = _PATIENCE if estimate is None else max(_LEAST_PATIENCE, estimate)
            seen = self._ledger.setbacks, self.evictions
            staged = StagedPrefix(owner, self.generation, hashes, length, patience, *seen)
            staged.missing = self._missing(staged)
            if self._worth(staged, tokens):
                return staged
        return None

    def advance(self, staged: StagedPrefix, spare: int) -> Progress:
        """Order what can be ordered now of a prefix.

        Args:
            spare: device blocks that may be used; with too few of them only slower tiers get to work.
        """
        if staged.generation != self.generation:
            return "done"
        if staged.deadline and self._now > staged.deadline:
            self._count_late(staged)
            return "done"
        if staged.setbacks != self._ledger.setbacks or staged.evictions != self.evictions:
            self._look_again(staged)
        staged.missing = [place for place in staged.missing if self._on_device(staged, place) is None]
        there = self._there(staged)
        fits = len(staged.missing) <= spare - self._ledger.device.idle(there)
        if fits and not staged.deadline:  # only now it is this that the sequence waits for
            staged.deadline = self._now + staged.patience
            self._ledger.device.touch(there)
        names = [tier_key(lane, staged.hashes[index]) for lane, index in staged.missing]
        for name in names:
            if self._host.holds(name):
                self._host.touch(name)
        keep = frozenset(names)  # what is there already must not make room for the rest
        coming = [
            self._bring(staged, name, index, keep, fits) for name, (_, index) in zip(names, staged.missing, strict=True)
        ]
        if not any(coming):
            return "done"
        return "coming" if fits else "room"

    def found_in(self, hashes: Iterable[BlockHash]) -> dict[str, int]:
        """How many blocks of a prefix that is used now came back for it, by the tier that had them; told once."""
        returned = self._ledger.returned
        if not returned:
            return {}
        names = [tier_key(0, key) for key in hashes]  # what the first lane had stands for all
        return dict(Counter(returned.pop(name) for name in names if name in returned))

    def _usable(self) -> list[SlowLevel]:
        return [level for level in self._slow if level.active(self._now)]

    def _holders(self, levels: Sequence[SlowLevel]) -> list[Has]:
        """For each lane, whether a block is on the device, in host memory or in one of `levels`."""
        device = self._ledger.device

        def holds(lane: int, key: BlockHash) -> bool:
            if device.find(lane, key) is not None:
                return True
            name = tier_key(lane, key)
            return self._host.holds(name) or any(level.holds(name) for level in levels)

        return [partial(holds, lane) for lane in range(len(self._options.tails))]

    def _on_device(self, staged: StagedPrefix, place: tuple[int, int]) -> BlockId | None:
        lane, index = place
        return self._ledger.device.find(lane, staged.hashes[index])

    def _missing(self, staged: StagedPrefix) -> list[tuple[int, int]]:
        return [place for place in self._rule.needed(staged.length) if self._on_device(staged, place) is None]

    def _there(self, staged: StagedPrefix) -> list[BlockId]:
        """The blocks of the prefix that the device holds."""
        found = (self._on_device(staged, place) for place in self._rule.needed(staged.length))
        return [block for block in found if block is not None]

    def _source(self, name: TierKey) -> SlowLevel | None:
        """The quickest tier behind host memory that has a block."""
        return next((level for level in self._usable() if level.holds(name)), None)

    def _worth(self, staged: StagedPrefix, tokens: int) -> bool:
        """Bringing back what is missing is quicker than computing `tokens`."""
        recompute = self.prefill.seconds(tokens)
        counts: Counter[str] = Counter()
        for lane, index in staged.missing:
            name = tier_key(lane, staged.hashes[index])
            source = None if self._host.holds(name) else self._source(name)
            counts[HOST if source is None else source.name] += 1
        worth = True
        for level in (self._host, *self._slow):
            count = counts[level.name]
            if count and not level.cost.worth(count, recompute):
                level.counters.bypassed += count
                worth = False
        return worth

    def _look_again(self, staged: StagedPrefix) -> None:
        """Something that could be had is gone, or something that was on the device is not there any more."""
        staged.setbacks, staged.evictions = self._ledger.setbacks, self.evictions
        staged.length = self._rule.longest(self._holders(self._usable()), staged.hashes.__getitem__, staged.length)
        staged.missing = self._missing(staged)

    def _bring(self, staged: StagedPrefix, name: TierKey, index: int, keep: Container[TierKey], fits: bool) -> bool:
        """One block's next step towards the device. False when there is none to wait for."""
        page = self._host.find(name)
        if page is None:
            source = self._source(name)
            # Without room: what is under way makes some when it is over.
            return source is not None and (self._ledger.load(name, source, keep) or self._ledger.busy)
        if page.arriving or self._ledger.is_fetching(name):
            return True
        if name in staged.fetched:
            return False  # it was there already, and had to go again
        if fits and self._ledger.fetches < self._most_fetches:
            staged.fetched.add(name)
            self._ledger.fetch(name, index, staged.owner)
        return True

    def _count_absent(self) -> None:
        """A prefix ends before its sequence does: no tier has what follows."""
        for level in (self._host, *self._slow):
            level.counters.misses["absent"] += 1

    def _count_late(self, staged: StagedPrefix) -> None:
        for lane, index in staged.missing:
            name = tier_key(lane, staged.hashes[index])
            page = self._host.find(name)
            source = None if page is not None and page.ready else self._source(name)
            (self._host if source is None else source).counters.misses["late"] += 1

    # --- plans and results -------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something was ordered whose outcome is not known yet."""
        return self._ledger.busy

    def take(self) -> Orders:
        """What the next plan must order."""
        return self._ledger.take()

    def commit(self, events: Iterable[TierEvent]) -> None:
        """Take note of how things went. What is not known (any more) counts for nothing."""
        self._ledger.commit(events, self._now)

    def fail(self, plan: StepPlan) -> None:
        """A step failed: what it ordered is undone."""
        self._ledger.fail(plan, self._now)

    def readings(self) -> tuple[TierReading, ...]:
        """What each tier holds and did, host memory first."""
        size = self._options.page_bytes
        return (self._host.reading(size), *(level.reading(size, self._now) for level in self._slow))
