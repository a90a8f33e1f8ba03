"""The queue is sorted by rank, whatever joined, left and came back."""

import random
from types import SimpleNamespace

from octavo.scheduling.policy import AGEING_SECONDS, POLICIES
from octavo.scheduling.queue import WaitingQueue
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


def test_those_who_left_the_middle_are_skipped_once():
    queue, members = WaitingQueue(), [SimpleNamespace(rank=(0, tick)) for tick in range(10_000)]
    for member in members:
        queue.push(member)
    for member in members[1:4000]:
        queue.remove(member)
    assert len(queue._sequences) == 10_000
    assert queue.ahead(3) == [members[0], *members[4000:4002]]
    assert len(queue._sequences) == len(queue) == 6001
    queue.push(members[1])
    assert list(queue) == [*members[:2], *members[4000:]]


def test_ranks():
    urgent, usual = request("a", [1], priority=-1), request("b", [1])
    fcfs, priority, shortest = (POLICIES[name].rank_of for name in ("fcfs", "priority", "sjf"))
    assert fcfs(usual, 1, 5.0) < fcfs(urgent, 2, 5.0) < fcfs(usual, 3, 6.0)
    assert priority(urgent, 2, 5.0) < priority(usual, 1, 5.0) < priority(usual, 3, 5.0)
    # A level of priority is worth so much waiting, and no more.
    assert priority(urgent, 2, 4.9 + AGEING_SECONDS) < priority(usual, 1, 5.0)
    assert priority(usual, 1, 5.0) < priority(urgent, 2, 5.1 + AGEING_SECONDS)
    assert priority(request("c", [1], priority=-(10**400)), 1, 0.0) < priority(usual, 2, 0.0)
    assert shortest(request("d", [1] * 9, 100), 1, 0.0) > shortest(request("e", [1] * 9, 50), 2, 0.0)
    assert shortest(request("d", [1] * 9, 100), 1, 0.0) < shortest(request("e", [1] * 9, 50), 2, 0.6)
