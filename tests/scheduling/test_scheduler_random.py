"""Random loads, limits and pools: every request ends, says what it says alone, and gives back what it held."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import PromptTooLongError
from octavo.flow.result import FinishReason
from octavo.scheduling.policy import POLICIES
from tests.fakes import FULL, chunked, request, state, window
from tests.scheduling.driver import Engine

LAYOUTS = [
    *[(FULL,), (FULL, window(6)), (window(5),), (FULL, window(1), window(9)), (FULL, FULL)],
    *[(FULL, chunked(6)), (FULL, state(2)), (state(),), (chunked(5), window(4), state(3))],
]


def least_blocks(groups):
    """For one token."""
    return sum(group.pages for group in groups)


def name_of(groups):
    return "-".join(group.kind + str(group.window or "") for group in groups)


@st.composite
def engines(draw):
    groups = draw(st.sampled_from(LAYOUTS))
    chunks = draw(st.booleans())
    longest = draw(st.integers(8, 48))
    return Engine(
        groups,
        blocks=draw(st.integers(least_blocks(groups), 40)),
        block_size=draw(st.sampled_from([1, 2, 4])),
        caching=draw(st.sampled_from([True, True, False])),
        max_model_len=longest,
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 24)) if chunks else longest,
        enable_chunked_prefill=chunks,
        policy=draw(st.sampled_from(list(POLICIES))),
        pipelined=draw(st.booleans()),
        target_itl=draw(st.sampled_from([None, 0.001, 0.1])) if chunks else None,
        tenant_weights={"a": 3.0},
    )


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)  # two tokens only: many prefixes are equal
submits = st.tuples(
    prompts,
    st.integers(1, 12),  # max_tokens
    st.sampled_from([1, 1, 1, 3]),  # n
    st.integers(-1, 1),  # priority
    st.sampled_from(["", "", "s"]),  # salt
    st.sampled_from([frozenset(), frozenset(range(0, 50, 7))]),  # stop ids
    st.sampled_from([0, 0, 3]),  # min_tokens
    st.sampled_from(["", "a", "b"]),  # tenant
)
events = st.one_of(
    submits,
    submits,
    st.just("step"),
    st.just("step"),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.just("reset"),
    st.tuples(st.just("pause"), st.sampled_from(["abort", "wait", "keep"])),
    st.just("resume"),
)


def play(engine, program):
    """Run a program of events, then to the end; the requests that were taken on."""
    asked = []
    for event in program:
        match event:
            case "step":
                engine.step()
            case "reset":
                engine.loop.reset_prefix_cache()
            case ("cancel", which):
                engine.loop.cancel([one.id for one in asked[which::10]])
                engine.check_blocks()
            case (prompt, tokens, n, priority, salt, stops, least, tenant):
                options = {"cache_salt": salt, "stop_token_ids": stops, "min_tokens": least, "seed": len(asked)}
                options["tenant"] = tenant
                one = request(str(len(asked)), prompt, tokens, n=n, priority=priority, **options)
                try:
                    engine.add(one)
                except PromptTooLongError:
                    continue
                asked.append(one)
            case ("pause", how):
                engine.loop.pause(how)
            case "resume":
                engine.loop.resume()
    engine.loop.resume()
    engine.run()
    return asked


@settings(max_examples=300, deadline=None, derandomize=True)
@given(engines(), st.lists(events, max_size=40))
def test_any_load_on_any_pool(engine, program):
    engine.check_answers(play(engine, program))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(engines(), st.lists(events, max_size=30), st.integers(0, 2**16))
def test_failing_steps_and_spoilt_logits_end_only_what_they_hit(engine, program, seed):
    rng = random.Random(seed)
    hit, members = set(), engine.scheduler._roster.members

    def maybe_fail(plan):
        engine.check_plan(plan)
        if rng.random() < 0.15:
            hit.update(row.sequence for row in plan.rows if row.sequence in members)
            raise RuntimeError("the device is gone")

    def maybe_spoil(row):
        spoilt = rng.random() < 0.05
        if spoilt and row.sequence in members:
            hit.add(row.sequence)
        return spoilt

    engine.executor.on_submit, engine.executor.is_invalid = maybe_fail, maybe_spoil
    asked = play(engine, program)
    failed = [stream for stream in engine.streams.values() if stream.reason is FinishReason.ERROR]
    assert len(failed) == len(hit)
    assert all(stream.end.error for stream in failed)
    whole = [one for one in asked if all(engine.streams[one.id, i] not in failed for i in range(one.n))]
    engine.check_answers(whole)


@pytest.mark.parametrize("groups", LAYOUTS, ids=name_of)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunks", [True, False])
def test_pools_of_every_size_give_the_same_answers(groups, policy, chunks):
    rng = random.Random(3)
    asked = [
        request(
            str(i),
            [rng.randrange(2) for _ in range(rng.randint(1, 7))],
            5,
            n=1 + i % 2,
            priority=i % 3,
            tenant=str(i % 2),
        )
        for i in range(7)
    ]
    limits = {"max_model_len": 24, "max_num_batched_tokens": 24, "enable_chunked_prefill": chunks, "policy": policy}
    ran = 0
    for blocks in range(least_blocks(groups), 30):
        engine = Engine(groups, blocks, 2, pipelined=blocks % 2 > 0, **limits)
        fitting = [one for one in asked if len(one.prompt_token_ids) + 4 <= engine.scheduler._longest - 1]
        engine.add(*fitting).run()
        engine.check_answers(fitting)
        ran += engine.loop.stats().preemptions
    assert fitting == asked
    assert ran > 0 or groups == (state(),)  # which never grows


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_planning_ahead_changes_no_answer(data):
    draw = data.draw
    groups = draw(st.sampled_from(LAYOUTS))
    limits = {
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.integers(1, 24)),
        "policy": draw(st.sampled_from(list(POLICIES))),
        "max_model_len": 40,
    }
    blocks, size = draw(st.integers(least_blocks(groups), 40)), draw(st.sampled_from([1, 2, 4]))
    engines = [Engine(groups, blocks, size, pipelined=pipelined, **limits) for pipelined in (False, True)]
    arrivals = draw(st.lists(st.tuples(st.integers(0, 3), submits), min_size=1, max_size=12))
    for engine in engines:
        asked = []
        for steps, (prompt, tokens, n, priority, salt, stops, least, tenant) in arrivals:
            for _ in range(steps):
                engine.step()
            options = {"cache_salt": salt, "stop_token_ids": stops, "min_tokens": least, "seed": len(asked)}
            scores = {"logprobs": 0, "prompt_logprobs": 0 if len(prompt) % 3 == 0 else None}
            one = request(str(len(asked)), prompt, tokens, n=n, priority=priority, tenant=tenant, **options, **scores)
            if len(prompt) < engine.scheduler._longest:
                engine.add(one)
                asked.append(one)
        engine.run()
        engine.check_answers(asked)
    one, other = engines
    assert one.streams.keys() == other.streams.keys()
    for key, stream in one.streams.items():
        same = other.streams[key]
        assert (stream.token_ids, stream.reason, stream.logprobs) == (same.token_ids, same.reason, same.logprobs)
        assert stream.prompt_logprobs == same.prompt_logprobs
        assert stream.end.stop_token_id == same.end.stop_token_id
    assert other.executor.deepest <= 2


@pytest.mark.parametrize("seed", range(8))
def test_cancel_storms_return_every_block(seed):
    rng = random.Random(seed)
    engine = Engine((FULL, window(6)), blocks=30, max_num_seqs=5, max_num_batched_tokens=12)
    for wave in range(25):
        names = [f"{wave}-{i}" for i in range(6)]
        engine.add(*(request(name, [rng.randrange(3) for _ in range(rng.randint(1, 20))], 20, n=2) for name in names))
        for _ in range(rng.randrange(4)):
            engine.step()
        engine.loop.cancel(rng.sample(names, rng.randrange(7)))
        engine.check_blocks()
    everything = [name for name, _ in engine.streams]
    engine.loop.cancel(everything)
    engine.step()
    engine.check_idle()
    assert all(stream.end for stream in engine.streams.values())
