"""The device's blocks as the tiers below see them: what is there, room for what comes back, and what may be saved."""

from collections.abc import Iterable

from octavo.cache.block import BlockHash, BlockId
from octavo.cache.eviction import BlockUse
from octavo.cache.pool import BlockPool
from octavo.cache.prefix_index import PrefixIndex


class DeviceBlocks:
    """A view of a CacheManager's pool and index, which stay its own."""

    def __init__(self, index: PrefixIndex, pool: BlockPool) -> None:
        self._index = index
        self._pool = pool

    def find(self, lane: int, key: BlockHash) -> BlockId | None:
        """The block with these contents, if there is one."""
        return self._index.find(lane, key)

    def idle(self, blocks: Iterable[BlockId]) -> int:
        """How many of these cached blocks count as available."""
        return sum(map(self._pool.is_available, blocks))

    def take(self, taker: str) -> BlockId:
        """A block for contents that come back for request `taker`; one must be available."""
        return self._pool.allocate(1, taker)[0]

    def adopt(self, lane: int, key: BlockHash, block: BlockId, depth: int) -> None:
        """The contents are there: the block becomes a cached one, unless another holds the same already."""
        if self._index.insert(lane, key, block):
            self._pool.keep(block, BlockUse(depth))
        self._pool.release([block])

    def give_back(self, block: BlockId) -> None:
        """The contents did not come."""
        self._pool.release([block])

    def touch(self, blocks: list[BlockId]) -> None:
        """These will be used soon: others are to go before them."""
        self._pool.share(blocks, reused=False)
        self._pool.release(blocks)

    def published(self) -> list[tuple[BlockId, int, BlockHash]]:
        """Every block that can be found, with its lane and hash; a prefix comes before what follows it."""
        depths = self._pool.depths()
        found = sorted(self._index.places(), key=lambda place: depths.get(place[0], 0))
        return [(block, lane, key) for block, (lane, key) in found]
