"""Beam search finds what a search over all tokens finds, on any pool, with any batch, and shares what it can."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.flow.request import Beam
from octavo.flow.result import FinishReason
from tests.fakes import FULL, request, scores, view_of, window
from tests.scheduling.driver import Engine


def search(asked, groups, vocab, longest):
    """Every answer's tokens and end, from the tokens alone: all continuations of all beams are looked at."""
    beam, stopping, prompt = asked.beam, asked.stopping, list(asked.prompt_token_ids)
    stops = set(stopping.stop_token_ids) | (set() if stopping.ignore_eos else set(stopping.eos_token_ids))
    most = min(stopping.max_tokens, longest - len(prompt))
    beams, finished = [(0.0, [])], []
    for length in range(1, most + 1):
        found = []
        for total, tokens in beams:
            logprobs = scores(view_of(prompt + tokens, groups), vocab)
            found += [
                (total + logprobs[token], [*tokens, token])
                for token in range(vocab)
                if token not in stops or length > stopping.min_tokens
            ]
        found.sort(key=lambda pair: -pair[0])
        found = found[: max(2, 1 + len(stops)) * beam.width]
        ends = [(total, tokens) for total, tokens in found if tokens[-1] in stops or length == most]
        if beam.early_stopping is not True or len(finished) < beam.width:
            finished += [
                (total / length**beam.length_penalty, tokens)
                for total, tokens in found[: beam.width]
                if (total, tokens) in ends
            ]
            finished = sorted(finished, key=lambda pair: -pair[0])[: beam.width]
        beams = [pair for pair in found if pair not in ends][: beam.width]
        if not beams:
            break
        if len(finished) == beam.width:
            best = most if beam.early_stopping == "never" and beam.length_penalty > 0 else length
            if beam.early_stopping is True or beams[0][0] / best**beam.length_penalty <= finished[-1][0]:
                break
    reasons = [FinishReason.STOP if tokens[-1] in stops else FinishReason.LENGTH for _, tokens in finished]
    return [(tokens, reason) for (_, tokens), reason in zip(finished, reasons, strict=True)][: asked.n]


def check(engine, asked):
    expected = search(asked, engine.groups, engine.executor.vocab, engine.scheduler._longest)
    got = [
        (engine.streams[asked.id, index].token_ids, engine.streams[asked.id, index].reason) for index in range(asked.n)
    ]
    assert got == expected


def beams(name, prompt, max_tokens, width, *, n=None, penalty=1.0, early=False, **options):
    return request(name, prompt, max_tokens, n=n or width, beam=Beam(width, penalty, early), **options)


@pytest.mark.parametrize("groups", [(FULL,), (FULL, window(6))], ids=["full", "window"])
@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_answers_and_their_order(groups, early, penalty):
    engine = Engine(groups, blocks=100)
    asked = beams("a", range(9), 12, 4, penalty=penalty, early=early, eos_token_ids=frozenset(range(0, 50, 10)))
    engine.add(asked).run()
    check(engine, asked)


def test_beams_share_blocks_and_compute_each_token_once():
    engine = Engine(blocks=100, max_model_len=128, max_num_batched_tokens=64)
    asked = beams("a", range(41), 10, 4)
    engine.add(asked).run()
    check(engine, asked)
    stats = engine.loop.stats()
    assert stats.prompt_tokens == 41
    # The prompt's token, then four beams a step. A fork copies a block rather than compute it.
    computed = sum(row.count for plan in engine.executor.plans for row in plan.rows)
    assert computed == 41 + 9 * 4
    copied = sum(len(plan.copies) for plan in engine.executor.plans)
    assert 0 < copied <= 9 * 3
    assert max(plan.num_tokens for plan in engine.executor.plans[1:]) == 4
    assert stats.used_blocks == 0


def test_a_fork_at_a_block_border_copies_nothing():
    engine = Engine(blocks=100)
    engine.add(beams("a", range(8), 1, 4)).run()
    assert [plan.copies for plan in engine.executor.plans] == [()]


def test_log_probabilities_belong_to_the_tokens():
    engine = Engine(blocks=100)
    asked = beams("a", range(6), 6, 3, n=2, logprobs=2)
    engine.add(asked).run()
    for index in range(2):
        stream = engine.streams["a", index]
        tokens = list(range(6))
        for token, entry in zip(stream.token_ids, stream.logprobs, strict=True):
            expected = scores(view_of(tokens, (FULL,)), 50)
            assert entry.token_ids[0] == token
            assert entry.logprobs[0] == pytest.approx(expected[token])
            assert entry.rank == 1 + sum(value > expected[token] for value in expected)
            assert list(entry.logprobs[1:]) == sorted(expected, reverse=True)[: len(entry.logprobs) - 1]
            tokens.append(token)


def test_beams_run_beside_others_and_take_their_turn():
    engine = Engine(blocks=60, max_num_seqs=3)
    asked = [beams("a", range(9), 6, 4), request("b", [3] * 5, 9), beams("c", [7] * 6, 5, 5), request("d", [1], 7)]
    engine.add(*asked).run()
    check(engine, asked[0])
    check(engine, asked[2])
    engine.check_answers([asked[1], asked[3]])


def test_one_place_is_enough_for_any_width():
    engine = Engine(blocks=40, max_num_seqs=1)
    asked = beams("a", range(9), 5, 6)
    engine.add(asked, request("b", [1], 3)).run()
    check(engine, asked)


def test_more_answers_than_beams_are_refused():
    with pytest.raises(InvalidRequestError, match="4 answers are more than 3 beams"):
        Engine().add(beams("a", [1], 3, 3, n=4))


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_cancel_ends_every_stream_once(steps):
    engine = Engine(blocks=60)
    engine.add(beams("a", range(9), 20, 4, n=3))
    for _ in range(steps):
        engine.step()
    engine.loop.cancel(["a", "a"])
    engine.step()
    engine.check_idle()
    assert [engine.streams["a", index].reason for index in range(3)] == [FinishReason.ABORT] * 3


def test_a_failing_step_and_spoilt_logits_end_the_whole_search():
    for spoil in (True, False):
        engine = Engine(blocks=60)
        other = request("b", [5], 8)
        engine.add(beams("a", range(9), 20, 4, n=2), other)
        for _ in range(3):
            engine.step()
        if spoil:
            engine.executor.is_invalid = lambda row: row.sequence == 1
            engine.run()
            engine.check_answers([other])
        else:
            engine.executor.on_submit = lambda plan: 1 / 0
            engine.step()
        assert [engine.streams["a", index].reason for index in range(2)] == [FinishReason.ERROR] * 2
        engine.check_idle()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_any_pool_and_batch(data):
    draw = data.draw
    groups = draw(st.sampled_from([(FULL,), (FULL, window(6)), (window(5),)]))
    engine = Engine(
        groups,
        blocks=draw(st.integers(8 * len(groups), 60)),
        block_size=draw(st.sampled_from([1, 2, 4])),
        caching=draw(st.booleans()),
        pipelined=draw(st.booleans()),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 24)),
        max_model_len=24,
    )
    engine.executor.vocab = 12
    asked = []
    for number in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))
        width = draw(st.integers(1, 4))
        if draw(st.booleans()):
            asked.append(
                beams(
                    str(number),
                    prompt,
                    draw(st.integers(1, 6)),
                    width,
                    n=draw(st.integers(1, width)),
                    early=draw(st.sampled_from([True, False, "never"])),
                    eos_token_ids=draw(st.sampled_from([frozenset(), frozenset({3, 7})])),
                    min_tokens=draw(st.sampled_from([0, 2])),
                )
            )
        else:
            asked.append(request(str(number), prompt, 5, n=width, seed=number))
    engine.add(*asked).run()
    engine.check_answers(one for one in asked if one.beam is None)
    for one in asked:
        if one.beam is not None:
            check(engine, one)
