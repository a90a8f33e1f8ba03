"""What is remembered of blocks that were forgotten: what kind they were, and who needed their room."""

from collections import OrderedDict

import msgspec

from octavo.cache.block import BlockHash
from octavo.cache.eviction import BlockUse


# A msgspec struct, because one is made for every block that is evicted: a frozen dataclass takes many times as long.
class Eviction(msgspec.Struct, frozen=True, gc=False):
    """How a block was lost. Times in seconds; `by` names the request that needed the room."""

    at: float
    idle: float  # how long nobody had used it
    by: str
    kind: int
    weight: float
    hits: int


class EvictionHistory:
    """The last evictions by hash, oldest forgotten first. Mutable; the CacheManager owns it.

    Contents that come back after they were evicted have been used before: that is how a pool too small for a load
    still tells them from contents that come once.

    Args:
        limit: most entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Ordered, because a dict whose first entries go one by one is searched for its first one longer and longer.
        self._entries: OrderedDict[BlockHash, Eviction] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, key: BlockHash, use: BlockUse, now: float, by: str) -> None:
        """A block was evicted."""
        entries = self._entries
        entries.pop(key, None)
        if len(entries) >= self._limit:
            entries.popitem(last=False)
        entries[key] = Eviction(now, now - use.used_at, by, use.kind, use.weight, use.hits)

    def find(self, key: BlockHash) -> Eviction | None:
        """How a block was lost, if it is known."""
        return self._entries.get(key)

    def take(self, key: BlockHash) -> Eviction | None:
        """As find; the block is there again, so its loss is forgotten."""
        return self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
