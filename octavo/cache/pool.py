"""Who holds which block: a block is referenced, cached (unreferenced but worth keeping) or free, never two of these."""

from collections.abc import Callable, Iterable, Sequence

from octavo.cache.block import BlockId
from octavo.cache.eviction import BlockUse, EvictionKey, EvictionOrder


class BlockPool:
    """All blocks of one byte size. Ids only, no contents. Mutable; the CacheManager owns it.

    Args:
        num_blocks: ids are 0 .. num_blocks - 1.
        key: which cached block is evicted first.
        forget: told of every evicted block, before it is given to someone else.
    """

    def __init__(self, num_blocks: int, key: EvictionKey, forget: Callable[[BlockId], None]) -> None:
        self.num_blocks = num_blocks
        self.evictions = 0
        self.references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is warm in the CPU's cache
        self._uses: dict[BlockId, BlockUse] = {}  # of every block with cached contents, referenced or not
        self._order = EvictionOrder(key)
        self._forget = forget
        self._tick = 0

    @property
    def available(self) -> int:
        """Blocks that could be allocated now."""
        return len(self._free) + len(self._order)

    @property
    def cached(self) -> int:
        """Unreferenced blocks with cached contents."""
        return len(self._order)

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` <= `available` blocks, one reference each; free ones first, then the least worth keeping."""
        free = self._free
        taken = free[len(free) - count :] if count <= len(free) else free[:]
        del free[len(free) - len(taken) :]
        for _ in range(count - len(taken)):
            block = self._order.pop()
            del self._uses[block]
            self._forget(block)
            self.evictions += 1
            taken.append(block)
        for block in taken:
            self.references[block] = 1
        return taken

    def share(self, blocks: Iterable[BlockId]) -> None:
        """One more reader for each of these blocks; they are cached or have readers."""
        references, uses = self.references, self._uses
        for block in blocks:
            if references[block] == 0:
                self._order.remove(block)
            references[block] += 1
            use = uses.get(block)
            if use is not None:
                use.hits += 1

    def release(self, blocks: Sequence[BlockId]) -> None:
        """One reader less for each; a block without readers is cached when it was kept, else free."""
        self._tick += 1
        references = self.references
        for block in blocks:
            left = references[block] - 1
            references[block] = left
            if left == 0:
                use = self._uses.get(block)
                if use is None:
                    self._free.append(block)
                else:
                    use.last = self._tick
                    self._order.add(block, use)

    def keep(self, block: BlockId, depth: int) -> None:
        """The block's contents can be found now; `depth` blocks stand before it in its chain."""
        self._uses[block] = BlockUse(depth)

    def depths(self) -> dict[BlockId, int]:
        """How many blocks stand before each block with cached contents, in its chain."""
        return {block: use.depth for block, use in self._uses.items()}

    def drop(self, block: BlockId) -> None:
        """The block's contents cannot be found any more."""
        del self._uses[block]
        if self.references[block] == 0:
            self._order.remove(block)
            self._free.append(block)

    def drop_all(self) -> None:
        """No contents can be found any more."""
        self._uses.clear()
        self._free.extend(self._order.clear())
