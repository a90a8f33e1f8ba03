"""Which cached block is forgotten first when room is needed: one key function, one heap."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from octavo.cache.block import BlockId


@dataclass(slots=True)
class BlockUse:
    """What is known of a cached block when it is decided which one goes.

    `last` is the tick at which its last reader let go of it, `hits` how often it was reused, `depth` how many blocks
    stand before it in its chain.
    """

    depth: int
    last: int = 0
    hits: int = 0


EvictionKey = Callable[[BlockUse], tuple[int, ...]]


def lru(use: BlockUse) -> tuple[int, ...]:
    """Least recently used first. Of one sequence's blocks the deepest: without its parent a block is never found."""
    return (use.last, -use.depth)


class EvictionOrder:
    """The cached blocks that nobody reads, least key first. A heap with lazy deletion.

    Args:
        key: the policy; read once, when a block joins.
    """

    def __init__(self, key: EvictionKey) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, BlockId]] = []
        self._stamps: dict[BlockId, int] = {}  # the heap entry that counts
        self._next = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._stamps

    def add(self, block: BlockId, use: BlockUse) -> None:
        """A block lost its last reader."""
        self._next += 1
        self._stamps[block] = self._next
        heapq.heappush(self._heap, (self._key(use), self._next, block))

    def remove(self, block: BlockId) -> None:
        """A block is read again, or is no longer cached."""
        del self._stamps[block]
        if len(self._heap) > 2 * len(self._stamps) + 64:
            self._heap = [entry for entry in self._heap if self._stamps.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def pop(self) -> BlockId:
        """Take the block that goes first.

        Raises:
            IndexError: there is none.
        """
        while True:
            _, stamp, block = heapq.heappop(self._heap)
            if self._stamps.get(block) == stamp:
                del self._stamps[block]
                return block

    def clear(self) -> list[BlockId]:
        """Take all."""
        blocks = list(self._stamps)
        self._stamps.clear()
        self._heap.clear()
        return blocks
