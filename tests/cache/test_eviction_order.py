"""The eviction order gives up the least worth keeping first, whatever joined and left before."""

import random

import pytest

from octavo.cache.eviction import BlockUse, EvictionOrder, eviction_key, lru, priority_frequency
from octavo.cache.pool import BlockPool
from octavo.errors import ConfigError

BLOCKS = 100  # of the pool that a key is for


def test_least_recently_used_first_and_of_one_release_the_deepest():
    order = EvictionOrder(lru)
    for block, (last, depth) in enumerate([(2, 0), (1, 0), (1, 1), (2, 5), (1, 2)]):
        order.add(block, BlockUse(depth, last))
    assert [order.pop() for _ in range(5)] == [4, 2, 1, 3, 0]
    with pytest.raises(IndexError):
        order.pop()


def test_the_policy_is_one_function():
    order = EvictionOrder(lambda use: (use.hits,))
    for block, hits in enumerate([3, 0, 2]):
        order.add(block, BlockUse(0, hits=hits))
    assert [order.pop() for _ in range(3)] == [1, 2, 0]


def test_blocks_that_left_do_not_pile_up():
    order, rng, member = EvictionOrder(lru), random.Random(0), {}
    for tick in range(5000):
        block = rng.randrange(40)
        if block in member:
            del member[block]
            order.remove(block)
        else:
            member[block] = tick
            order.add(block, BlockUse(0, tick))
        assert len(order) == len(member)
        assert len(order._heap) <= 2 * len(member) + 65
    assert [order.pop() for _ in range(len(member))] == sorted(member, key=member.__getitem__)


def test_policies_by_name():
    assert eviction_key("lru", BLOCKS, 16) is lru
    lfu = eviction_key("lfu", BLOCKS, 16)
    assert lfu(BlockUse(0, last=1, hits=2)) > lfu(BlockUse(0, last=9, hits=1)) > lfu(BlockUse(0, last=8, hits=1))
    with pytest.raises(ConfigError, match="there are lru, lfu, priority-frequency"):
        eviction_key("fifo", BLOCKS, 16)  # type: ignore[arg-type]


def test_what_came_back_lives_for_one_turnover_longer_and_no_more():
    key = priority_frequency(BLOCKS, 16)
    assert key(BlockUse(0, last=0, count=2.0)) > key(BlockUse(0, last=99))
    assert key(BlockUse(0, last=0, count=2.0)) < key(BlockUse(0, last=101))
    assert key(BlockUse(0, last=0, count=50.0)) == key(BlockUse(0, last=0, count=2.0))  # old fame is worth little


def test_popularity_is_forgotten():
    use = BlockUse(0, count=8.0, counted=50)
    assert use.aged(50, BLOCKS) == 8.0
    assert use.aged(150, BLOCKS) == 4.0
    assert use.aged(350, BLOCKS) == 1.0


def test_costly_and_urgent_blocks_live_longer():
    key = priority_frequency(BLOCKS, 16)
    plain = key(BlockUse(0, last=10))
    assert key(BlockUse(0, last=10, reach=4096 // 16)) == (plain[0] + BLOCKS / 10, 0)
    assert key(BlockUse(0, last=10, urgency=1))[0] == plain[0] + BLOCKS / 2
    assert key(BlockUse(0, last=10, urgency=-1))[0] == plain[0] - BLOCKS / 2
    assert key(BlockUse(0, last=10, urgency=99)) == key(BlockUse(0, last=10, urgency=4))


def test_a_chain_is_forgotten_from_its_end():
    """Whatever sequences of common prefixes come and go, nobody outlives what stands before it."""
    for policy in ("lru", "lfu", "priority-frequency"):
        rng = random.Random(1)
        pool = BlockPool(64, eviction_key(policy, 64, 16), lambda block, use: None)
        chains = [pool.allocate(8)]
        for _ in range(5):  # a tree: every chain begins like another one
            stem = rng.choice(chains)[: rng.randint(1, 7)]
            pool.share(stem)
            chains.append(stem + pool.allocate(8))
        parents = {}
        for chain in chains:
            for depth, block in enumerate(chain):
                if block not in pool._uses:
                    pool.keep(block, BlockUse(depth))
                parents[block] = chain[depth - 1] if depth else None
        for chain in chains:
            pool.release(chain)
        for _ in range(100):
            chain = rng.choice(chains)
            read = chain[: rng.randint(1, len(chain))]
            pool.share(read, urgency=rng.randint(-2, 2))
            pool.clock += rng.randrange(30)
            pool.release(read)
        gone = set()
        while len(pool._order):
            block = pool._order.pop()
            assert parents[block] not in gone
            gone.add(block)
        assert gone == set(parents)
