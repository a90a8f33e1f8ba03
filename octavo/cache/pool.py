"""Who holds which block: a block is referenced, cached (unreferenced but worth keeping) or free, never two of these."""

from collections.abc import Callable, Iterable, Sequence

from octavo.cache.block import BlockId
from octavo.cache.eviction import BlockUse, EvictionKey, EvictionOrder, Score
from octavo.cache.pins import Pins
from octavo.cache.reuse import ReuseModel, kind_of_reuse


class BlockPool:
    """All blocks of one byte size. Ids only, no contents. Mutable; the CacheManager owns it.

    Args:
        num_blocks: ids are 0 .. num_blocks - 1.
        key: the policy: which cached block is evicted first. Read when a block loses its last reader.
        reuse: told how often blocks come back.
        forget: told of every evicted block, its use and who takes it, before it is given to them.
        pin_budget: most blocks that may be pinned.
    """

    def __init__(
        self,
        num_blocks: int,
        key: EvictionKey,
        reuse: ReuseModel,
        forget: Callable[[BlockId, BlockUse, str], None],
        pin_budget: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.evictions = 0
        self.now = 0.0  # seconds; see `advance`
        self.clock = 0  # blocks taken and readers gone
        self.pins = Pins(pin_budget)
        self.references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is warm in the CPU's cache
        self._uses: dict[BlockId, BlockUse] = {}  # of every block with cached contents, referenced or not
        self._order = EvictionOrder()
        self._key = key
        self._reuse = reuse
        self._forget = forget

    @property
    def available(self) -> int:
        """Blocks that could be allocated now. Pinned ones are not among them."""
        return len(self._free) + len(self._order)

    @property
    def cached(self) -> int:
        """Unreferenced blocks with cached contents."""
        return len(self._order) + self.pins.resting

    @property
    def referenced(self) -> int:
        """Blocks with readers."""
        return self.num_blocks - len(self._free) - len(self._order) - self.pins.resting

    def is_available(self, block: BlockId) -> bool:
        """The block counts among those that are."""
        return self.references[block] == 0 and not self.pins.is_resting(block)

    def is_pinned(self, block: BlockId) -> bool:
        """The block's contents are to stay for some time, whether someone reads them or not."""
        use = self._uses.get(block)
        return use is not None and bool(use.retention)

    def advance(self, now: float) -> None:
        """It is `now` (seconds, never less than before): pins whose time is over become usual cached blocks."""
        self.now = now
        while (block := self.pins.due(now)) is not None:
            self._unpin(block)

    def yield_pins(self, count: int) -> None:
        """Make `count` <= `pins.resting` more blocks available, those first whose time is over first."""
        for _ in range(count):
            self._unpin(self.pins.soonest())

    def allocate(self, count: int, taker: str = "") -> list[BlockId]:
        """Take `count` <= `available` blocks, one reference each; free ones first, then the least worth keeping.

        Args:
            taker: whose room is made; see EvictionHistory.
        """
        self.clock += count
        free = self._free
        taken = free[len(free) - count :] if count <= len(free) else free[:]
        del free[len(free) - len(taken) :]
        for _ in range(count - len(taken)):
            if free:  # by an eviction that made others worthless
                taken.append(free.pop())
                continue
            block = self._order.pop()
            use = self._uses.pop(block)
            if use.weight:
                self._reuse.note(use.kind, False, use.weight)
            self._forget(block, use, taker)
            self.evictions += 1
            taken.append(block)
        for block in taken:
            self.references[block] = 1
        return taken

    def share(
        self, blocks: Iterable[BlockId], reused: bool = True, urgency: int | None = None, weight: float = 1.0
    ) -> None:
        """One more reader for each of these blocks; they are cached or have readers.

        Args:
            reused: it counts as a use; else more readers of one use.
            urgency: of the reader.
            weight: of what becomes of each of them from now on, see BlockUse.
        """
        references, uses, pins = self.references, self._uses, self.pins
        for block in blocks:
            if references[block] == 0:
                if pins.is_resting(block):
                    pins.wake(block)
                else:
                    self._order.remove(block)
            references[block] += 1
            use = uses.get(block)
            if use is not None and reused:
                if use.weight:
                    self._reuse.note(use.kind, True, use.weight)
                    use.weight = weight
                use.hits += 1
                use.kind = kind_of_reuse(use.hits)
                if urgency is not None and urgency > use.urgency:
                    use.urgency = urgency

    def release(self, blocks: Sequence[BlockId]) -> None:
        """One reader less for each; a block without readers is cached when it was kept, else free.

        Args:
            blocks: in the order of their sequence.
        """
        self.clock += 1
        references = self.references
        score: Score = ()
        for block in reversed(blocks):
            left = references[block] - 1
            references[block] = left
            if left == 0:
                use = self._uses.get(block)
                if use is None:
                    self._free.append(block)
                else:
                    score = self._put_away(block, use, score)

    def keep(self, block: BlockId, use: BlockUse) -> None:
        """The block's contents can be found now. The block is read."""
        self._uses[block] = use

    def pin(self, block: BlockId, seconds: float) -> bool:
        """Keep the contents of a block that is read for `seconds` after its last use.

        Returns:
            False when no more may be pinned, or the contents cannot be found.
        """
        use = self._uses.get(block)
        return use is not None and self.pins.grant(use, seconds)

    def depths(self) -> dict[BlockId, int]:
        """How many blocks stand before each block with cached contents, in its chain."""
        return {block: use.depth for block, use in self._uses.items()}

    def drop(self, block: BlockId) -> None:
        """The block's contents cannot be found any more."""
        use = self._uses.pop(block)
        resting = self.pins.is_resting(block)
        if use.retention:
            self.pins.drop(block, use)
        if self.references[block] == 0:
            if not resting:
                self._order.remove(block)
            self._free.append(block)

    def drop_all(self) -> None:
        """No contents can be found any more."""
        self._uses.clear()
        self._free.extend(self._order.clear())
        self._free.extend(self.pins.clear())

    def _put_away(self, block: BlockId, use: BlockUse, least: Score) -> Score:
        """A block with cached contents lost its last reader. Its score is at least `least`, and is returned."""
        use.last = self.clock
        use.used_at = self.now
        use.score = max(use.score, self._key(use), least)
        if use.retention:
            self.pins.rest(block, use, self.now)
        else:
            self._order.add(block, use)
        return use.score

    def _unpin(self, block: BlockId) -> None:
        use = self._uses[block]
        self.pins.drop(block, use)
        self._order.add(block, use)
