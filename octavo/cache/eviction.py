"""Which cached block is forgotten first when room is needed: one key function, one heap."""

import heapq
from collections.abc import Callable
from math import log2
from typing import Literal

import msgspec

from octavo.cache.block import BlockId
from octavo.cache.reuse import ReuseModel

EvictionName = Literal["lru", "lfu", "priority-frequency"]

# Of `priority_frequency`, in turnovers of the pool (the time in which as many blocks are taken as there are): a block
# lives longer by so much for each doubling of the chance that it is used again ...
_CHANCE = 0.5
# ... for each doubling of the cost to compute its prefix ...
_COST = 0.02
# ... and for each step of priority, up to _MOST_URGENT steps.
_URGENCY = 0.5
_MOST_URGENT = 4
# Prefix length at which attention costs about as much as all the rest of a token, in tokens.
_DOUBLING = 4096

Score = tuple[float, ...]


# A msgspec struct, because one is made for every block that is filled: a dataclass takes several times as long.
class BlockUse(msgspec.Struct, gc=False):
    """What is known of a cached block when it is decided which one goes.

    Attributes:
        depth: blocks that stand before it in its chain.
        last: the clock when its last reader let go of it. The clock counts blocks taken and readers gone.
        hits: how often it was reused.
        kind: see reuse.py.
        weight: of what becomes of it as evidence for its kind: the blocks of a request are one observation together.
            0 for blocks that hold the same tokens in other groups: they share one fate.
        urgency: of the most urgent request that used it, higher is more urgent.
        retention: seconds for which it is kept after its last use, whatever else is needed; 0: it is not pinned.
        used_at: when its last reader let go of it, in seconds.
        score: of the policy, and at least that of every block behind it in a chain that was let go of together with
            it: without this one those are never found. Higher is kept longer.
    """

    depth: int
    last: int = 0
    hits: int = 0
    kind: int = 0
    weight: float = 0.0
    urgency: int = 0
    retention: float = 0.0
    used_at: float = 0.0
    score: Score = ()


EvictionKey = Callable[[BlockUse], Score]


def lru(use: BlockUse) -> Score:
    """Least recently used first."""
    return (use.last,)


def lfu(use: BlockUse) -> Score:
    """Least often reused first, for as long as it is cached; the least recently used among equals."""
    return (use.hits, use.last)


def priority_frequency(num_blocks: int, block_size: int, reuse: ReuseModel) -> EvictionKey:
    """As lru, but what probably comes back, takes long to compute or served urgent requests counts as used later.

    The sum is constant while a block is not used, so a heap can hold it, and old merits are overtaken by the clock
    (as in GreedyDual-Size, Cao and Irani, 1997). Frequency counts through `reuse`: by how often blocks of this kind
    came back. One popular prefix among many of its kind is no different from them before it has been reused.
    """
    chance, cost, urgency = _CHANCE * num_blocks, _COST * num_blocks, _URGENCY * num_blocks
    depth = block_size / _DOUBLING

    def key(use: BlockUse) -> Score:
        score = use.last + chance * reuse.bonus(use.kind) + cost * log2(1.0 + use.depth * depth)
        if use.urgency:
            score += urgency * max(-_MOST_URGENT, min(_MOST_URGENT, use.urgency))
        return (score,)

    return key


# A key for a pool of so many blocks of so many tokens.
EvictionPolicy = Callable[[int, int, ReuseModel], EvictionKey]

POLICIES: dict[EvictionName, EvictionPolicy] = {
    "lru": lambda _blocks, _block_size, _reuse: lru,
    "lfu": lambda _blocks, _block_size, _reuse: lfu,
    "priority-frequency": priority_frequency,
}


class EvictionOrder:
    """The cached blocks that nobody reads, least score first, of equal ones the deepest. A heap with lazy deletion."""

    def __init__(self) -> None:
        self._heap: list[tuple[Score, int, int, BlockId]] = []
        self._stamps: dict[BlockId, int] = {}  # the heap entry that counts
        self._next = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, block: BlockId, use: BlockUse) -> None:
        """A block lost its last reader; `use.score` counts as it is now."""
        self._next += 1
        self._stamps[block] = self._next
        heapq.heappush(self._heap, (use.score, -use.depth, self._next, block))

    def remove(self, block: BlockId) -> None:
        """A block is read again, or is no longer cached."""
        del self._stamps[block]
        if len(self._heap) > 2 * len(self._stamps) + 64:
            self._heap = [entry for entry in self._heap if self._stamps.get(entry[3]) == entry[2]]
            heapq.heapify(self._heap)

    def pop(self) -> BlockId:
        """Take the block that goes first.

        Raises:
            IndexError: there is none.
        """
        while True:
            _, _, stamp, block = heapq.heappop(self._heap)
            if self._stamps.get(block) == stamp:
                del self._stamps[block]
                return block

    def clear(self) -> list[BlockId]:
        """Take all."""
        blocks = list(self._stamps)
        self._stamps.clear()
        self._heap.clear()
        return blocks
