"""What is too late ends where it is, costs nothing more, and leaves nothing behind."""

from dataclasses import replace

import pytest

from octavo.errors import DeadlineExceededError, OverloadedError
from octavo.flow.result import FinishReason
from octavo.scheduling.deadlines import Deadlines, Expiry
from tests.fakes import request
from tests.scheduling.driver import Engine


def reasons(engine):
    return {name: stream.reason for (name, _), stream in engine.streams.items()}


def test_who_waits_too_long_is_never_computed():
    engine = Engine(max_num_seqs=1)
    engine.add(request("run", [1], 9), request("wait", [2], 9, timeout=3.0), request("ttft", [3], 9, ttft_deadline=4.0))
    engine.run()
    assert reasons(engine) == {"run": FinishReason.LENGTH, "wait": FinishReason.TIMEOUT, "ttft": FinishReason.TIMEOUT}
    assert {row.sequence for plan in engine.executor.plans for row in plan.rows} == {1}
    assert engine.loop.stats().expired == 2
    assert engine.streams["wait", 0].end.times.last_token == 0.0


def test_a_prompt_under_way_and_an_answer_under_way_end():
    engine = Engine(max_num_batched_tokens=8, blocks=60)
    engine.add(request("answer", [1], 30, timeout=5.0), request("prompt", range(60), 4, ttft_deadline=3.0))
    engine.run()
    assert reasons(engine) == {"answer": FinishReason.TIMEOUT, "prompt": FinishReason.TIMEOUT}
    assert len(engine.streams["answer", 0].token_ids) == 5
    assert len(engine.executor.plans) == 5


def test_the_first_token_in_time_is_enough_for_the_first_deadline():
    engine = Engine(max_num_seqs=1)
    engine.add(request("a", range(9), 6, n=2, ttft_deadline=4.0)).run()
    # The second sample waits for the place of the first, and for too long.
    assert [engine.streams["a", index].reason for index in range(2)] == [FinishReason.LENGTH, FinishReason.TIMEOUT]


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_servers_deadlines_hold_for_all_and_the_earlier_counts(pipelined):
    engine = Engine(max_num_seqs=3, request_timeout=6.0, pipelined=pipelined)
    engine.add(request("a", [1], 30), request("b", [2], 30, timeout=3.0), request("c", [3], 30, timeout=99.0)).run()
    lengths = [len(engine.streams[name, 0].token_ids) for name in "abc"]
    assert lengths == ([5, 2, 5] if pipelined else [6, 3, 6])
    assert set(reasons(engine).values()) == {FinishReason.TIMEOUT}


def test_a_deadline_in_the_past_is_refused():
    engine = Engine(max_num_seqs=1)
    engine.now = 10.0
    for options in ({"timeout": 4.0}, {"ttft_deadline": 4.0}):
        with pytest.raises(DeadlineExceededError, match=next(iter(options))) as caught:
            engine.add(request("late", [1], 4, arrival=5.5, **options))
        assert caught.value.status == 504
    engine.check_idle()
    engine.add(request("late", [1], 4, arrival=5.5, timeout=20.0)).run()
    assert reasons(engine) == {"late": FinishReason.LENGTH}


def test_an_id_that_comes_again_has_only_its_new_deadline():
    engine = Engine()
    engine.add(request("a", [1], 2, timeout=5.0)).run()
    engine.add(request("a", [1], 9, timeout=50.0)).run()
    assert reasons(engine) == {"a": FinishReason.LENGTH}


def test_the_heap():
    deadlines = Deadlines()
    deadlines.add("a", 5.0, 2.0)
    deadlines.add("b", 3.0, None)
    deadlines.add("c", None, None)
    assert len(deadlines) == 2
    assert deadlines.due(1.0) == []
    assert deadlines.due(3.0) == [Expiry("a", True), Expiry("b", False)]
    deadlines.forget("a")
    deadlines.forget("nobody")
    assert deadlines.due(9.0) == []


def test_deadlines_of_those_who_ended_are_not_remembered():
    deadlines = Deadlines()
    for number in range(50_000):
        deadlines.add(str(number), 1e9, 1e8)
        if number >= 10:
            deadlines.forget(str(number - 10))
    assert len(deadlines._heap) < 200


def test_tokens_that_may_wait_are_limited():
    engine = Engine(max_num_seqs=1, max_waiting_tokens=20)
    engine.add(request("run", [1] * 30, 5))  # alone, anything that fits is taken
    engine.step()
    engine.add(request("a", [1] * 15, 1))
    with pytest.raises(OverloadedError, match=r"15 tokens wait already and this one has 6; the limit is 20"):
        engine.add(request("b", [1] * 6, 1))
    engine.add(request("c", [1] * 5, 1))
    assert engine.loop.stats().waiting_tokens == 20
    engine.loop.cancel(["a"])
    assert engine.loop.stats().waiting_tokens == 5
    engine.run()
    assert engine.loop.stats().waiting_tokens == 0


def test_who_was_taken_on_before_is_not_refused_for_what_waits_nor_for_being_late():
    engine = Engine(max_num_seqs=1, max_waiting=1, max_waiting_tokens=20)
    resumed = [replace(request(name, [1] * 15, 1), resumed=True) for name in "abc"]
    engine.add(*resumed)
    engine.add(replace(request("late", [1] * 15, 1), resumed=True, arrival=-5.0, timeout=1.0))
    with pytest.raises(OverloadedError):
        engine.add(request("new", [1], 1))
    engine.run()
    engine.check_answers(resumed)
    reasons = [engine.streams[name, 0].reason for name in ("a", "b", "c", "late")]
    assert reasons == [FinishReason.LENGTH] * 3 + [FinishReason.TIMEOUT]


# --- pause -----------------------------------------------------------------------------------------------------------


def test_a_pause_lets_what_runs_end_and_starts_nothing():
    engine = Engine(blocks=8, max_num_seqs=3)
    old = [request("a", [1] * 6, 10), request("b", [2] * 6, 10), request("c", [3] * 6, 10, n=2)]
    engine.add(*old)
    engine.step()
    engine.loop.pause()
    new = request("new", [4], 3)
    engine.add(new)
    while engine.loop.stats().under_way:
        engine.step()
    assert engine.loop.stats().preemptions > 0  # who was preempted goes on, too
    started = [one for one in old if engine.streams[one.id, 0].reason]
    engine.check_answers(started)
    assert engine.streams["new", 0].token_ids == []
    assert engine.step() == []
    assert engine.loop.stalled
    engine.loop.resume()
    engine.run().check_answers([*old, new])


def test_keep_stops_everything_where_it_is():
    engine = Engine()
    asked = request("a", [1] * 6, 10)
    engine.add(asked)
    engine.step()
    engine.loop.pause("keep")
    used = engine.loop.stats().used_blocks
    for _ in range(3):
        assert engine.step() == []
    assert engine.loop.stats().used_blocks == used > 0
    engine.loop.resume()
    engine.run().check_answers([asked])


def test_abort_ends_everything_at_once():
    engine = Engine(max_num_seqs=1)
    engine.add(request("a", [1], 9, n=2), request("b", [2], 9))
    engine.step()
    engine.loop.pause("abort")
    engine.step()
    assert set(reasons(engine).values()) == {FinishReason.ABORT}
    engine.check_idle()
    engine.add(request("c", [3], 2))
    assert engine.step() == []
    engine.loop.resume()
    engine.run()


def test_deadlines_pass_while_nothing_runs():
    engine = Engine()
    engine.add(request("a", [1] * 6, 10, timeout=3.0))
    engine.loop.pause("keep")
    for _ in range(4):
        engine.step()
    assert reasons(engine) == {"a": FinishReason.TIMEOUT}
    engine.check_idle()
