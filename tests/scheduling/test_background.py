"""Background work under every policy: behind all others, in nobody's way, and correct in spite of that."""

import pytest

from octavo.scheduling.policy import POLICIES
from tests.fakes import request
from tests.scheduling.driver import Engine
from tests.scheduling.test_policies import starts

DAY = 86_400.0


@pytest.mark.parametrize("policy", POLICIES)
def test_background_work_starts_last(policy):
    engine = Engine(max_num_seqs=1, policy=policy)
    engine.add(request("old", range(17), 1)).run()
    asked = [
        request("later", range(16), 2, lag=DAY, priority=-3),  # short and cached: it would be first
        request("a", [5] * 20, 6, tenant="x"),
        request("b", [6] * 20, 6, tenant="y", priority=3),
    ]
    engine.add(*asked).run().check_answers(asked)
    assert max(starts(engine), key=starts(engine).get) == 2


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [64, 12])
def test_background_work_gives_its_place_to_others(policy, blocks):
    engine = Engine(blocks=blocks, max_num_seqs=2, policy=policy)
    background = [request(name, [number] * 4, 20, lag=DAY) for number, name in enumerate("ab")]
    engine.add(*background)
    engine.step()
    assert len(engine.scheduler._roster.running) == 2
    others = [request(name, [9, number] * 4, 8, tenant=name) for number, name in enumerate("cd")]
    engine.add(*others)
    engine.step()
    assert {row.sequence for row in engine.executor.plans[-1].rows} == {3, 4}
    engine.run().check_answers([*background, *others])
    assert engine.loop.stats().preemptions >= 2
    assert engine.scheduler._roster.lagging == 0


def test_a_short_background_prompt_does_not_overtake_a_long_one():
    engine = Engine(max_num_batched_tokens=8)
    asked = [request("long", range(40), 1), request("short", [1, 2], 1, lag=DAY)]
    engine.add(*asked)
    engine.step()
    assert [(row.sequence, row.count) for row in engine.executor.plans[-1].rows] == [(1, 8)]
    engine.run().check_answers(asked)


def test_two_of_the_background_are_equals():
    for policy in POLICIES:
        engine = Engine(max_num_seqs=1, policy=policy)
        engine.add(request("a", [1] * 4, 20, lag=DAY))
        engine.step()
        engine.add(request("b", [2] * 4, 1, lag=DAY)).run()
        assert engine.loop.stats().preemptions == 0, policy
