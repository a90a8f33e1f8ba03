"""Whose turn it is under each policy, who gives way, and how long anyone can be passed over."""

import random

import pytest

from octavo.flow.result import FinishReason
from octavo.scheduling.policy import AGEING_SECONDS, POLICIES, SECONDS_PER_TOKEN
from tests.fakes import FULL, request, window
from tests.scheduling.driver import Engine
from tests.scheduling.virtual import Device, Virtual

SECOND = Device(fixed=1.0, token=0.0, row=0.0, pair=0.0)  # a step takes a second


def starts(engine):
    """When each sequence first ran: numbers of steps."""
    found = {}
    for number, plan in enumerate(engine.executor.plans):
        for arrival in plan.arrivals:
            found.setdefault(arrival.sequence, number)
    return found


# --- order -----------------------------------------------------------------------------------------------------------


def test_shortest_job_first():
    engine = Engine(max_num_seqs=1, policy="sjf")
    engine.add(request("a", [1] * 9, 9), request("b", [2], 20), request("c", [3] * 4, 2)).run()
    assert sorted(starts(engine), key=starts(engine).get) == [3, 1, 2]


def test_longest_cached_prefix_first():
    engine = Engine(max_num_seqs=1, policy="lpm")
    engine.add(request("old", range(17), 1)).run()
    others = [
        request("none", [40] * 18, 1),
        request("half", [*range(8), 49, 49], 1),
        request("all", [*range(16), 48, 48], 1),
    ]
    engine.add(*others).run()
    assert sorted(starts(engine), key=starts(engine).get) == [1, 4, 3, 2]
    engine.check_answers(others)


def test_the_urgent_goes_before_a_prompt_under_way():
    engine = Engine(max_num_batched_tokens=8, policy="priority")
    engine.add(request("long", range(40), 1, priority=1))
    engine.step()
    engine.add(request("urgent", [1] * 12, 2))
    engine.step()
    engine.step()
    rows = [[(row.sequence, row.count) for row in plan.rows] for plan in engine.executor.plans]
    assert rows == [[(1, 8)], [(2, 8)], [(2, 4), (1, 4)]]
    engine.run()


# --- ageing ----------------------------------------------------------------------------------------------------------


def flood(policy, name, late, gap=1.0, count=400, **options):
    """One request of `options`, and others that each policy prefers; after how many seconds it started."""
    engine = Virtual(SECOND, max_num_seqs=1, policy=policy, max_num_batched_tokens=4096)
    arrivals = [(1.0, request("first", [9] * 20, 1)), (1.5, request(name, range(100), 8, **options))]
    arrivals += [(2.0 + index * gap, late(index)) for index in range(count)]
    engine.run(arrivals)
    assert len(engine.ends) == count + 2
    started = engine.ends[name].times.scheduled
    before = sum(1 for end in engine.ends.values() if end.times.arrival > 1.5 and end.times.scheduled < started)
    return started - 1.5, before


@pytest.mark.parametrize("levels", [1, 3])
def test_low_priority_starts_when_its_levels_are_waited_off(levels):
    waited, before = flood("priority", "low", lambda i: request(str(i), [i, 1], 1), priority=levels)
    # One urgent request a second, each a step long: those of the first levels * AGEING_SECONDS go before.
    assert levels * AGEING_SECONDS - 2 <= before <= levels * AGEING_SECONDS + 1
    assert waited <= levels * AGEING_SECONDS + 3


def test_a_long_job_starts_when_its_length_is_waited_off():
    short = 3
    work = 108 - short
    waited, before = flood("sjf", "long", lambda i: request(str(i), [i, 1], 1), gap=0.1)
    assert before <= work * SECONDS_PER_TOKEN / 0.1 + 1
    assert waited <= work * SECONDS_PER_TOKEN / 0.1 + 2


def test_an_uncached_prompt_is_passed_over_for_so_long_only():
    _, before = flood("lpm", "uncached", lambda i: request(str(i), [9] * 20, 1))
    assert AGEING_SECONDS - 2 <= before <= AGEING_SECONDS + 2


def test_nothing_overtakes_in_order_of_arrival():
    _, before = flood("fcfs", "any", lambda i: request(str(i), [i, 1], 1), priority=9)
    assert before == 0


# --- who gives way ---------------------------------------------------------------------------------------------------


def test_who_has_least_to_lose_gives_way():
    engine = Engine(blocks=12, caching=False, max_num_seqs=3, max_num_batched_tokens=64)
    asked = [request("a", [1] * 4, 20), request("b", [2] * 20, 20), request("c", [3] * 8, 20)]
    engine.add(*asked).run()
    engine.check_answers(asked)
    preempted = [sequence for plan in engine.executor.plans for sequence in plan.preempted]
    assert preempted[:2] == [1, 3]  # 4 and 8 tokens of prompt; never the 20
    assert 2 not in preempted


def test_what_came_from_the_cache_is_no_loss():
    engine = Engine(blocks=14, max_num_seqs=3, max_num_batched_tokens=64)
    engine.add(request("old", range(17), 1)).run()
    engine.add(request("a", [1] * 12, 20), request("b", [*range(16), 40, 40], 20))
    while not any(plan.preempted for plan in engine.executor.plans):
        engine.step()
    assert engine.executor.plans[-1].preempted == (3,)
    engine.run()


def test_the_urgent_takes_the_place_of_the_least_urgent():
    engine = Engine(blocks=64, max_num_seqs=2, policy="priority")
    asked = [request("a", [1] * 4, 20, priority=1), request("b", [2] * 4, 20, priority=2)]
    engine.add(*asked)
    engine.step()
    urgent = request("c", [3] * 4, 2)
    engine.add(urgent)
    engine.step()
    plan = engine.executor.plans[-1]
    assert plan.preempted == (2,)
    assert {row.sequence for row in plan.rows} == {1, 3}
    engine.run().check_answers([*asked, urgent])
    assert (engine.loop.stats().overtaken, engine.loop.stats().preemptions) == (1, 1)
    assert engine.loop.stats().expired == 0


def test_equals_do_not_take_each_others_place():
    for policy in POLICIES:
        engine = Engine(max_num_seqs=1, policy=policy)
        engine.add(request("a", [1] * 4, 20, tenant="a"))
        engine.step()
        engine.add(request("b", [2] * 4, 1, tenant="b")).run()
        assert engine.loop.stats().preemptions == 0, policy


def test_nobody_gives_way_in_vain():
    engine = Engine(blocks=16, max_num_seqs=4, policy="priority")
    engine.add(request("high", [1] * 30, 20), request("low", [2] * 4, 20, priority=5))
    engine.step()
    engine.add(request("urgent", [3] * 40, 4))  # does not fit beside "high", whatever "low" gives
    engine.step()
    assert engine.loop.stats().preemptions == 0
    engine.run()


@pytest.mark.parametrize("groups", [(FULL,), (FULL, window(6))], ids=["full", "window"])
@pytest.mark.parametrize("seed", range(6))
def test_the_blocks_of_the_less_urgent_never_hold_up_the_more_urgent(groups, seed):
    """In every step: whoever waits could not have started, whatever all less urgent sequences had given back."""
    rng = random.Random(seed)
    engine = Engine(groups, blocks=24 * len(groups), max_num_seqs=4, policy="priority", max_num_batched_tokens=128)
    roster, asked = engine.scheduler._roster, []

    def check(plan):
        engine.check_plan(plan)
        head, left = roster.line.first(), 128 - plan.num_tokens
        if head is None or not left or head.id in plan.preempted:
            return
        worse = [one for one in roster.running.values() if one.level > head.level]
        if worse:
            needed = engine.cache.peak(head.length, min(head.length, left)) - engine.cache.available
            assert engine.cache.victims(needed, [one.blocks for one in worse]) is None

    engine.executor.on_submit = check
    for tick in range(80):
        if rng.random() < 0.5:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 40))]
            one = request(str(tick), prompt, rng.randint(1, 20), priority=rng.randrange(3), n=rng.choice([1, 1, 2]))
            asked.append(one)
            engine.add(one)
        engine.step()
    engine.run().check_answers(asked)
    assert engine.loop.stats().overtaken


# --- spill -----------------------------------------------------------------------------------------------------------


def test_a_preemption_counts_as_spilled_when_the_cache_says_that_its_blocks_come_back(monkeypatch):
    engine = Engine(blocks=8, max_num_seqs=4)
    offered = []

    def comes_back(tokens):
        assert tokens > 0
        offered.append(tokens)
        return tokens > 6

    monkeypatch.setattr(engine.cache, "comes_back", comes_back)
    asked = [request(str(index), [index] * 6, 10) for index in range(4)]
    engine.add(*asked).run().check_answers(asked)
    counters = engine.scheduler.stats().counters
    assert counters.preemptions == len(offered) > 0
    assert counters.spilled == sum(tokens > 6 for tokens in offered)


def test_every_policy_ends_a_mixed_load_in_the_smallest_pools():
    rng = random.Random(7)
    asked = [
        request(
            str(index),
            [rng.randrange(4) for _ in range(rng.randint(1, 12))],
            rng.randint(1, 12),
            priority=rng.randrange(-2, 3),
            tenant=rng.choice("abc"),
        )
        for index in range(40)
    ]
    for policy in POLICIES:
        for blocks in (6, 7, 9, 13):
            engine = Engine(blocks=blocks, max_num_seqs=5, max_num_batched_tokens=9, policy=policy)
            engine.add(*asked).run().check_answers(asked)
            assert all(stream.reason is FinishReason.LENGTH for stream in engine.streams.values())
