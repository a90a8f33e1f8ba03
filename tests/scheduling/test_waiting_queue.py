"""The queue is sorted by rank, whatever joined, left and came back."""

import random
from types import SimpleNamespace

from octavo.scheduling.queue import POLICIES, WaitingQueue
from tests.fakes import request


def test_any_order_of_arrivals_and_departures():
    for seed in range(30):
        rng, queue, inside, outside = random.Random(seed), WaitingQueue(), [], []
        for tick in range(300):
            what = rng.random()
            if what < 0.45 or not inside:
                late = rng.random() < 0.7
                member = SimpleNamespace(rank=(0 if late else rng.randrange(-2, 3), tick))
                queue.push(member)
                inside.append(member)
            elif what < 0.75:
                member = min(inside, key=lambda one: one.rank)
                assert queue.first() is member
                queue.remove(member)
                inside.remove(member)
                outside.append(member)
            elif what < 0.9:
                member = rng.choice(inside)
                queue.remove(member)
                inside.remove(member)
                outside.append(member)
            elif outside:
                member = outside.pop(rng.randrange(len(outside)))
                queue.push(member)
                inside.append(member)
            assert list(queue) == sorted(inside, key=lambda one: one.rank)
            assert len(queue) == len(inside)
        for member in list(queue):
            queue.remove(member)
        assert queue.first() is None


def test_those_who_left_are_not_remembered():
    queue = WaitingQueue()
    for tick in range(5000):
        queue.push(SimpleNamespace(rank=(0, tick)))
        if tick >= 10:
            queue.remove(queue.first())
    assert len(queue._sequences) < 100


def test_policies():
    urgent, usual = request("a", [1], priority=-1), request("b", [1])
    assert POLICIES["fcfs"](usual, 1) < POLICIES["fcfs"](urgent, 2)
    assert POLICIES["priority"](urgent, 2) < POLICIES["priority"](usual, 1)
    assert POLICIES["priority"](usual, 1) < POLICIES["priority"](usual, 3)
