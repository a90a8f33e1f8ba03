"""The loop hands out what steps say, and a step that fails takes nobody else with it."""

import pytest

from octavo.flow.result import FinishReason, StepResult
from tests.fakes import request
from tests.scheduling.driver import Engine


def fail_at(engine, step, error):
    def submit(plan):
        engine.check_plan(plan)
        if len(engine.executor.plans) == step:
            raise error

    engine.executor.on_submit = submit


def test_an_error_ends_what_was_in_the_step_and_nothing_else():
    engine = Engine(max_num_seqs=2)
    requests = [request(str(index), [index] * 6, 5) for index in range(4)]
    engine.add(*requests)
    fail_at(engine, 3, RuntimeError("out of luck"))
    engine.run()
    reasons = [engine.streams[str(index), 0].reason for index in range(4)]
    assert reasons == [FinishReason.ERROR] * 2 + [FinishReason.LENGTH] * 2
    end = engine.streams["0", 0].end
    assert end.error == "RuntimeError: out of luck"
    assert len(engine.streams["0", 0].token_ids) == 2
    engine.check_answers(requests[2:])


def test_slots_that_a_failed_step_was_to_release_are_released_later():
    engine = Engine(max_num_seqs=3)
    engine.add(request("short", [1], 1), request("a", [2], 3))
    fail_at(engine, 2, RuntimeError())
    engine.step()
    engine.step()
    engine.add(*(request(f"later{index}", [3], 2) for index in range(3)))
    engine.run()
    assert all(engine.streams[f"later{index}", 0].reason is FinishReason.LENGTH for index in range(3))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("tokens", [3, 24])
def test_behind_a_failed_step_the_next_one_is_sound(caching, tokens):
    """It was submitted before anybody knew: nothing in it may rest on what the failed one was to do."""
    for number in range(1, 12):
        engine = Engine(
            blocks=6, block_size=2, caching=caching, pipelined=True, max_num_seqs=2, max_num_batched_tokens=tokens
        )
        asked = [request("a", [0] * 4, 2, n=3), request("b", [1] * 3, 3), request("c", [2], 2)]
        hit, members = set(), engine.scheduler._roster.members

        def submit(plan, engine=engine, number=number, hit=hit, members=members):
            engine.check_plan(plan)
            if len(engine.executor.plans) == number:
                hit.update((members[r.sequence].request.id, members[r.sequence].index) for r in plan.rows)
                raise RuntimeError("gone")

        engine.executor.on_submit = submit
        engine.add(*asked).run()
        failed = {key for key, stream in engine.streams.items() if stream.reason is FinishReason.ERROR}
        assert failed == hit
        engine.check_answers(one for one in asked if not any((one.id, index) in hit for index in range(one.n)))


def test_a_result_that_does_not_fit_is_an_error_of_its_step():
    engine = Engine()
    engine.add(request("a", [1], 3))
    submit = engine.executor.submit

    class Wrong:
        def wait(self):
            return StepResult(-1, ())

    engine.executor.submit = lambda _plan: Wrong()
    engine.step()
    assert "InternalError" in engine.streams["a", 0].end.error
    engine.executor.submit = submit
    engine.add(request("b", [1], 3)).run()
    assert engine.streams["b", 0].reason is FinishReason.LENGTH


def test_an_interrupt_goes_through_and_loses_nothing():
    engine = Engine(max_num_seqs=1)
    asked = request("b", [2], 3)
    engine.add(request("a", [1], 3), asked)
    engine.step()
    engine.loop.cancel(["nobody"])
    fail_at(engine, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.run()
    assert engine.streams["a", 0].end.error == "interrupted"
    engine.check_answers([asked])


def test_an_idle_loop_submits_nothing():
    engine = Engine()
    assert not engine.loop.has_work
    assert engine.loop.step() == []
    assert engine.executor.plans == []


def test_statistics():
    engine = Engine(blocks=20, max_num_seqs=2)
    engine.add(*(request(str(index), [index] * 6, 3) for index in range(3)))
    engine.step()
    stats = engine.loop.stats()
    assert (stats.running, stats.waiting, stats.used_blocks, stats.num_blocks) == (2, 1, 4, 20)
    assert (stats.prompt_tokens, stats.generation_tokens, stats.steps) == (12, 2, 1)
    assert stats.step_seconds == pytest.approx(0.001)
    engine.run()
    stats = engine.loop.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.steps) == (18, 9, 6)
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (18, 0, 0)
