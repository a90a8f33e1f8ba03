"""Gives sequences their cache blocks, shares what may be shared, and takes back what is not read any more."""

from collections.abc import Sequence

from octavo.cache.block import BlockHash, BlockId, CacheScope, extend_hashes, root_hash
from octavo.cache.contents import CachedContents
from octavo.cache.group import KVCacheGroup, state_interval
from octavo.cache.options import CacheOptions, CacheStats
from octavo.cache.prefix import KeyAt, tails_of
from octavo.cache.reuse import UNKNOWN
from octavo.cache.state import StateKeeper
from octavo.cache.table import BlockTable, CacheTerms, NewBlocks, PrefixMatch, SequenceBlocks
from octavo.cache.tier_device import DeviceBlocks
from octavo.cache.tiers import CacheTiers, StagedPrefix
from octavo.errors import ConfigError
from octavo.flow.cache_report import CacheMiss, CacheReport
from octavo.flow.plan import BlockCopy

_UNLIMITED = 1 << 60  # tokens
_NO_TERMS = CacheTerms()


class CacheManager:
    """The only part of the cache that the scheduler talks to. Ids only, never tensors.

    A block is written by one sequence until it is full; only full, computed blocks are published, and a published block
    is never written again. So whoever shares a block shares something constant. A block that is not full yet can be
    taken over from a living sequence (`fork`): it is copied in the step in which the fork first writes into it, and
    not at all when the fork begins at a block border. Recurrent states have rules of their own: see state.py.

    Args:
        groups: at most one of recurrent states, the last one.
        tiers: where evicted blocks go and come back from, if anywhere.

    Raises:
        ConfigError: not even one token fits into the blocks.
    """

    def __init__(self, groups: Sequence[KVCacheGroup], options: CacheOptions, tiers: CacheTiers | None = None) -> None:
        size, interval = options.block_size, options.state_interval or state_interval(groups, options.block_size)
        least = sum(group.pages for group in groups)
        if options.num_blocks < least:
            raise ConfigError(
                f"{options.num_blocks} cache blocks are too few: a token needs {least}, one for each cache group"
                f"{' and those of a recurrent state' if interval else ''}"
            )
        self.block_size = size
        self.prefix_caching = options.prefix_caching
        self.no_blocks: NewBlocks = tuple(() for _ in groups)
        self.tiers = tiers
        self._groups = tuple(group for group in groups if not group.is_state)
        self._sliding = _sliding(self._groups)
        self._no_match = PrefixMatch(0, ((),) * len(self._groups), (0,) * len(self._groups))
        self._fingerprint = options.fingerprint
        self._contents = CachedContents(tails_of(groups, size, interval), options, tiers)
        self._pool, self._index = self._contents.pool, self._contents.index
        self._states: StateKeeper | None = None
        for group in groups[len(self._groups) :]:
            self._states = StateKeeper(group, self._contents, size, interval, options.prefix_caching)
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
        return SequenceBlocks(tuple(BlockTable() for _ in self._groups), scope, terms, UNKNOWN, publish_at)

    def advance(self, now: float) -> None:
        """It is `now`, in seconds: what is kept only for a time may be over."""
        self._pool.advance(now)

    # --- what need not be computed -----------------------------------------------------------------------------------

    def match_prefix(self, held: SequenceBlocks, token_ids: Sequence[int], limit: int | None = None) -> PrefixMatch:
        """The longest cached prefix that every group can use, in whole blocks.

        Args:
            limit: most tokens to take from the cache. At least the last token is always left to compute.
        """
        size, index = self.block_size, self._index
        most = self._findable(token_ids, limit)
        if not self.prefix_caching or not most or not len(index):
            self._note_found(held, token_ids, 0, 0)
            return self._no_match
        key_at, hashes = self._chain(held, token_ids), held.hashes
        length = index.longest(key_at, most)
        reach = length if self._states is None or not self._groups else index.longest_keys(key_at, most)
        self._note_found(held, token_ids, length, reach)
        if not length:
            return self._no_match
        firsts = tuple(group.first_needed(length, size) for group in self._groups)
        # What a window group does not need is never read: any id stands for it.
        blocks = tuple(
            (0,) * first + tuple(index.block(group, hashes[entry]) for entry in range(first, length))
            for group, first in enumerate(firsts)
        )
        first = len(self._groups)
        pages = 0 if self._states is None else self._states.pages
        state = tuple(index.block(lane, hashes[length - 1]) for lane in range(first, first + pages))
        return PrefixMatch(length * size, blocks, firsts, state=state)

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
        found, usable = match.tokens // size, self._findable(token_ids, None)
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
        most = self._findable(token_ids, limit)
        if self.tiers is None or not self.prefix_caching or not most:
            return None
        key_at = self._chain(held, token_ids)
        have = self._index.longest(key_at, most)
        return self.tiers.stage(held.terms.owner, key_at, held.hashes, most, have)

    def fork(
        self, held: SequenceBlocks, donor: SequenceBlocks, tokens: int, reached: int | None = None
    ) -> PrefixMatch | None:
        """What a sequence that holds nothing can take over from one that is alive, up to the middle of a block.

        Args:
            donor: has computed the first `tokens` tokens of `held`'s sequence, with the same salt.
            reached: tokens that it will have computed when blocks are copied (None: no more).

        Returns:
            None when the donor has let go of what `held` would read, or was begun before the cache was reset.
        """
        size = self.block_size
        whole, started = divmod(tokens, size)
        firsts = tuple(min(group.first_read(tokens, size), whole) for group in self._groups)
        gone = any(table.first > first for table, first in zip(donor.tables, firsts, strict=True))
        if tokens < 1 or gone or donor.generation != self._generation:
            return None
        state: tuple[BlockId, ...] = ()
        moves = False
        if self._states is not None:
            found = self._states.of_donor(donor, tokens, tokens if reached is None else reached)
            if found is None:
                return None
            state, moves = found
        self._refresh(held)
        held.fill = donor.fill
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
            state=state,
            state_moves=moves,
        )

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """What has to be copied, in this order, before the next step computes anything."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    # --- blocks for what is computed ---------------------------------------------------------------------------------

    def room(self, held: SequenceBlocks, start: int, match: PrefixMatch | None = None) -> int:
        """The most tokens from position `start` on that `reserve` would grant now."""
        if match is not None:
            return max(0, self._room(held, match) - match.tokens % self.block_size)
        self._slide(held, start)
        return held.capacity - start + self._room(held, None)

    def until_state(self, held: SequenceBlocks, start: int, count: int) -> int:
        """How many of `count` tokens from position `start` on a step should compute, so that it ends with a recurrent
        state that is worth keeping, if there is one on the way."""
        return count if self._states is None else self._states.until_kept(held, start, count)

    def reserve(
        self, held: SequenceBlocks, start: int, count: int, match: PrefixMatch | None = None
    ) -> NewBlocks | None:
        """Make room for `count` tokens from position `start` on, in all groups or in none.

        Blocks that the windows have slid past go back to the pool first. Pinned blocks are taken when nothing else is
        held by anyone: no pin keeps the last sequence from getting on.

        Args:
            match: for a sequence that holds nothing: the cached prefix to take over, `match.tokens == start`.

        Returns:
            The entries that each group's table gained (of states, see PlannedRow); None when there are not enough
            blocks.
        """
        if start + count <= held.capacity:
            return self.no_blocks
        size, groups, pool = self.block_size, len(self._groups), self._pool
        if match is None:
            self._slide(held, start)
            length = held.capacity // size
        else:
            length = match.tokens // size
        last = (start + count - 1) // size
        grow = last + 1 - length
        state = self._state_needed(held, match)
        needed = grow * groups + state
        available = pool.available  # mostly more than enough: look closer only when it may not be
        if (needed > available or match is not None) and needed > self._free_for(held, match):
            return None
        if held.capacity == 0:
            self._refresh(held)
        if match is not None:
            self._take_over(held, match)
            available = pool.available
        if needed > available:
            pool.yield_pins(needed - available)
        taken = pool.allocate(grow * groups, held.terms.owner)
        held.capacity = (length + grow) * size
        gained = _shares(taken, groups)
        for table, blocks in zip(held.tables, gained, strict=True):
            table.blocks.extend(blocks)
        if match is not None:
            self._copies += map(BlockCopy, match.started, (fresh[0] for fresh in gained))
            gained = tuple(cached + fresh for cached, fresh in zip(match.blocks, gained, strict=True))
        if self._states is None:
            return gained
        return (*gained, self._states.grow(held, start, last, state, match, self._copies))

    def publish(self, held: SequenceBlocks, token_ids: Sequence[int], computed: int) -> None:
        """Make the full blocks among the first `computed` tokens findable. Their contents must be there."""
        size, contents = self.block_size, self._contents
        first, last = held.publish_at // size - 1, computed // size
        held.publish_at = (last + 1) * size
        if held.generation != self._generation:
            return  # begun before the cache was reset
        self._extend(held, token_ids, last)
        hashes = held.hashes
        for index in range(first, last):
            blocks = [table.blocks[index] if index >= table.first else None for table in held.tables]
            if self._states is not None:
                blocks += self._states.at(held, index, computed)
            found = self._index.insert_all(hashes[index], blocks)
            if found:
                contents.keep(held.terms, held.fill, hashes[index], index, found)
                if held.terms.retention and (index + 1) * size <= held.terms.pinned:
                    contents.pin(found, held.terms.retention)
                parent = hashes[index - 1] if index else held.root
                contents.branches.add(parent, hashes[index], token_ids[index * size : (index + 1) * size])

    def release(self, held: SequenceBlocks, forget: bool = False) -> None:
        """Give back everything. With `forget`, what the sequence published or read is not offered to others again."""
        parts = [table.held() for table in held.tables] + [list(pages) for pages in held.states.values()]
        for blocks in parts:
            if forget:
                self._contents.forget(blocks)
            self._pool.release(blocks)
        for table in held.tables:
            table.clear()
        held.states.clear()
        held.capacity = 0
        held.publish_at = self.block_size if self.prefix_caching else _UNLIMITED

    def reset_prefix_cache(self) -> bool:
        """Forget all cached contents. Running sequences keep their blocks but never share them any more."""
        self._generation += 1
        self.forget_device()
        if self.tiers is not None:
            self.tiers.reset(self._generation)
        return True

    def forget_device(self) -> None:
        """The device's memory is about to lose its contents; tiers keep theirs. Nothing may be held."""
        self._contents.clear()

    # --- what sequences take -----------------------------------------------------------------------------------------

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
        """Most blocks that a sequence of `length` tokens ever needs when at most `chunk` are computed at once."""
        needed = sum(group.peak(length, chunk, self.block_size) for group in self._groups)
        return needed if self._states is None or not length else needed + self._states.pages

    def shared(self, match: PrefixMatch) -> int:
        """How many of a match's blocks others hold at this moment: they cost nothing. A state always costs pages."""
        tables = zip(match.blocks, match.firsts, strict=True)
        return sum(not self._pool.is_available(block) for blocks, first in tables for block in blocks[first:])

    def victims(self, blocks: int, members: Sequence[SequenceBlocks]) -> int | None:
        """How many of `members`, the first ones first, must let go of theirs to make `blocks` more available.

        Returns:
            None when all of them together are too few. Blocks that others hold as well count for nothing.
        """
        left: dict[int, int] = {}
        for count, held in enumerate(members):
            if blocks <= 0:
                return count
            for block in held.held():
                left[block] = left.get(block, self._pool.references[block]) - 1
                blocks -= not left[block]
        return len(members) if blocks <= 0 else None

    def comes_back(self, tokens: int) -> bool:
        """So many computed tokens, evicted now, would come back from a tier, as that is quicker than computing them."""
        tiers = self.tiers
        return tiers is not None and self.prefix_caching and tokens >= self.block_size and tiers.comes_back()

    @property
    def available(self) -> int:
        """Blocks that could be given out now."""
        return self._pool.available

    @property
    def pin_tokens(self) -> int:
        """Tokens of one prompt that may be pinned."""
        state = 0 if self._states is None else self._states.pages
        blocks = max(0, self._pool.pins.budget - state) // max(1, len(self._groups))
        return blocks * self.block_size if self.prefix_caching else 0

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._pool.num_blocks

    def stats(self) -> CacheStats:
        """A reading."""
        return self._contents.stats()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _findable(self, token_ids: Sequence[int], limit: int | None) -> int:
        """Most blocks of a prompt that may come from the cache: at least the last token is left to compute."""
        most = len(token_ids) - 1
        return (most if limit is None else min(limit, most)) // self.block_size

    def _note_found(self, held: SequenceBlocks, token_ids: Sequence[int], length: int, reach: int) -> None:
        """`length` blocks of a prefix were found, with their keys and values alone `reach`: what that says of it."""
        last = held.hashes[length - 1] if length else None
        missing = len(token_ids) - length * self.block_size
        held.fill = self._contents.fill_of(held.terms, last, missing, self.block_size)
        if self._states is not None:
            held.marks = self._states.marks(length, reach, self._findable(token_ids, None))

    def _chain(self, held: SequenceBlocks, token_ids: Sequence[int]) -> KeyAt:
        """The hash of a sequence's i-th block; computed when first asked for."""
        self._refresh(held)
        hashes = held.hashes

        def key_at(index: int) -> BlockHash:
            if len(hashes) <= index:
                self._extend(held, token_ids, index + 1)
            return hashes[index]

        return key_at

    def _extend(self, held: SequenceBlocks, token_ids: Sequence[int], count: int) -> None:
        """Make the hashes of the first `count` blocks known."""
        while len(held.hashes) < count:
            extend_hashes(held.hashes, held.root, token_ids, self.block_size, held.scope)

    def _refresh(self, held: SequenceBlocks) -> None:
        """Hashes made before the last reset do not count any more."""
        if held.generation != self._generation:
            held.generation = self._generation
            fields = (self._fingerprint, str(self.block_size), str(self._generation))
            held.root = root_hash(*fields, held.scope.salt, held.scope.adapter)
            held.hashes.clear()

    def _miss(
        self, held: SequenceBlocks, token_ids: Sequence[int], found: int, limit: int | None, explain: bool
    ) -> CacheMiss:
        """Why block `found` of a prompt was not."""
        size, journal = self.block_size, self._contents.journal
        start = found * size
        tokens = self._findable(token_ids, None) * size - start
        if not self.prefix_caching:
            return journal.note("off", start, tokens)
        if limit is not None and found >= limit // size:
            return journal.note("scored", start, tokens)
        key = self._chain(held, token_ids)(found)
        parent = held.hashes[found - 1] if found else held.root
        cause = journal.cause(parent, key, not found, bool(held.scope.salt))
        miss = journal.note(cause, start, tokens)
        return journal.explain(miss, parent, key, token_ids[start:], self._pool.now) if explain else miss

    def _alone(self, held: SequenceBlocks) -> bool:
        """Nobody else holds anything."""
        return self._pool.referenced == held.count()

    def _free_for(self, held: SequenceBlocks, match: PrefixMatch | None) -> int:
        """Blocks that a sequence could be given now, when it takes over `match`."""
        pool, pins = self._pool, self._pool.pins
        left = pool.available - (0 if match is None else sum(map(pool.is_available, match.held())))
        if pins.resting and self._alone(held):
            left += pins.resting - (0 if match is None else sum(map(pins.is_resting, match.held())))
        return left

    def _state_needed(self, held: SequenceBlocks, match: PrefixMatch | None) -> int:
        """Pages for the recurrent state without which the sequence cannot go on into another block."""
        return 0 if self._states is None else self._states.needed(held, match, self._alone(held))

    def _room(self, held: SequenceBlocks, match: PrefixMatch | None) -> int:
        """Tokens of whole blocks that a sequence could be given now, when each group needs its own."""
        blocks = self._free_for(held, match) - self._state_needed(held, match)
        groups = len(self._groups)
        if blocks < 0:
            return 0
        return blocks // groups * self.block_size if groups else _UNLIMITED

    def _take_over(self, held: SequenceBlocks, match: PrefixMatch) -> None:
        terms = held.terms
        weight = 1.0 / max(1, match.tokens // self.block_size)
        self._pool.share(match.held(), not match.forked, terms.urgency, weight)
        if terms.retention:
            last = terms.pinned // self.block_size
            for blocks, first in zip(match.blocks, match.firsts, strict=True):
                self._contents.pin(blocks[first:last], terms.retention)
            if not match.state_moves and match.tokens <= terms.pinned:
                self._contents.pin(match.state, terms.retention)
        for table, blocks, first in zip(held.tables, match.blocks, match.firsts, strict=True):
            table.blocks = list(blocks)
            table.first = first
        if self.prefix_caching:
            held.publish_at = (match.tokens // self.block_size + 1) * self.block_size

    def _slide(self, held: SequenceBlocks, position: int) -> None:
        """Let go of what no query from `position` on reads."""
        for group, members in self._sliding:
            first = group.first_read(position, self.block_size)
            for member in members:
                table = held.tables[member]
                end = min(first, len(table.blocks))
                if end > table.first:
                    self._pool.release(table.blocks[table.first : end])
                    table.first = end
        if self._states is not None:
            self._states.slide(held)


def _shares(taken: Sequence[BlockId], groups: int) -> NewBlocks:
    """Divide blocks equally."""
    if len(taken) == groups:  # as in most steps that need any
        return tuple([(block,) for block in taken])
    grow = len(taken) // max(1, groups)
    return tuple(tuple(taken[group * grow : (group + 1) * grow]) for group in range(groups))


def _sliding(groups: Sequence[KVCacheGroup]) -> tuple[tuple[KVCacheGroup, tuple[int, ...]], ...]:
    """The groups that let go of blocks, those together which let go of the same ones."""
    alike: dict[tuple[str, int | None], list[int]] = {}
    for index, group in enumerate(groups):
        if not group.is_whole:
            alike.setdefault((group.kind, group.window), []).append(index)
    return tuple((groups[members[0]], tuple(members)) for members in alike.values())
