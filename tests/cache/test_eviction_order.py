"""The eviction order gives up the least worth keeping first, whatever joined and left before."""

import random

import pytest

from octavo.cache.eviction import POLICIES, BlockUse, EvictionOrder, lru, priority_frequency
from octavo.cache.pool import BlockPool
from octavo.cache.reuse import ReuseModel, kind_of_request, kind_of_reuse

BLOCKS = 100  # of the pool that a key is for


def add(order, block, use, key=lru):
    use.score = key(use)
    order.add(block, use)


def test_least_recently_used_first_and_of_one_release_the_deepest():
    order = EvictionOrder()
    for block, (last, depth) in enumerate([(2, 0), (1, 0), (1, 1), (2, 5), (1, 2)]):
        add(order, block, BlockUse(depth, last))
    assert [order.pop() for _ in range(5)] == [4, 2, 1, 3, 0]
    with pytest.raises(IndexError):
        order.pop()


def test_the_policy_is_one_function():
    order = EvictionOrder()
    for block, hits in enumerate([3, 0, 2]):
        add(order, block, BlockUse(0, hits=hits), lambda use: (use.hits,))
    assert [order.pop() for _ in range(3)] == [1, 2, 0]


def test_blocks_that_left_do_not_pile_up():
    order, rng, member = EvictionOrder(), random.Random(0), {}
    for tick in range(5000):
        block = rng.randrange(40)
        if block in member:
            del member[block]
            order.remove(block)
        else:
            member[block] = tick
            add(order, block, BlockUse(0, tick))
        assert len(order) == len(member)
        assert len(order._heap) <= 2 * len(member) + 65
    assert [order.pop() for _ in range(len(member))] == sorted(member, key=member.__getitem__)


def test_policies_by_name():
    assert POLICIES["lru"](BLOCKS, 16, ReuseModel()) is lru
    lfu = POLICIES["lfu"](BLOCKS, 16, ReuseModel())
    assert lfu(BlockUse(0, last=1, hits=2)) > lfu(BlockUse(0, last=9, hits=1)) > lfu(BlockUse(0, last=8, hits=1))


def test_what_comes_back_more_often_lives_longer_but_not_for_ever():
    reuse = ReuseModel()
    scan, chat = kind_of_request("new", 9000), kind_of_request("continues", 90)
    for _ in range(1000):
        reuse.note(scan, False)
        reuse.note(chat, True)
    assert (reuse.chance(scan), reuse.chance(chat)) == (pytest.approx(0.0, abs=0.01), pytest.approx(1.0, abs=0.01))
    key = priority_frequency(BLOCKS, 16, reuse)
    assert key(BlockUse(0, last=0, kind=chat)) > key(BlockUse(0, last=300, kind=scan))
    assert key(BlockUse(0, last=0, kind=chat)) < key(BlockUse(0, last=310, kind=scan))


def test_kinds_that_are_alike_are_treated_alike():
    reuse = ReuseModel()
    key = priority_frequency(BLOCKS, 16, reuse)
    one, other = kind_of_request("new", 90), kind_of_reuse(5)
    assert key(BlockUse(0, last=10, kind=one)) == key(BlockUse(0, last=10, kind=other))  # nothing is known of either
    for _ in range(500):
        for kind in (one, other):
            reuse.note(kind, True)
            reuse.note(kind, False)
    assert key(BlockUse(0, last=10, kind=one)) == key(BlockUse(0, last=10, kind=other))
    assert key(BlockUse(0, last=11, kind=one)) > key(BlockUse(0, last=10, kind=other))


def test_a_request_is_one_observation_however_long_it_is():
    reuse, kind = ReuseModel(), kind_of_request("new", 16_000)
    for _ in range(3):  # came back
        reuse.note(kind, True)
    for _ in range(1000):  # one that did not
        reuse.note(kind, False, weight=0.001)
    assert 0.6 < reuse.chance(kind) < 0.8


def test_what_was_true_once_is_forgotten():
    reuse, kind = ReuseModel(), kind_of_request("branches", 100)
    for _ in range(100_000):
        reuse.note(kind, True)
    for _ in range(20_000):
        reuse.note(kind, False)
    assert reuse.chance(kind) < 0.2


def test_a_cache_that_is_too_small_still_learns():
    reuse, kind = ReuseModel(), kind_of_request("continues", 100)
    for _ in range(1000):  # always forgotten first, always wanted again
        reuse.note(kind, False)
        reuse.regret(kind)
    assert reuse.chance(kind) > 0.95


def test_costly_and_urgent_blocks_live_longer():
    key = priority_frequency(BLOCKS, 16, ReuseModel())
    (plain,) = key(BlockUse(0, last=10))
    assert key(BlockUse(4096 // 16, last=10)) == (pytest.approx(plain + BLOCKS / 50),)
    assert key(BlockUse(0, last=10, urgency=1)) == (plain + BLOCKS / 2,)
    assert key(BlockUse(0, last=10, urgency=-1)) == (plain - BLOCKS / 2,)
    assert key(BlockUse(0, last=10, urgency=99)) == key(BlockUse(0, last=10, urgency=4))


def test_a_chain_is_forgotten_from_its_end():
    """Whatever sequences of common prefixes come and go, nobody outlives what stands before it."""
    for policy in POLICIES.values():
        rng, reuse = random.Random(1), ReuseModel()
        pool = BlockPool(64, policy(64, 16, reuse), reuse, lambda block, use, taker: None)
        chains = [pool.allocate(8)]
        for _ in range(5):  # a tree: every chain begins like another one
            stem = rng.choice(chains)[: rng.randint(1, 7)]
            pool.share(stem)
            chains.append(stem + pool.allocate(8))
        parents = {}
        for chain in chains:
            for depth, block in enumerate(chain):
                if block not in pool._uses:
                    pool.keep(block, BlockUse(depth, kind=rng.randrange(52), weight=1.0))
                parents[block] = chain[depth - 1] if depth else None
        for chain in chains:
            pool.release(chain)
        for _ in range(100):
            chain = rng.choice(chains)
            read = chain[: rng.randint(1, len(chain))]
            pool.share(read, urgency=rng.randint(-2, 2))
            pool.clock += rng.randrange(30)
            reuse.note(rng.randrange(52), rng.random() < 0.3)
            pool.release(read)
        gone = set()
        while len(pool._order):
            block = pool._order.pop()
            assert parents[block] not in gone
            gone.add(block)
        assert gone == set(parents)
