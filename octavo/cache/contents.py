"""Which blocks' contents can be found, how they are treated while they are, and what is remembered when they go."""

from collections.abc import Sequence

from octavo.cache.block import BlockHash, BlockId
from octavo.cache.branches import Branches
from octavo.cache.eviction import POLICIES, BlockUse
from octavo.cache.explain import MissJournal
from octavo.cache.history import EvictionHistory
from octavo.cache.options import CacheOptions, CacheStats
from octavo.cache.pool import BlockPool
from octavo.cache.prefix import Tail
from octavo.cache.prefix_index import PrefixIndex
from octavo.cache.reuse import Beginning, Fill, ReuseModel, kind_of_request, kind_of_reuse
from octavo.cache.table import CacheTerms
from octavo.cache.tiers import CacheTiers

_MOST_REMEMBERED = 1 << 16  # evicted blocks


class CachedContents:
    """The pool's blocks and what is known of their contents. Mutable; the CacheManager owns it.

    Args:
        tails: for each lane, what of a prefix it needs; see PrefixRule.
        tiers: where evicted contents go, if anywhere.
    """

    def __init__(self, tails: Sequence[Tail], options: CacheOptions, tiers: CacheTiers | None) -> None:
        self.index = PrefixIndex(tails)
        self.branches = Branches()
        self._reuse = ReuseModel()
        policy = options.eviction if callable(options.eviction) else POLICIES[options.eviction]
        key = policy(options.num_blocks, options.block_size, self._reuse)
        budget = int(options.pin_budget * options.num_blocks)
        self.pool = BlockPool(options.num_blocks, key, self._reuse, self._evict, budget)
        self._history = EvictionHistory(min(options.num_blocks, _MOST_REMEMBERED))
        self.journal = MissJournal(self.index, self._history, self.branches)
        self._states = tuple(lane for lane, tail in enumerate(tails) if tail.group.is_state)
        self._tiers = tiers

    def keep(self, terms: CacheTerms, fill: Fill, key: BlockHash, depth: int, blocks: Sequence[BlockId]) -> None:
        """Blocks that were inserted into the index are treated as their sequence's terms say.

        Args:
            fill: what they are, before anyone has reused them.
            depth: how many blocks stand before these in their sequence.
        """
        (kind, weight), hits = fill, 0
        lost = self._history.take(key)
        if lost is not None:  # so this is one more use of the same contents
            self._reuse.regret(lost.kind, lost.weight)
            hits = lost.hits + 1
            kind = kind_of_reuse(hits)
        urgency, keep = terms.urgency, self.pool.keep
        for block in blocks:
            keep(block, BlockUse(depth, 0, hits, kind, weight, urgency))
            weight = 0.0  # the first one stands for all groups

    def pin(self, blocks: Sequence[BlockId], seconds: float) -> None:
        """Keep these, which are read, for some time after their last use, as far as the budget goes."""
        for block in blocks:
            self.pool.pin(block, seconds)

    def fill_of(self, terms: CacheTerms, last: BlockHash | None, new_tokens: int, block_size: int) -> Fill:
        """What blocks a sequence fills.

        Args:
            last: the last block of its prefix that is cached.
            new_tokens: of its prompt, beyond that.
        """
        beginning: Beginning = "new"
        if terms.returns:
            beginning = "returns"
        elif last is not None:
            beginning = "branches" if self.branches.follows(last) else "continues"
        return Fill(kind_of_request(beginning, new_tokens), 1.0 / max(1, new_tokens // block_size))

    def overwrite(self, blocks: Sequence[BlockId]) -> None:
        """Their only reader is going to write into blocks that may be findable: as if they were evicted."""
        for block in blocks:
            if block in self.index:
                self._drop(block, *self.index.place(block))

    def forget(self, blocks: Sequence[BlockId]) -> None:
        """What stands in these must not be offered to anyone again."""
        for block in blocks:
            if block in self.index:
                lane, key = self.index.place(block)
                if self._tiers is not None:
                    self._tiers.forget(lane, key)
                self._unlist(block, key)
                self.pool.drop(block)

    def clear(self) -> None:
        """Nothing can be found any more."""
        self.index.clear()
        self.branches.clear()
        self._history.clear()
        self.pool.drop_all()

    def stats(self) -> CacheStats:
        """A reading."""
        pool, pins = self.pool, self.pool.pins
        used, cached = pool.referenced, pool.cached
        free = pool.num_blocks - used - cached
        counts = (pool.evictions, len(pins), pins.refused, pins.broken)
        return CacheStats(pool.num_blocks, used, cached, free, *counts, self.journal.counts())

    def _evict(self, block: BlockId, use: BlockUse, taker: str) -> None:
        """A cached block is given to someone else."""
        lane, key = self.index.place(block)
        if self._tiers is not None:
            self._tiers.evicted(block, lane, key)
        self._history.note(key, use, self.pool.now, taker)
        self._unlist(block, key)
        if lane in self._states:
            self._drop_rest(key)

    def _drop_rest(self, key: BlockHash) -> None:
        """A recurrent state that lacks a page is of no use: its other pages become free."""
        for lane in self._states:
            block = self.index.find(lane, key)
            if block is not None and self.pool.is_available(block):
                self._drop(block, lane, key)

    def _drop(self, block: BlockId, lane: int, key: BlockHash) -> None:
        """A block's contents go, other than by an eviction: tiers may keep them."""
        if self._tiers is not None:
            self._tiers.evicted(block, lane, key)
        self._unlist(block, key)
        self.pool.drop(block)

    def _unlist(self, block: BlockId, key: BlockHash) -> None:
        """A block cannot be found any more; nor, when it was the last one of its hash, what it followed."""
        self.index.remove(block)
        if not self.index.holds(key):
            self.branches.remove(key)
