"""Finds cached blocks by the hash of their contents."""

from collections.abc import Sequence

from octavo.cache.block import BlockHash, BlockId
from octavo.cache.prefix import KeyAt, PrefixRule, Tail


class PrefixIndex:
    """hash -> block in each lane, and back; see PrefixRule. Mutable; the CachedContents own it.

    Args:
        tails: for each lane, what of a prefix it needs.
    """

    def __init__(self, tails: Sequence[Tail]) -> None:
        self._rule = PrefixRule(tails)
        self._blocks: tuple[dict[BlockHash, BlockId], ...] = tuple({} for _ in tails)
        self._has = tuple(found.__contains__ for found in self._blocks)
        self._places: dict[BlockId, tuple[int, BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._places

    @property
    def has_states(self) -> bool:
        """Some lanes keep recurrent states."""
        return self._rule.has_states

    def insert_all(self, key: BlockHash, blocks: Sequence[BlockId | None]) -> list[BlockId]:
        """Make the blocks of one hash findable, one of each lane or none; those that were not before another was."""
        places, added = self._places, list[BlockId]()
        for lane, (found, block) in enumerate(zip(self._blocks, blocks, strict=False)):
            if block is not None and found.setdefault(key, block) == block:
                places[block] = (lane, key)
                added.append(block)
        return added

    def insert(self, lane: int, key: BlockHash, block: BlockId) -> bool:
        """Make a block findable. False when another block with these contents already is."""
        if self._blocks[lane].setdefault(key, block) != block:
            return False
        self._places[block] = (lane, key)
        return True

    def remove(self, block: BlockId) -> None:
        """The block's contents are no longer what its hash says."""
        lane, key = self._places.pop(block)
        del self._blocks[lane][key]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()
        for found in self._blocks:
            found.clear()

    def block(self, lane: int, key: BlockHash) -> BlockId:
        """The block of a hash that is known to be there."""
        return self._blocks[lane][key]

    def holds(self, key: BlockHash) -> bool:
        """Some lane has a block of this hash."""
        return any(key in found for found in self._blocks)

    def find(self, lane: int, key: BlockHash) -> BlockId | None:
        """The block of a hash, if there is one."""
        return self._blocks[lane].get(key)

    def place(self, block: BlockId) -> tuple[int, BlockHash]:
        """The lane and hash of a block that is known to be there."""
        return self._places[block]

    def places(self) -> list[tuple[BlockId, tuple[int, BlockHash]]]:
        """Every block with its lane and hash."""
        return list(self._places.items())

    def longest(self, key_at: KeyAt, limit: int) -> int:
        """The most leading blocks, up to `limit`, which every lane can use."""
        return self._rule.longest(self._has, key_at, limit)

    def longest_keys(self, key_at: KeyAt, limit: int) -> int:
        """As `longest`, whatever recurrent states there are."""
        return self._rule.longest_keys(self._has, key_at, limit)
