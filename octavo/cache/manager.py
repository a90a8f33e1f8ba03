"""Gives sequences their cache blocks, shares what may be shared, and forgets the right things first."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from octavo.cache.block import BlockHash, BlockId, CacheScope, extend_hashes, root_hash
from octavo.cache.branches import Branches
from octavo.cache.eviction import POLICIES, BlockUse
from octavo.cache.explain import MissJournal
from octavo.cache.group import KVCacheGroup
from octavo.cache.history import EvictionHistory
from octavo.cache.options import CacheOptions, CacheStats
from octavo.cache.pool import BlockPool
from octavo.cache.prefix_index import PrefixIndex
from octavo.cache.reuse import Beginning, ReuseModel, kind_of_request, kind_of_reuse
from octavo.cache.table import BlockTable, CacheTerms, NewBlocks, PrefixMatch, SequenceBlocks
from octavo.cache.tier_device import DeviceBlocks
from octavo.cache.tier_prefix import StagedPrefix
from octavo.cache.tiers import CacheTiers
from octavo.errors import ConfigError
from octavo.flow.cache_report import CacheMiss, CacheReport
from octavo.flow.plan import BlockCopy

_UNLIMITED = 1 << 60  # tokens
_MOST_REMEMBERED = 1 << 16  # evicted blocks
_NO_TERMS = CacheTerms()


class CacheManager:
    """The only part of the cache that the scheduler talks to. Ids only, never tensors.

    A block is written by one sequence until it is full; only full, computed blocks are published, and a published block
    is never written again. So whoever shares a block shares something constant. A block that is not full yet can be
    taken over from a living sequence (`fork`): it is copied in the step in which the fork first writes into it, and
    not at all when the fork begins at a block border.

    Args:
        tiers: where evicted blocks go and come back from, if anywhere.

    Raises:
        ConfigError: not even one token fits into the blocks.
    """

    def __init__(self, groups: Sequence[KVCacheGroup], options: CacheOptions, tiers: CacheTiers | None = None) -> None:
        if options.num_blocks < len(groups):
            raise ConfigError(
                f"{options.num_blocks} cache blocks are too few: a token needs {len(groups)}, one for each cache group"
            )
        self.block_size = options.block_size
        self.prefix_caching = options.prefix_caching
        self.no_blocks: NewBlocks = tuple(() for _ in groups)
        self._groups = tuple(groups)
        self._sliding = tuple(index for index, group in enumerate(groups) if group.window is not None)
        self._fingerprint = options.fingerprint
        self._index = PrefixIndex([group.tail(options.block_size) for group in groups])
        self._reuse = ReuseModel()
        policy = options.eviction if callable(options.eviction) else POLICIES[options.eviction]
        key = policy(options.num_blocks, options.block_size, self._reuse)
        budget = int(options.pin_budget * options.num_blocks)
        self._pool = BlockPool(options.num_blocks, key, self._reuse, self._evict, budget)
        self._history = EvictionHistory(min(options.num_blocks, _MOST_REMEMBERED))
        self._branches = Branches()
        self._journal = MissJournal(self._index, self._history, self._branches)
        self._taker = ""  # whose room is being made
        self.tiers = tiers
        self._generation = 0
        if tiers is not None:
            tiers.attach(DeviceBlocks(self._index, self._pool))
            self._generation = tiers.generation
        self._copies: list[BlockCopy] = []

    def open(self, scope: CacheScope | str = "", terms: CacheTerms = _NO_TERMS) -> SequenceBlocks:
        """The (empty) blocks of a new sequence.

        Args:
            scope: only sequences of equal scopes ever share a block; a text is the salt.
        """
        publish_at = self.block_size if self.prefix_caching else _UNLIMITED
        scope = CacheScope(scope) if isinstance(scope, str) else scope
        return SequenceBlocks(tuple(BlockTable() for _ in self._groups), scope, terms, 0, publish_at)

    def advance(self, now: float) -> None:
        """It is `now`, in seconds: what is kept only for a time may be over."""
        self._pool.advance(now)

    def match_prefix(self, held: SequenceBlocks, token_ids: Sequence[int], limit: int | None = None) -> PrefixMatch:
        """The longest cached prefix that every group can use, in whole blocks.

        Args:
            limit: most tokens to take from the cache. At least the last token is always left to compute.
        """
        size = self.block_size
        most = len(token_ids) - 1 if limit is None else min(limit, len(token_ids) - 1)
        if not self.prefix_caching or most < size or not len(self._index):
            held.kind = self._kind(held, 0, len(token_ids))
            return PrefixMatch(0, self.no_blocks, (0,) * len(self._groups))
        key_at, hashes = self._chain(held, token_ids), held.hashes
        length = self._index.longest(key_at, most // size)
        held.kind = self._kind(held, length, len(token_ids))
        firsts = tuple(self._index.first_needed(group, length) for group in range(len(self._groups)))
        # What a window group does not need is never read: any id stands for it.
        blocks = tuple(
            (0,) * first + tuple(self._index.block(group, hashes[index]) for index in range(first, length))
            for group, first in enumerate(firsts)
        )
        return PrefixMatch(length * size, blocks, firsts)

    def look_back(
        self,
        held: SequenceBlocks,
        token_ids: Sequence[int],
        match: PrefixMatch,
        limit: int | None = None,
        explain: bool = False,
    ) -> CacheReport | None:
        """Count what a sequence that starts with `match` did not find, by cause.

        Returns:
            What was found and why not more, if that is to be explained.
        """
        size, prompt = self.block_size, len(token_ids)
        found, usable = match.tokens // size, (prompt - 1) // size
        miss: CacheMiss | None = None
        if found < usable:
            miss = self._miss(held, token_ids, found, limit, explain)
        below = {} if self.tiers is None else self.tiers.found_in(held.hashes[:found])
        if not explain:
            return None
        counts = {"device": found - sum(below.values()), **below}
        return CacheReport(prompt, match.tokens, size, tuple((name, n) for name, n in counts.items() if n), miss)

    def stage(self, held: SequenceBlocks, token_ids: Sequence[int], limit: int | None = None) -> StagedPrefix | None:
        """What tiers hold of a waiting sequence's prefix beyond `match_prefix`, if it is worth bringing back."""
        most = len(token_ids) - 1 if limit is None else min(limit, len(token_ids) - 1)
        if self.tiers is None or not self.prefix_caching or most < self.block_size:
            return None
        key_at = self._chain(held, token_ids)
        have = self._index.longest(key_at, most // self.block_size)
        return self.tiers.stage(key_at, held.hashes, most // self.block_size, have)

    def fork(self, held: SequenceBlocks, donor: SequenceBlocks, tokens: int) -> PrefixMatch | None:
        """What a sequence that holds nothing can take over from one that is alive, up to the middle of a block.

        Args:
            donor: has computed the first `tokens` tokens of `held`'s sequence, with the same salt.

        Returns:
            None when the donor has let go of what `held` would read, or was begun before the cache was reset.
        """
        size = self.block_size
        whole, started = divmod(tokens, size)
        firsts = tuple(min(group.first_read(tokens, size), whole) for group in self._groups)
        gone = any(table.first > first for table, first in zip(donor.tables, firsts, strict=True))
        if tokens < 1 or gone or donor.generation != self._generation:
            return None
        self._refresh(held)
        held.kind = donor.kind
        if len(held.hashes) < whole:
            held.hashes[:] = donor.hashes[:whole]
        return PrefixMatch(
            tokens,
            tuple(
                (0,) * first + tuple(table.blocks[first:whole])
                for table, first in zip(donor.tables, firsts, strict=True)
            ),
            firsts,
            tuple(table.blocks[whole] for table in donor.tables) if started else (),
            forked=True,
        )

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """What has to be copied, in this order, before the next step computes anything."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def room(self, held: SequenceBlocks, start: int, match: PrefixMatch | None = None) -> int:
        """The most tokens from position `start` on that `reserve` would grant now."""
        if match is not None:
            started = match.tokens % self.block_size
            return max(0, self._tokens_in(self._left(held, match)) - started)
        self._slide(held, start)
        return held.capacity - start + self._tokens_in(self._left(held))

    def reserve(
        self, held: SequenceBlocks, start: int, count: int, match: PrefixMatch | None = None
    ) -> NewBlocks | None:
        """Make room for `count` tokens from position `start` on, in all groups or in none.

        Blocks that the windows have slid past go back to the pool first. Pinned blocks are taken when nothing else is
        held by anyone: no pin keeps the last sequence from getting on.

        Args:
            match: for a sequence that holds nothing: the cached prefix to take over, `match.tokens == start`.

        Returns:
            The entries that each group's table gained; None when there are not enough blocks.
        """
        if start + count <= held.capacity:
            return self.no_blocks
        pool, groups = self._pool, len(self._groups)
        if match is None:
            self._slide(held, start)
            length = len(held.tables[0].blocks) if groups else 0
        else:
            length = match.tokens // self.block_size
        grow = -(-(start + count) // self.block_size) - length
        if grow * groups > self._left(held, match):
            return None
        if held.capacity == 0:
            self._refresh(held)
        if match is not None:
            self._take_over(held, match)
        if grow * groups > pool.available:
            pool.yield_pins(grow * groups - pool.available)
        self._taker = held.terms.owner
        taken = pool.allocate(grow * groups)
        gained: NewBlocks = tuple(tuple(taken[group * grow : (group + 1) * grow]) for group in range(groups))
        for table, blocks in zip(held.tables, gained, strict=True):
            table.blocks.extend(blocks)
        held.capacity = (length + grow) * self.block_size
        if match is None:
            return gained
        self._copies += [
            BlockCopy(tail, fresh[0]) for tail, fresh in zip(match.tails, gained, strict=bool(match.tails))
        ]
        return tuple(cached + fresh for cached, fresh in zip(match.blocks, gained, strict=True))

    def publish(self, held: SequenceBlocks, token_ids: Sequence[int], computed: int) -> None:
        """Make the full blocks among the first `computed` tokens findable. Their contents must be there."""
        size = self.block_size
        first, last = held.publish_at // size - 1, computed // size
        held.publish_at = (last + 1) * size
        if held.generation != self._generation:
            return  # begun before the cache was reset
        for index in range(first, last):
            while len(held.hashes) <= index:
                extend_hashes(held.hashes, held.root, token_ids, size, held.scope)
            key = held.hashes[index]
            found = [
                table.blocks[index]
                for group, table in enumerate(held.tables)
                if index >= table.first and self._index.insert(group, key, table.blocks[index])
            ]
            if found:
                self._keep(held, key, index, found)
                parent = held.hashes[index - 1] if index else held.root
                self._branches.add(parent, key, token_ids[index * size : (index + 1) * size])

    def release(self, held: SequenceBlocks, forget: bool = False) -> None:
        """Give back everything. With `forget`, what the sequence published or read is not offered to others again."""
        for table in held.tables:
            blocks = table.held()
            if forget:
                for block in blocks:
                    self._forget(block)
            self._pool.release(blocks)
            table.clear()
        held.capacity = 0
        held.publish_at = self.block_size if self.prefix_caching else _UNLIMITED

    def longest_sequence(self, chunked: bool) -> int:
        """The most tokens that one sequence alone can hold; without chunks its prompt is computed at once."""
        low, high = 0, _UNLIMITED
        while high - low > 1:
            middle = (low + high) // 2
            if self.peak(middle, 1 if chunked else middle) <= self._pool.num_blocks:
                low = middle
            else:
                high = middle
        return low

    def peak(self, length: int, chunk: int) -> int:
        """Most blocks that a sequence of `length` tokens ever holds when at most `chunk` are computed at once."""
        return sum(group.peak(length, chunk, self.block_size) for group in self._groups)

    def shared(self, match: PrefixMatch) -> int:
        """How many of a match's blocks others hold at this moment: they cost nothing."""
        needed = sum(len(blocks) - first for blocks, first in zip(match.blocks, match.firsts, strict=True))
        return needed - self._revived(match)

    def victims(self, blocks: int, members: Sequence[SequenceBlocks]) -> int | None:
        """How many of `members`, the first ones first, must let go of theirs to make `blocks` more available.

        Returns:
            None when all of them together are too few. Blocks that others hold as well count for nothing.
        """
        left: dict[int, int] = {}
        for count, held in enumerate(members):
            if blocks <= 0:
                return count
            for table in held.tables:
                for block in table.held():
                    left[block] = left.get(block, self._pool.references[block]) - 1
                    blocks -= not left[block]
        return len(members) if blocks <= 0 else None

    @property
    def available(self) -> int:
        """Blocks that could be given out now."""
        return self._pool.available

    @property
    def pin_tokens(self) -> int:
        """Tokens of one prompt that may be pinned."""
        groups = max(1, len(self._groups))
        return self._pool.pins.budget // groups * self.block_size if self.prefix_caching else 0

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._pool.num_blocks

    def reset_prefix_cache(self) -> bool:
        """Forget all cached contents. Running sequences keep their blocks but never share them any more."""
        self._generation += 1
        self.forget_device()
        if self.tiers is not None:
            self.tiers.reset(self._generation)
        return True

    def forget_device(self) -> None:
        """The device's memory is about to lose its contents; tiers keep theirs. Nothing may be held."""
        self._index.clear()
        self._branches.clear()
        self._history.clear()
        self._pool.drop_all()

    def stats(self) -> CacheStats:
        """A reading."""
        pool, pins = self._pool, self._pool.pins
        used, cached = pool.referenced, pool.cached
        free = pool.num_blocks - used - cached
        counts = (pool.evictions, len(pins), pins.refused, pins.broken)
        return CacheStats(pool.num_blocks, used, cached, free, *counts, self._journal.counts())

    def _chain(self, held: SequenceBlocks, token_ids: Sequence[int]) -> Callable[[int], BlockHash]:
        """The hash of a sequence's i-th block; computed when first asked for."""
        self._refresh(held)
        hashes, size = held.hashes, self.block_size

        def key_at(index: int) -> BlockHash:
            while len(hashes) <= index:
                extend_hashes(hashes, held.root, token_ids, size, held.scope)
            return hashes[index]

        return key_at

    def _refresh(self, held: SequenceBlocks) -> None:
        """Hashes made before the last reset do not count any more."""
        if held.generation != self._generation:
            held.generation = self._generation
            fields = (self._fingerprint, str(self.block_size), str(self._generation))
            held.root = root_hash(*fields, held.scope.salt, held.scope.adapter)
            held.hashes.clear()

    def _revived(self, match: PrefixMatch) -> int:
        """How many of a match's blocks count as available now but would not when the match is taken over."""
        return sum(map(self._pool.is_available, _held_by(match)))

    def _miss(
        self, held: SequenceBlocks, token_ids: Sequence[int], found: int, limit: int | None, explain: bool
    ) -> CacheMiss:
        """Why block `found` of a prompt was not."""
        size, journal = self.block_size, self._journal
        start = found * size
        tokens = (len(token_ids) - 1) // size * size - start
        if not self.prefix_caching:
            return journal.note("off", start, tokens)
        if limit is not None and found >= limit // size:
            return journal.note("scored", start, tokens)
        key = self._chain(held, token_ids)(found)
        parent = held.hashes[found - 1] if found else held.root
        cause = journal.cause(parent, key, not found, bool(held.scope.salt))
        miss = journal.note(cause, start, tokens)
        return journal.explain(miss, parent, key, token_ids[start:], self._pool.now) if explain else miss

    def _left(self, held: SequenceBlocks, match: PrefixMatch | None = None) -> int:
        """Blocks that a sequence could be given now, when it takes over `match`."""
        pool, pins = self._pool, self._pool.pins
        left = pool.available - (0 if match is None else self._revived(match))
        if pins.resting and pool.referenced == sum(len(table.blocks) - table.first for table in held.tables):
            left += pins.resting - (0 if match is None else sum(map(pins.is_resting, _held_by(match))))
        return left

    def _keep(self, held: SequenceBlocks, key: BlockHash, index: int, blocks: Sequence[BlockId]) -> None:
        """Blocks that can be found from now on are treated as their sequence's terms say."""
        pool, terms, kind, hits = self._pool, held.terms, held.kind, 0
        lost = self._history.take(key)
        if lost is not None:  # so this is one more use of the same contents
            self._reuse.regret(lost.kind)
            hits = lost.hits + 1
            kind = kind_of_reuse(hits)
        pins = terms.retention and (index + 1) * self.block_size <= terms.pinned
        observed = True  # the first one, for all groups
        for block in blocks:
            pool.keep(block, BlockUse(index, 0, hits, kind, observed, terms.urgency))
            observed = False
            if pins:
                pool.pin(block, terms.retention)

    def _kind(self, held: SequenceBlocks, found: int, tokens: int) -> int:
        """The kind of the blocks that a prompt of `tokens` tokens fills when its first `found` blocks are cached."""
        beginning: Beginning = "new"
        if held.terms.returns:
            beginning = "returns"
        elif found:
            beginning = "branches" if self._branches.follows(held.hashes[found - 1]) else "continues"
        return kind_of_request(beginning, tokens - found * self.block_size)

    def _take_over(self, held: SequenceBlocks, match: PrefixMatch) -> None:
        terms = held.terms
        self._pool.share(_held_by(match), reused=not match.forked, urgency=terms.urgency)
        if terms.retention:
            last = terms.pinned // self.block_size
            for blocks, first in zip(match.blocks, match.firsts, strict=True):
                for block in blocks[first:last]:
                    self._pool.pin(block, terms.retention)
        for table, blocks, first in zip(held.tables, match.blocks, match.firsts, strict=True):
            table.blocks = list(blocks)
            table.first = first
        if self.prefix_caching:
            held.publish_at = (match.tokens // self.block_size + 1) * self.block_size

    def _slide(self, held: SequenceBlocks, position: int) -> None:
        """Let go of what no query from `position` on reads."""
        for group in self._sliding:
            table = held.tables[group]
            first = min(self._groups[group].first_read(position, self.block_size), len(table.blocks))
            if first > table.first:
                self._pool.release(table.blocks[table.first : first])
                table.first = first

    def _evict(self, block: BlockId, use: BlockUse) -> None:
        """A cached block is given to someone else."""
        group, key = self._index.place(block)
        if self.tiers is not None:
            self.tiers.evicted(block, group, key)
        self._history.note(key, use, self._pool.now, self._taker)
        self._unlist(block, key)

    def _forget(self, block: int) -> None:
        if block in self._index:
            group, key = self._index.place(block)
            if self.tiers is not None:
                self.tiers.forget(group, key)
            self._unlist(block, key)
            self._pool.drop(block)

    def _unlist(self, block: BlockId, key: BlockHash) -> None:
        """A block cannot be found any more; nor, when it was the last one of its hash, what it followed."""
        self._index.remove(block)
        if not self._index.holds(key):
            self._branches.remove(key)

    def _tokens_in(self, blocks: int) -> int:
        """Tokens that `blocks` can hold, when each group needs its own."""
        groups = len(self._groups)
        return blocks // groups * self.block_size if groups else _UNLIMITED


def _held_by(match: PrefixMatch) -> Iterator[BlockId]:
    """The blocks that whoever takes a match over holds."""
    return chain.from_iterable(blocks[first:] for blocks, first in zip(match.blocks, match.firsts, strict=True))
