"""The eviction order gives up the least worth keeping first, whatever joined and left before."""

import random

import pytest

from octavo.cache.eviction import BlockUse, EvictionOrder, lru


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
