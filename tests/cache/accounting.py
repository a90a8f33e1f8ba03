"""Checks every block of a cache against a count made from the tables alone."""

from collections import Counter
from collections.abc import Iterable

from octavo.cache.manager import CacheManager
from octavo.cache.table import SequenceBlocks


def check_blocks(cache: CacheManager, sequences: Iterable[SequenceBlocks]) -> None:
    """Each block is referenced as often as tables hold it, else cached, else free; none is lost or in two places."""
    contents, size = cache._contents, cache.block_size
    pool, index = contents.pool, contents.index
    readers: Counter[int] = Counter()
    places: dict[int, tuple[int, int]] = {}
    for held in sequences:
        lengths = {len(table.blocks) for table in held.tables}
        assert len(lengths) <= 1
        assert held.capacity % size == 0
        assert not lengths or held.capacity == lengths.pop() * size
        for group, table in enumerate(held.tables):
            assert 0 <= table.first <= len(table.blocks)
            for entry, block in enumerate(table.held(), table.first):
                readers[block] += 1
                assert places.setdefault(block, (group, entry)) == (group, entry), "a block has two meanings"
        for entry, pages in held.states.items():
            for row, block in enumerate(pages, len(held.tables)):
                readers[block] += 1
                assert places.setdefault(block, (row, entry)) == (row, entry), "a page of a state has two meanings"
        assert len(held.states) <= 2
        assert not held.states or next(reversed(held.states)) == held.capacity // size - 1
    assert pool.references == [readers[block] for block in range(pool.num_blocks)]
    free, evictable, resting = pool._free, set(pool._order._stamps), set(pool.pins._until)
    assert evictable.isdisjoint(resting)
    cached = evictable | resting
    pinned = {block for block, use in pool._uses.items() if use.retention}
    assert len(pool.pins) == len(pinned) <= pool.pins.budget
    assert resting <= pinned <= resting | set(readers)
    assert pool.available == len(free) + len(evictable)
    assert len(free) == len(set(free))
    assert set(free).isdisjoint(readers)
    assert cached.isdisjoint(readers)
    assert cached.isdisjoint(free)
    assert len(free) + len(cached) + len(readers) == pool.num_blocks
    assert set(index._places) == set(pool._uses)
    assert cached <= set(pool._uses)
    assert set(pool._uses) <= cached | set(readers)
    found = {block: (group, key) for group, blocks in enumerate(index._blocks) for key, block in blocks.items()}
    assert found == index._places
    # What follows what is known of all that can be found, and of nothing else.
    hashes = {key for _, key in found.values()}
    assert set(contents.branches._blocks) <= hashes
    assert cache.tiers is not None or set(contents.branches._blocks) == hashes
    assert len(contents._history) <= pool.num_blocks
    stats = cache.stats()
    assert (stats.used, stats.cached, stats.free) == (len(readers), len(cached), len(free))
    assert stats.pinned == len(pinned)
