"""Which cached block is forgotten first when room is needed: one key function, one heap."""

import heapq
from collections.abc import Callable
from math import log2
from typing import Literal

import msgspec

from octavo.cache.block import BlockId
from octavo.errors import ConfigError

EvictionName = Literal["lru", "lfu", "priority-frequency"]

# Of `priority_frequency`, in turnovers of the pool (the time in which as many blocks are taken as there are). A block
# that came back lives longer by this much, however popular it once was: more would keep what is out of fashion.
_REUSE = 1.0
# By so much for each doubling of the cost to compute its prefix.
_COST = 0.1
# By so much for each step of priority, up to _MOST_URGENT steps.
_URGENCY = 0.5
_MOST_URGENT = 4
# Prefix length at which attention costs about as much as all the rest of a token, in tokens.
_DOUBLING = 4096


# A msgspec struct, because one is made for every block that is filled: a dataclass takes several times as long.
class BlockUse(msgspec.Struct, gc=False):
    """What is known of a cached block when it is decided which one goes.

    Attributes:
        depth: blocks that stand before it in its chain.
        last: the clock when its last reader let go of it. The clock counts blocks taken and readers gone.
        hits: how often it was reused.
        count: uses of late: each counts half after a turnover of the pool; as of clock `counted`.
        reach: depth of the deepest block that was used with it: without this one, that one is never found.
        urgency: of the most urgent request that used it, higher is more urgent.
        retention: seconds for which it is kept after its last use, whatever else is needed; 0: it is not pinned.
        used_at: when its last reader let go of it, in seconds.
    """

    depth: int
    last: int = 0
    hits: int = 0
    count: float = 1.0
    counted: int = 0
    reach: int = 0
    urgency: int = 0
    retention: float = 0.0
    used_at: float = 0.0

    def aged(self, clock: int, turnover: int) -> float:
        """`count` by now."""
        return self.count * 2.0 ** ((self.counted - clock) / turnover)


EvictionKey = Callable[[BlockUse], tuple[float, ...]]


def lru(use: BlockUse) -> tuple[float, ...]:
    """Least recently used first. Of one sequence's blocks the deepest: without its parent a block is never found."""
    return (use.last, -use.depth)


def lfu(use: BlockUse) -> tuple[float, ...]:
    """Least often reused first, for as long as it is cached; the least recently used among equals."""
    return (use.hits, use.last, -use.depth)


def priority_frequency(num_blocks: int, block_size: int) -> EvictionKey:
    """As lru, but what was reused, takes long to compute or served urgent requests counts as used later than it was.

    The sum is constant while a block is not used, so a heap can hold it, and old popularity is overtaken by the clock
    (as in GreedyDual-Size, Cao and Irani, 1997; the aged count is LRFU's, Lee et al., 2001). Every part is at least as
    large for a block as for those behind it in its chain, so a chain is forgotten from its end.
    """
    reuse, cost, urgency = _REUSE * num_blocks, _COST * num_blocks, _URGENCY * num_blocks
    depth = block_size / _DOUBLING

    def key(use: BlockUse) -> tuple[float, ...]:
        score = use.last + cost * log2(1.0 + use.reach * depth)
        if use.count > 1.0:
            score += reuse * min(1.0, log2(use.count))
        if use.urgency:
            score += urgency * max(-_MOST_URGENT, min(_MOST_URGENT, use.urgency))
        return (score, -use.depth)

    return key


def eviction_key(policy: EvictionName | EvictionKey, num_blocks: int, block_size: int) -> EvictionKey:
    """The key of a policy's name; a key is taken as it is.

    Raises:
        ConfigError: there is no such policy.
    """
    if not isinstance(policy, str):
        return policy
    keys: dict[str, EvictionKey] = {
        "lru": lru,
        "lfu": lfu,
        "priority-frequency": priority_frequency(num_blocks, block_size),
    }
    if policy not in keys:
        raise ConfigError(f"there is no cache eviction {policy!r}; there are {', '.join(keys)}")
    return keys[policy]


class EvictionOrder:
    """The cached blocks that nobody reads, least key first. A heap with lazy deletion.

    Args:
        key: the policy; read once, when a block joins.
    """

    def __init__(self, key: EvictionKey) -> None:
        self._key = key
        self._heap: list[tuple[tuple[float, ...], int, BlockId]] = []
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
