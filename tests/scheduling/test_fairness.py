"""Virtual token counters: each tenant gets its share, idle time gives no credit, nothing is held back in vain."""

import random

import pytest

from octavo.errors import ConfigError
from octavo.scheduling.fairness import FairQueue, read_weights
from octavo.scheduling.sequence import Place, open_sequence
from tests.fakes import request
from tests.scheduling.virtual import Virtual


def sequence(number, tenant, arrived=0.0):
    place = Place((arrived, number), 0, arrived)
    return open_sequence(number, 0, request(str(number), [1], tenant=tenant), place, None, 100)


def take(queue, service):
    """Serve whose turn it is."""
    one = queue.first()
    queue.remove(one)
    queue.charge(one, service(one) if callable(service) else service)
    return one


def test_the_least_served_tenant_is_next_and_its_eldest_request():
    queue = FairQueue({})
    members = [sequence(1, "a"), sequence(2, "a"), sequence(3, "b"), sequence(4, "a"), sequence(5, "b")]
    for one in members:
        queue.push(one)
    assert (len(queue), queue.tenants) == (5, 2)
    assert [take(queue, 10).id for _ in range(5)] == [1, 3, 2, 5, 4]
    assert queue.first() is None


def test_weights_are_shares():
    queue, served = FairQueue({"a": 3.0}), {"a": 0, "b": 0}
    for number in range(400):
        queue.push(sequence(number, "ab"[number % 2]))
    for _ in range(200):
        one = take(queue, 5)
        served[one.request.tenant] += 1
    assert served["a"] == pytest.approx(150, abs=2)


def test_a_weight_that_comes_with_a_request_wins():
    def served(weight):
        queue = FairQueue({"t": 4.0})
        one = open_sequence(1, 0, request("1", [1], tenant="t", tenant_weight=weight), Place((0, 1), 0, 0), None, 100)
        queue.push(one)
        queue.charge(one, 8.0)
        return queue._accounts["t"].served

    assert (served(0.0), served(2.0), served(8.0)) == (2.0, 4.0, 1.0)


def test_time_away_gives_no_credit():
    queue = FairQueue({})
    for number in range(100):
        queue.push(sequence(number, "busy"))
    for _ in range(50):
        take(queue, 10)
    for number in range(100, 150):
        queue.push(sequence(number, "late"))
    turns = [take(queue, 10).request.tenant for _ in range(20)]
    assert turns.count("late") == 10
    assert turns[:2] != ["late", "late"]


def test_who_used_an_idle_machine_does_not_pay_for_it():
    queue = FairQueue({})
    queue.push(sequence(1, "a"))
    take(queue, 1000)
    for number in range(10):
        queue.push(sequence(10 + number, "b"))
        queue.push(sequence(30 + number, "a"))
    turns = [take(queue, 1).request.tenant for _ in range(10)]
    assert turns.count("a") == turns.count("b") == 5


def test_any_order_of_events_keeps_the_queue_whole():
    for seed in range(20):
        rng, queue, inside = random.Random(seed), FairQueue({"x": 2.0}), {}
        for tick in range(300):
            if rng.random() < 0.5 or not inside:
                one = sequence(tick, rng.choice("xyz"), rng.random())
                queue.push(one)
                inside[tick] = one
            elif rng.random() < 0.5:
                one = take(queue, rng.randint(0, 20))
                del inside[one.id]
            else:
                queue.remove(inside.pop(rng.choice(list(inside))))
            assert len(queue) == len(inside)
            assert {one.id for one in queue} == set(inside)
            first, waiting = queue.first(), {one.request.tenant for one in inside.values()}
            assert queue.tenants == len(waiting)
            if first is not None:
                least = min(queue._accounts[name].served for name in waiting)
                assert queue._accounts[first.request.tenant].served == least
                assert (
                    list(queue.ahead(1)) == [first]
                    or queue._accounts[next(iter(queue.ahead(1))).request.tenant].served == least
                )


def test_tenants_who_went_are_forgotten():
    queue = FairQueue({})
    for number in range(30_000):
        queue.push(sequence(number, f"user{number}"))
        take(queue, 3)
    assert len(queue._accounts) < 10_000
    assert len(queue._heap) < 10_000


def test_a_crowd_of_tenants_that_wait_is_not_searched_for_each_new_one(monkeypatch):
    queue, searches = FairQueue({}), []
    prune = FairQueue._prune
    monkeypatch.setattr(FairQueue, "_prune", lambda self: (searches.append(len(self)), prune(self)))
    for number in range(20_000):
        queue.push(sequence(number, f"user{number}"))
    assert (len(queue), queue.tenants) == (20_000, 20_000)
    assert 0 < len(searches) <= 2
    for _ in range(20_000):
        take(queue, 1.0)
    queue.push(sequence(20_000, "new"))
    assert queue.first().id == 20_000


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=0", "a=-1", "a=nan", "a=lots"])
def test_weights_that_are_none(text):
    with pytest.raises(ConfigError, match="tenant_weights"):
        read_weights([text])


def test_two_weights_of_one_tenant_are_refused():
    with pytest.raises(ConfigError, match=r"'a' has two weights, 1 and 2"):
        read_weights(["a=1", "b=1", "a=2"])


def test_weights_as_written():
    assert read_weights(["a=2", "b=c=0.5"]) == {"a": 2.0, "b=c": 0.5}


def backlogged(policy, weights=None, seconds=20.0):
    """Three tenants that always have something waiting, of very different appetites; tokens of each."""
    engine = Virtual(max_num_seqs=8, policy=policy, tenant_weights=weights or {})
    arrivals = []
    for tenant, count, prompt, answer in (("a", 400, 50, 20), ("b", 200, 400, 40), ("c", 1200, 20, 60)):
        arrivals += [
            (1.0 + i * 0.001, request(f"{tenant}{i}", [i, ord(tenant), *range(prompt)], answer, tenant=tenant))
            for i in range(count)
        ]
    served = dict.fromkeys("abc", 0)

    def count_tokens(plan):
        for row in plan.rows:
            name = engine.scheduler._roster.members[row.sequence].request.tenant
            served[name] += row.count if row.count > 1 else 2

    engine.on_step = count_tokens
    engine.run(arrivals, until=seconds)
    return served, engine


def test_equal_tenants_get_equal_service():
    served, _ = backlogged("fair")
    mean = sum(served.values()) / 3
    assert all(abs(value - mean) < 0.05 * mean for value in served.values())
    unfair, _ = backlogged("fcfs")
    assert max(unfair.values()) > 2 * min(unfair.values())


def test_service_follows_weights():
    served, _ = backlogged("fair", {"a": 2.0, "c": 0.5}, seconds=12.0)
    assert served["a"] / served["b"] == pytest.approx(2.0, rel=0.1)
    assert served["c"] / served["b"] == pytest.approx(0.5, rel=0.1)


def test_fairness_costs_no_work():
    """The machine is as full as in order of arrival: nothing is held back while there is a slot."""
    _, fair = backlogged("fair")
    assert all(len(plan.rows) == 8 for plan, _ in fair.steps[20:])


def test_a_light_tenant_beside_a_flood():
    """Its requests take little longer than without the flood; in order of arrival they wait for all of it."""
    took = {}
    for policy, floods in (("fair", False), ("fair", True), ("fcfs", True)):
        engine = Virtual(max_num_seqs=8, policy=policy)
        light = [(2.0 + i, request(f"l{i}", [i, *range(64)], 16, tenant="light")) for i in range(10)]
        heavy = [(1.0 + i / 100, request(f"h{i}", [i, *range(99)], 64, tenant="flood")) for i in range(600 * floods)]
        engine.run([*light, *heavy])
        times = [engine.ends[f"l{i}"].times for i in range(10)]
        took[policy, floods] = sum(one.last_token - one.arrival for one in times) / 10
    assert took["fair", True] < 5 * took["fair", False]
    assert took["fcfs", True] > 20 * took["fair", False]
