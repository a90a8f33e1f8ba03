"""Which cached blocks stay whatever else is needed, for how long, and how many may."""

import heapq

from octavo.cache.block import BlockId
from octavo.cache.eviction import BlockUse


class Pins:
    """Blocks with a time to live, within a budget. Mutable; the BlockPool owns it.

    A pinned block counts against the budget also while it is read. Its time runs while nobody reads it ("resting"),
    and begins anew with every use.

    Args:
        budget: most blocks.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.refused = 0  # blocks there was no budget for; only grows
        self.broken = 0  # blocks that were needed before their time was over; only grows
        self._count = 0
        self._until: dict[BlockId, float] = {}  # of resting ones, in seconds
        self._heap: list[tuple[float, BlockId]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def resting(self) -> int:
        """Pinned blocks that nobody reads."""
        return len(self._until)

    def is_resting(self, block: BlockId) -> bool:
        """The block is pinned and nobody reads it."""
        return block in self._until

    def grant(self, use: BlockUse, seconds: float) -> bool:
        """Pin a block that is read; False when the budget is used up."""
        if not use.retention:
            if self._count >= self.budget:
                self.refused += 1
                return False
            self._count += 1
        use.retention = max(use.retention, seconds)
        return True

    def rest(self, block: BlockId, use: BlockUse, now: float) -> None:
        """A pinned block lost its last reader."""
        self._until[block] = until = now + use.retention
        heapq.heappush(self._heap, (until, block))
        if len(self._heap) > 2 * len(self._until) + 64:
            self._heap = [(until, block) for block, until in self._until.items()]
            heapq.heapify(self._heap)

    def wake(self, block: BlockId) -> None:
        """A resting block is read again."""
        del self._until[block]

    def drop(self, block: BlockId, use: BlockUse) -> None:
        """A pinned block's contents are worth nothing any more."""
        self._until.pop(block, None)
        use.retention = 0.0
        self._count -= 1

    def due(self, now: float) -> BlockId | None:
        """A resting block whose time is over; it must be dropped."""
        return self._first(now)

    def soonest(self) -> BlockId:
        """The resting block whose time is over first, to be dropped because it is needed.

        Raises:
            IndexError: none rests.
        """
        block = self._first(float("inf"))
        if block is None:
            raise IndexError("no pinned block rests")
        self.broken += 1
        return block

    def clear(self) -> list[BlockId]:
        """Forget all; returns those that rested."""
        resting = list(self._until)
        self._until.clear()
        self._heap.clear()
        self._count = 0
        return resting

    def _first(self, limit: float) -> BlockId | None:
        heap = self._heap
        while heap and heap[0][0] <= limit:
            until, block = heapq.heappop(heap)
            if self._until.get(block) == until:
                return block
        return None
