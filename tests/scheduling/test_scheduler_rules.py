"""What the scheduler promises, rule by rule."""

import pytest

from octavo.errors import ConfigError, InternalError, InvalidRequestError, OverloadedError, PromptTooLongError
from octavo.flow.plan import PlannedRow
from octavo.flow.result import FinishReason, StepResult
from octavo.scheduling.budget import StepDraft
from tests.fakes import FULL, oracle, request, window
from tests.scheduling.driver import Engine


def plans(engine):
    return [[(row.sequence, row.start, row.count, row.samples) for row in plan.rows] for plan in engine.executor.plans]


# --- order and budget ------------------------------------------------------------------------------------------------


def test_decode_goes_first_and_a_long_prompt_is_cut():
    engine = Engine(max_num_batched_tokens=8)
    engine.add(request("a", [1, 2], 6))
    engine.step()
    engine.add(request("b", range(20), 2)).run()
    assert plans(engine) == [
        [(1, 0, 2, True)],
        [(1, 2, 1, True), (2, 0, 7, False)],
        [(1, 3, 1, True), (2, 7, 7, False)],
        [(1, 4, 1, True), (2, 14, 6, True)],
        [(1, 5, 1, True), (2, 20, 1, True)],
        [(1, 6, 1, True)],
    ]


def test_a_long_prompt_lets_short_ones_pass():
    engine = Engine(max_num_batched_tokens=8, max_model_len=200)
    engine.add(request("long", range(100), 1), request("longer", range(120), 1))
    engine.add(*(request(str(index), [index, 1, 2], 1) for index in range(4)))
    ends = {}
    while engine.loop.has_work:
        for output in engine.step():
            ends[output.request_id] = len(engine.executor.plans)
    assert [ends[str(index)] for index in range(4)] == [1, 2, 3, 4]
    assert ends["long"] < ends["longer"]
    assert all(plan.rows[0].count >= 4 for plan in engine.executor.plans if plan.num_tokens == 8)


def test_short_prompts_that_keep_coming_do_not_stop_a_long_one():
    engine = Engine(max_num_batched_tokens=8, max_model_len=200)
    engine.add(request("long", range(100), 1))
    for index in range(30):
        engine.add(request(str(index), [index, 1, 2, 3], 1))
        if any(output.request_id == "long" for output in engine.step()):
            break
    assert len(engine.executor.plans) == 24  # half of every step, and the last 8 tokens at once


def test_without_chunks_every_prompt_is_whole_and_none_starves():
    engine = Engine(max_num_batched_tokens=64, enable_chunked_prefill=False)
    engine.add(*(request(f"s{index}", [index, 1], 30) for index in range(6)))
    engine.step()
    engine.add(request("whole", range(63), 1))
    engine.step()
    assert engine.streams["whole", 0].reason is FinishReason.LENGTH
    engine.run()


def test_first_come_first_served():
    engine = Engine(max_num_seqs=1)
    engine.add(*(request(str(index), [index], 2, priority=-index) for index in range(4))).run()
    assert [row[0][0] for row in plans(engine)] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_priority_goes_before_arrival():
    engine = Engine(max_num_seqs=1, policy="priority")
    engine.add(request("a", [1], 1, priority=5), request("b", [2], 1), request("c", [3], 1, priority=-1)).run()
    assert [row[0][0] for row in plans(engine)] == [3, 2, 1]


def test_more_sequences_than_tokens_in_a_step():
    engine = Engine(max_num_seqs=6, max_num_batched_tokens=2)
    requests = [request(str(index), [index, 2, 3], 5) for index in range(6)]
    engine.add(*requests).run()
    engine.check_answers(requests)


# --- preemption ------------------------------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_answers_the_same():
    engine = Engine(blocks=8, max_num_seqs=4)
    requests = [request(str(index), [index] * 6, 10) for index in range(4)]
    engine.add(*requests).run()
    engine.check_answers(requests)
    preempted = [sequence for plan in engine.executor.plans for sequence in plan.preempted]
    assert preempted
    assert 1 not in preempted
    assert engine.loop.stats().preemptions == len(preempted)
    assert sum(stream.end.times.preemptions for stream in engine.streams.values()) == len(preempted)


def test_the_lowest_priority_gives_way():
    engine = Engine(blocks=8, max_num_seqs=4, policy="priority")
    requests = [request(str(index), [index] * 4, 10, priority=3 - index) for index in range(4)]
    engine.add(*requests).run()
    engine.check_answers(requests)
    preempted = [sequence for plan in engine.executor.plans for sequence in plan.preempted]
    assert preempted
    assert preempted[0] == 1
    assert 4 not in preempted


def test_a_prompt_waits_until_there_is_room_for_all_of_it():
    engine = Engine(blocks=12, max_num_batched_tokens=16)
    engine.add(request("old", [1] * 12, 12))
    engine.step()
    engine.add(request("new", [2] * 40, 4))
    engine.run()
    assert engine.loop.stats().preemptions == 0


def test_the_tokens_of_a_withdrawn_row_can_be_given_again():
    draft = StepDraft(5)
    draft.add(PlannedRow(1, 0, 0, 3, (), False))
    draft.add(PlannedRow(2, 1, 4, 1, (), True))
    assert (draft.withdraw(2).count, draft.tokens_left) == (1, 2)
    assert (draft.withdraw(1), draft.tokens_left) == (PlannedRow(1, 0, 0, 3, (), False), 5)
    assert (draft.withdraw(1), draft.tokens_left) == (None, 5)
    assert not draft.rows


def test_a_preempted_sequence_comes_back_with_all_its_tokens():
    engine = Engine(blocks=6, caching=False, max_num_seqs=2)
    engine.add(request("a", [1] * 4, 16), request("b", [2] * 4, 16)).run()
    arrivals = [arrival for plan in engine.executor.plans for arrival in plan.arrivals if arrival.sequence == 2]
    assert len(arrivals) == 2
    again = arrivals[1]
    done = len(again.token_ids) - again.prompt_len
    assert done > 0
    assert list(again.token_ids) == [2] * 4 + engine.streams["b", 0].token_ids[:done]


def test_log_probabilities_are_not_delivered_twice():
    options = {"logprobs": 0, "prompt_logprobs": 0}
    small, large = Engine(blocks=6, max_num_seqs=2), Engine(blocks=60, max_num_seqs=2)
    requests = [request("a", [1] * 5, 14, **options), request("b", [2] * 9, 10, **options)]
    for engine in (small, large):
        engine.add(*requests).run()
    assert small.loop.stats().preemptions > 0
    for key, stream in small.streams.items():
        assert stream.logprobs == large.streams[key].logprobs
        assert len(stream.logprobs) == len(stream.token_ids)
        assert stream.prompt_logprobs == large.streams[key].prompt_logprobs
    assert [len(stream.prompt_logprobs) for stream in small.streams.values()] == [4, 8]


# --- the prefix cache ------------------------------------------------------------------------------------------------


def test_a_known_prefix_is_not_computed_again():
    engine = Engine(groups=(FULL, window(6)))
    first, second = request("a", range(18), 2), request("b", [*range(16), 99], 2)
    engine.add(first).run()
    engine.add(second).run()
    engine.check_answers([first, second])
    assert engine.streams["b", 0].end.num_cached_tokens == 16
    stats = engine.loop.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.prompt_tokens) == (35, 16, 19)


def test_another_salt_computes_for_itself():
    engine = Engine()
    for salt, cached in [("", 0), ("s", 0), ("s", 16), ("", 16)]:
        name = f"{salt}{cached}"
        engine.add(request(name, range(18), 1, cache_salt=salt)).run()
        assert engine.streams[name, 0].end.num_cached_tokens == cached


def test_reset_makes_everything_new():
    engine = Engine()
    engine.add(request("a", range(18), 1)).run()
    assert engine.loop.reset_prefix_cache()
    engine.add(request("b", range(18), 1)).run()
    assert engine.streams["b", 0].end.num_cached_tokens == 0


def test_scored_prompts_do_not_depend_on_the_cache():
    prompts = [[*range(32), *[50 + length] * (length - 32)] for length in (33, 40, 60)]
    seen = []
    for order in ([0, 1, 2], [2, 1, 0], [0, 1, 2]):
        for chunk in (64, 16):
            engine = Engine(max_num_batched_tokens=chunk)
            for index in order * 2:
                name = f"{index}-{len(engine.streams)}"
                engine.add(request(name, prompts[index], 1, prompt_logprobs=1)).run()
                seen.append((index, tuple(engine.streams[name, 0].prompt_logprobs)))
    assert len(set(seen)) == 3
    assert {index: len(scores) for index, scores in seen} == {0: 32, 1: 39, 2: 59}


def test_samples_share_the_prompt():
    engine = Engine(max_num_seqs=4)
    asked = request("a", range(17), 3, n=4, seed=7)
    engine.add(asked).run()
    engine.check_answers([asked])
    assert len({tuple(stream.token_ids) for stream in engine.streams.values()}) == 4
    assert [engine.streams["a", index].end.num_cached_tokens for index in range(4)] == [0, 16, 16, 16]
    assert engine.loop.stats().prompt_tokens == 17 + 3


def test_samples_go_on_when_the_first_one_fails():
    engine = Engine()
    asked = request("a", range(17), 3, n=3)
    engine.executor.is_invalid = lambda row: row.sequence == 1
    engine.add(asked).run()
    assert [engine.streams["a", index].reason for index in range(3)] == [
        FinishReason.ERROR,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
    assert engine.streams["a", 1].end.num_cached_tokens == 0  # what the spoilt one wrote is not trusted


# --- ends ------------------------------------------------------------------------------------------------------------


def first_tokens(count=6, **options):
    return oracle(request("x", [1, 2, 3], count, **options), 0, (FULL,), 50, 64)[0]


def test_stop_ids_and_eos():
    token = first_tokens()[2]
    for ends, reason, stop in [
        ({"stop_token_ids": frozenset({token})}, FinishReason.STOP, token),
        ({"eos_token_ids": frozenset({token})}, FinishReason.STOP, None),
        ({"eos_token_ids": frozenset({token}), "stop_token_ids": frozenset({token})}, FinishReason.STOP, None),
        ({"eos_token_ids": frozenset({token}), "ignore_eos": True}, FinishReason.LENGTH, None),
    ]:
        engine = Engine()
        engine.add(request("x", [1, 2, 3], 6, **ends)).run()
        stream = engine.streams["x", 0]
        assert (stream.reason, stream.end.stop_token_id) == (reason, stop)
        assert stream.token_ids == first_tokens()[: 3 if reason is FinishReason.STOP else 6]


def test_min_tokens_suppresses_stopping():
    stops = frozenset(range(40))  # most of the vocabulary
    asked = request("x", [1, 2, 3], 9, min_tokens=4, stop_token_ids=stops)
    engine = Engine()
    engine.add(asked).run()
    engine.check_answers([asked])
    rows = [row for plan in engine.executor.plans for row in plan.rows]
    assert [row.suppress_stop for row in rows][:5] == [True] * 4 + [False]
    assert [row.output_index for row in rows] == list(range(len(rows)))
    assert not stops & set(engine.streams["x", 0].token_ids[:4])
    assert engine.executor.plans[0].arrivals[0].stop_ids == tuple(range(40))


def test_the_context_ends_a_sequence():
    engine = Engine(max_model_len=10)
    engine.add(request("x", [1, 2, 3], 100)).run()
    stream = engine.streams["x", 0]
    assert (len(stream.token_ids), stream.reason) == (7, FinishReason.LENGTH)


def test_a_sequence_that_outgrows_the_cache_ends():
    engine = Engine(blocks=8, max_model_len=512)
    asked, other = request("x", [1] * 20, 400), request("y", [2] * 3, 5)
    engine.add(asked, other).run()
    engine.check_answers([other])
    assert engine.streams["x", 0].reason is FinishReason.LENGTH
    assert len(engine.streams["x", 0].token_ids) == 32 + 1 - 20


def test_no_tokens_wanted_only_scores():
    engine = Engine(max_model_len=8)
    engine.add(request("x", range(8), 0, prompt_logprobs=0)).run()
    stream = engine.streams["x", 0]
    assert (stream.token_ids, stream.reason, len(stream.prompt_logprobs)) == ([], FinishReason.LENGTH, 7)


def test_times_and_order_of_events():
    engine = Engine()
    engine.add(request("x", [1, 2, 3], 4, arrival=0.5)).run()
    times = engine.streams["x", 0].end.times
    assert (times.arrival, times.scheduled, times.first_token, times.last_token) == (0.5, 1.0, 1.0, 4.0)


def test_logits_that_are_not_numbers_end_only_their_sequence():
    engine = Engine()
    spoilt, healthy = request("bad", [1] * 9, 8), request("good", [2] * 9, 8)
    engine.executor.is_invalid = lambda row: row.sequence == 1 and row.output_index == 3
    engine.add(spoilt, healthy).run()
    end = engine.streams["bad", 0].end
    assert (end.finish_reason, len(engine.streams["bad", 0].token_ids)) == (FinishReason.ERROR, 3)
    assert "not finite" in end.error
    engine.check_answers([healthy])
    engine.add(request("again", [1] * 9, 1)).run()
    assert engine.streams["again", 0].end.num_cached_tokens == 0


# --- cancel ----------------------------------------------------------------------------------------------------------


def test_cancel_while_waiting_running_and_unknown():
    engine = Engine(max_num_seqs=1)
    engine.add(request("run", range(9), 9), request("wait", [3], 9, n=3), request("share", range(9), 2, n=2))
    engine.step()
    engine.loop.cancel(["wait", "nobody", "run", "run", "share"])
    assert engine.loop.stats().used_blocks == 0
    assert len(engine.step()) == 1 + 3 + 2
    assert all(stream.reason is FinishReason.ABORT for stream in engine.streams.values())
    engine.run()


def test_cancel_between_plan_and_commit():
    engine = Engine()
    engine.add(request("a", range(6), 9, n=2), request("b", [9, 9], 2))
    plan = engine.scheduler.plan(1.0)
    result = engine.executor.submit(plan).wait()
    engine.take(engine.scheduler.cancel("a"))
    engine.take(engine.scheduler.commit(plan, result, 1.0))
    assert engine.streams["a", 0].token_ids == []
    engine.add(request("c", range(6), 2))
    engine.run()
    assert engine.streams["b", 0].reason is FinishReason.LENGTH
    assert engine.streams["a", 1].reason is FinishReason.ABORT


def test_ten_thousand_cancels():
    engine = Engine()
    engine.add(*(request(str(index), [1, 2], 4) for index in range(10_000)))
    engine.step()
    engine.loop.cancel([str(index) for index in range(10_000)])
    engine.check_idle()
    assert len(engine.loop.step()) == 10_000


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_can_never_run_is_refused_with_the_numbers():
    engine = Engine(blocks=4, max_model_len=100)
    with pytest.raises(PromptTooLongError, match=r"200 tokens.* 100 \(max_model_len\)"):
        engine.add(request("a", [1] * 200))
    with pytest.raises(PromptTooLongError, match=r"17 tokens.*4 blocks of 4 tokens.*16"):
        engine.add(request("a", [1] * 17))
    with pytest.raises(InvalidRequestError):
        engine.add(request("a", []))
    engine.add(request("a", [1] * 16))
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.add(request("a", [1]))
    engine.run()
    engine.add(request("a", [1])).run()


def test_a_full_queue_says_when_to_come_back():
    engine = Engine(max_num_seqs=1, max_waiting=20)
    engine.add(*(request(str(index), [1], 5) for index in range(21)))
    with pytest.raises(OverloadedError, match="20 requests wait") as caught:
        engine.add(request("late", [1]))
    assert caught.value.retry_after == 1.0  # nothing is known yet
    for _ in range(32):
        engine.step()
    engine.add(*(request(f"more{index}", [1], 5) for index in range(6)))
    with pytest.raises(OverloadedError) as caught:
        engine.add(request("late", [1]))
    assert caught.value.retry_after == pytest.approx(5.0 * 20 / 2)
    engine.run()


def test_no_waiting_means_a_slot_or_nothing():
    engine = Engine(max_num_seqs=2, max_waiting=0)
    engine.add(request("a", [1]), request("b", [1]))
    with pytest.raises(OverloadedError):
        engine.add(request("c", [1]))
    engine.run()
    engine.add(request("c", [1])).run()


def test_limits_that_contradict_each_other():
    with pytest.raises(ConfigError, match="max_num_batched_tokens 32 is less than max_model_len 64"):
        Engine(enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match="at least 1"):
        Engine(max_num_seqs=0)


def test_a_result_of_another_plan_changes_nothing():
    engine = Engine()
    engine.add(request("a", [1], 2))
    plan = engine.scheduler.plan(1.0)
    for result in (
        StepResult(plan.step + 1, (5,)),
        StepResult(plan.step, ()),
        StepResult(plan.step, (5,), (None,) * 2),
    ):
        with pytest.raises(InternalError):
            engine.scheduler.commit(plan, result, 1.0)
    assert len(engine.scheduler.commit(plan, StepResult(plan.step, (5,)), 1.0)) == 1
