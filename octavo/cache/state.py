"""Which of a sequence's recurrent states are kept for others, and which pages the running one is written to.

A state stands for all tokens before it, so a prefix can go on only where one was kept. The running state stays in its
pages until a block ends after which it is kept: from there the next step reads it and writes into other pages, and what
it read is never written again. Between such ends there is nothing: a state may be as large as the keys and values of
many blocks. Kept are the states after every `interval` blocks (see group.state_interval), after the last whole block
of a prompt, and where a prompt leaves what is cached, since others may do so too (Marconi, arXiv:2411.19379,
section 4.1).
"""

from octavo.cache.block import BlockId
from octavo.cache.contents import CachedContents
from octavo.cache.group import KVCacheGroup
from octavo.cache.table import PrefixMatch, SequenceBlocks
from octavo.flow.plan import BlockCopy

# A state that saves fewer blocks than so many is not worth a step that ends there.
_LEAST_GAIN = 8


class StateKeeper:
    """The pages of recurrent states. Mutable only in what it is given; the CacheManager owns it.

    Args:
        group: of recurrent states.
        interval: blocks between two states that are kept.
        keeps: False: none is, since nothing is shared.
    """

    def __init__(
        self, group: KVCacheGroup, contents: CachedContents, block_size: int, interval: int, keeps: bool
    ) -> None:
        self.pages = group.pages
        self._contents = contents
        self._pool = contents.pool
        self._size = block_size
        self._interval = interval
        self._least = min(interval, _LEAST_GAIN)
        self._keeps = keeps

    def marks(self, found: int, reach: int, whole: int) -> tuple[int, ...]:
        """Where a sequence keeps states besides every `interval` blocks.

        Args:
            found: blocks of its prefix that it need not compute.
            reach: blocks of it whose keys and values are cached: there it leaves what is known.
            whole: whole blocks of its prompt, at least one token left.
        """
        marks: list[int] = []
        for mark in (reach, whole):
            if mark >= found + self._least:
                marks.append(mark)
                found = mark
        return tuple(marks)

    def until_kept(self, held: SequenceBlocks, start: int, count: int) -> int:
        """As many of the next `count` tokens as there are up to the next state that is kept."""
        if not self._keeps:
            return count
        block = start // self._size
        ends = [block - block % self._interval + self._interval, *(mark for mark in held.marks if mark > block)]
        return min(count, min(ends) * self._size - start)

    def needed(self, held: SequenceBlocks, match: PrefixMatch | None, alone: bool) -> int:
        """Pages without which the sequence cannot go on into another block.

        Args:
            match: what a sequence that holds nothing takes over.
            alone: nobody else holds anything, so no pin counts.
        """
        state = next(reversed(held.states.values()), ()) if match is None else match.state
        if not state or (match is not None and match.state_moves):
            return self.pages
        readers, pool = int(match is None), self._pool
        own = all(pool.references[page] == readers and (alone or not pool.is_pinned(page)) for page in state)
        return 0 if own else self.pages

    def grow(
        self,
        held: SequenceBlocks,
        start: int,
        last: int,
        needed: int,
        match: PrefixMatch | None,
        copies: list[BlockCopy],
    ) -> tuple[BlockId, ...]:
        """The step's tokens from `start` on end in block `last`: find pages for the state after them.

        Args:
            needed: as above. Where it is 0 the state before is kept nevertheless if it should be and there is room.
            match: what a sequence that held nothing has taken over.
            copies: gains those that must be made before the step.

        Returns:
            What the device must be told; see PlannedRow.
        """
        states = held.states
        told: tuple[BlockId, ...] = ()
        moves = match is not None and match.state_moves
        if match is not None and match.state:
            told = match.state
            if moves:
                told = tuple(self._pool.allocate(self.pages, held.terms.owner))
                copies += map(BlockCopy, match.state, told)
            states[(match.tokens - 1) // self._size] = told
        before = next(reversed(states), -1)
        if before == last:
            return told
        keep = not moves and start == (before + 1) * self._size and self._is_worth(held, before)
        if (needed and not moves) or (keep and self._pool.available >= self.pages):
            states[last] = tuple(self._pool.allocate(self.pages, held.terms.owner))
            return told + states[last]
        states[last] = states.pop(before)
        self._contents.overwrite(states[last])
        return told

    def at(self, held: SequenceBlocks, index: int, computed: int) -> tuple[BlockId, ...]:
        """The state after block `index`, to be kept; none when it is not, or is not there.

        Args:
            computed: tokens after which the running state is.
        """
        end = (index + 1) * self._size
        if computed != end or not self._is_kept(held, index + 1):
            return ()
        return held.states.get(index, ())

    def slide(self, held: SequenceBlocks) -> None:
        """The last step is planned: let go of what it read."""
        while len(held.states) > 1:
            self._pool.release(held.states.pop(next(iter(held.states))))

    def of_donor(self, donor: SequenceBlocks, tokens: int, reached: int) -> tuple[tuple[BlockId, ...], bool] | None:
        """The state after `tokens` tokens of a living sequence, and whether that one writes on into the same pages.

        Args:
            reached: tokens after which the donor's running state will be when it is copied.
        """
        block = (tokens - 1) // self._size
        last = next(reversed(donor.states), -1)
        if tokens % self._size == 0 and block in donor.states and block != last:
            return donor.states[block], False
        return (donor.states[last], True) if tokens == reached and last >= 0 else None

    def _is_worth(self, held: SequenceBlocks, block: int) -> bool:
        """The state after a block can be found, or will be."""
        index = self._contents.index
        return self._is_kept(held, block + 1) or any(page in index for page in held.states.get(block, ()))

    def _is_kept(self, held: SequenceBlocks, blocks: int) -> bool:
        return self._keeps and (blocks % self._interval == 0 or blocks in held.marks)
