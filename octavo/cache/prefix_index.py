"""Finds cached blocks by the hash of their contents, and how long a prefix every group can use."""

from collections.abc import Callable, Sequence

from octavo.cache.block import BlockHash, BlockId
from octavo.cache.group import Tail


class PrefixIndex:
    """hash -> block for each row of pages, and back. Mutable; the CacheManager owns it.

    A row is what one group keeps; of a group of recurrent states, one of the pages that a state is made of.

    Args:
        tails: for each row, what of a prefix it needs.
    """

    def __init__(self, tails: Sequence[Tail]) -> None:
        self._tails = tuple(tails)
        self._blocks: tuple[dict[BlockHash, BlockId], ...] = tuple({} for _ in self._tails)
        rows = list(zip(self._tails, self._blocks, strict=True))
        self._whole = tuple(found for tail, found in rows if tail.whole)
        self._sliding = tuple((tail, found) for tail, found in rows if not tail.whole and not tail.group.is_state)
        self._states = tuple(found for tail, found in rows if tail.group.is_state)
        self._places: dict[BlockId, tuple[int, BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._places

    @property
    def has_states(self) -> bool:
        """Some rows keep recurrent states."""
        return bool(self._states)

    def insert_all(self, key: BlockHash, blocks: Sequence[BlockId | None]) -> list[BlockId]:
        """Make the blocks of one hash findable, one of each row or none; those that were not before another was."""
        places, added = self._places, list[BlockId]()
        for row, (found, block) in enumerate(zip(self._blocks, blocks, strict=False)):
            if block is not None and found.setdefault(key, block) == block:
                places[block] = (row, key)
                added.append(block)
        return added

    def insert(self, row: int, key: BlockHash, block: BlockId) -> bool:
        """Make a block findable. False when another block with these contents already is."""
        if self._blocks[row].setdefault(key, block) != block:
            return False
        self._places[block] = (row, key)
        return True

    def remove(self, block: BlockId) -> None:
        """The block's contents are no longer what its hash says."""
        row, key = self._places.pop(block)
        del self._blocks[row][key]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()
        for found in self._blocks:
            found.clear()

    def block(self, row: int, key: BlockHash) -> BlockId:
        """The block of a hash that is known to be there."""
        return self._blocks[row][key]

    def holds(self, key: BlockHash) -> bool:
        """Some row has a block of this hash."""
        return any(key in found for found in self._blocks)

    def find(self, row: int, key: BlockHash) -> BlockId | None:
        """The block of a hash, if there is one."""
        return self._blocks[row].get(key)

    def place(self, block: BlockId) -> tuple[int, BlockHash]:
        """The row and hash of a block that is known to be there."""
        return self._places[block]

    def places(self) -> list[tuple[BlockId, tuple[int, BlockHash]]]:
        """Every block with its row and hash."""
        return list(self._places.items())

    def longest(self, key_at: Callable[[int], BlockHash], limit: int) -> int:
        """The most leading blocks, up to `limit`, which every row can use.

        Args:
            key_at: the hash of a sequence's i-th block; no further than needed.
        """
        length = self.longest_keys(key_at, limit)
        while length and self._states:
            state = self._last_state(key_at, length)
            if state == length:
                break
            length = self._without_gaps(key_at, state)
        return length

    def longest_keys(self, key_at: Callable[[int], BlockHash], limit: int) -> int:
        """As `longest`, whatever recurrent states there are."""
        length = limit
        for found in self._whole:
            limit, length = length, 0
            while length < limit and key_at(length) in found:
                length += 1
        return self._without_gaps(key_at, length)

    def _last_state(self, key_at: Callable[[int], BlockHash], length: int) -> int:
        """The most blocks, up to `length`, after which there is a state."""
        first = self._states[0]
        while length and (key_at(length - 1) not in first or not self._has_state(key_at(length - 1))):
            length -= 1
        return length

    def _has_state(self, key: BlockHash) -> bool:
        return all(key in found for found in self._states)

    def _without_gaps(self, key_at: Callable[[int], BlockHash], length: int) -> int:
        """The most blocks, up to `length`, of which rows of windows and chunks have all that they need."""
        while length and (gap := self._gap(key_at, length)) is not None:
            length = gap  # nothing between is possible either: every length above the gap needs the missing block
        return length

    def _gap(self, key_at: Callable[[int], BlockHash], length: int) -> int | None:
        """A block that some row needs for `length` blocks and does not have; with none before it can less be used."""
        for tail, found in self._sliding:
            for index in range(length - 1, tail.first(length) - 1, -1):
                if key_at(index) not in found:
                    return index
        return None
