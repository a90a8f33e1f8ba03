"""Finds cached blocks by the hash of their contents, and how long a prefix every group can use."""

from collections.abc import Callable, Sequence

from octavo.cache.block import BlockHash, BlockId


class PrefixIndex:
    """hash -> block for each group, and back. Mutable; the CacheManager owns it.

    Args:
        tails: for each group, how many of a prefix's last blocks it needs; None when it needs all.
    """

    def __init__(self, tails: Sequence[int | None]) -> None:
        self._tails = tuple(tails)
        self._blocks: tuple[dict[BlockHash, BlockId], ...] = tuple({} for _ in self._tails)
        self._whole = tuple(found for found, tail in zip(self._blocks, self._tails, strict=True) if tail is None)
        self._places: dict[BlockId, tuple[int, BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._places

    def insert(self, group: int, key: BlockHash, block: BlockId) -> bool:
        """Make a block findable. False when another block with these contents already is."""
        if self._blocks[group].setdefault(key, block) != block:
            return False
        self._places[block] = (group, key)
        return True

    def remove(self, block: BlockId) -> None:
        """The block's contents are no longer what its hash says."""
        group, key = self._places.pop(block)
        del self._blocks[group][key]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()
        for found in self._blocks:
            found.clear()

    def first_needed(self, group: int, length: int) -> int:
        """The first of a prefix's `length` blocks that `group` has to hold."""
        tail = self._tails[group]
        return 0 if tail is None else max(0, length - tail)

    def block(self, group: int, key: BlockHash) -> BlockId:
        """The block of a hash that is known to be there."""
        return self._blocks[group][key]

    def holds(self, key: BlockHash) -> bool:
        """Some group has a block of this hash."""
        return any(key in found for found in self._blocks)

    def find(self, group: int, key: BlockHash) -> BlockId | None:
        """The block of a hash, if there is one."""
        return self._blocks[group].get(key)

    def place(self, block: BlockId) -> tuple[int, BlockHash]:
        """The group and hash of a block that is known to be there."""
        return self._places[block]

    def places(self) -> list[tuple[BlockId, tuple[int, BlockHash]]]:
        """Every block with its group and hash."""
        return list(self._places.items())

    def longest(self, key_at: Callable[[int], BlockHash], limit: int) -> int:
        """The most leading blocks, up to `limit`, which every group can use.

        Args:
            key_at: the hash of a sequence's i-th block; no further than needed.
        """
        length = limit
        for found in self._whole:
            limit, length = length, 0
            while length < limit and key_at(length) in found:
                length += 1
        while length and (gap := self._last_gap(key_at, length)) is not None:
            length = gap  # nothing between is possible either: every length above the gap needs the missing block
        return length

    def _last_gap(self, key_at: Callable[[int], BlockHash], length: int) -> int | None:
        """The last block that some group needs for `length` blocks and does not have."""
        gaps = [
            index
            for group, tail in enumerate(self._tails)
            if tail is not None and (index := self._gap_in_tail(group, key_at, length)) is not None
        ]
        return min(gaps, default=None)

    def _gap_in_tail(self, group: int, key_at: Callable[[int], BlockHash], length: int) -> int | None:
        found = self._blocks[group]
        for index in range(length - 1, self.first_needed(group, length) - 1, -1):
            if key_at(index) not in found:
                return index
        return None
