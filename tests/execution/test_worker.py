"""The worker over real programs: a sequence's tokens don't depend on who else runs, on chunks, slots or threads."""

import numpy as np
import pytest

from octavo.cache.layout import state_pages
from octavo.flow.request import Sampling
from tests.conformance.devices import ISAS
from tests.conformance.tiny import SPECS, VOCAB, groups_of, native_worker, prompt, torch_worker
from tests.execution.engine import Driver

BEST = ISAS[0]
DRAW = Sampling(temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1, presence_penalty=0.2, logprobs=2)


def driver(name, isa=BEST, **options):
    spec = SPECS[name]
    return drive(spec, native_worker(isa, spec, **options))


def drive(spec, worker):
    groups = groups_of(spec)
    return Driver(worker, len(groups), state_pages=state_pages(groups))


def alone(name, tokens, sampling, outputs=12, isa=BEST, **options):
    """The tokens and log-probabilities of one sequence that runs by itself, its prompt in one piece."""
    engine = driver(name, isa, **options)
    line = engine.add(0, tokens, sampling)
    engine.run(line, outputs)
    return line


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SPECS)
def test_tokens_are_the_reference_backend_s(name, isa):
    spec = SPECS[name]
    engine = drive(spec, torch_worker(spec))
    wanted = engine.add(0, prompt(1, 45), Sampling(temperature=0.0, logprobs=3))
    engine.run(wanted, 8)
    got = alone(name, prompt(1, 45), Sampling(temperature=0.0, logprobs=3), 8, isa)
    assert got.drawn == wanted.drawn
    for ours, theirs in zip(got.outputs, wanted.outputs, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.rank == theirs.rank == 1
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=5e-3)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0, logprobs=2), DRAW], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", SPECS)
def test_same_bits_alone_chunked_and_in_company(name, sampling):
    wanted = alone(name, prompt(2, 50), sampling)
    engine = driver(name)
    others = [engine.add(slot, prompt(slot, 3 + 7 * slot), DRAW) for slot in (5, 0, 2)]
    engine.step(*others)
    line = engine.add(3, prompt(2, 50), sampling)
    for count in (1, 17, 16, 13):
        engine.step(others[0], (line, count), *others[1:])
    while len(line.drawn) < 11:
        engine.step(others[1], line, others[0])
    late = engine.add(7, prompt(2, 50), sampling)
    engine.step(line, late, others[2])
    assert (line.drawn, line.outputs) == (wanted.drawn[:12], wanted.outputs[:12])
    assert (late.tokens[50], late.outputs[0]) == (wanted.drawn[0], wanted.outputs[0])


def test_same_bits_on_one_and_three_threads():
    one, three = (alone("gemma", prompt(3, 40), DRAW, threads=threads) for threads in (1, 3))
    assert (one.drawn, one.outputs) == (three.drawn, three.outputs)


def test_a_preempted_sequence_draws_on():
    wanted = alone("gemma", prompt(4, 30), DRAW)
    engine = driver("gemma")
    line = engine.add(1, prompt(4, 30), DRAW)
    engine.run(line, 5)
    again = engine.add(4, tuple(line.tokens), DRAW)
    engine._arrivals[0] = engine._arrivals[0].__class__(4, 4, tuple(line.tokens), 30, DRAW)
    again.prompt = line.prompt
    engine.step(again, released=(1,))
    engine.run(again, 12)
    assert again.drawn == wanted.drawn


def test_a_released_slot_can_be_taken_again():
    engine = driver("llama")
    engine.run(engine.add(2, prompt(5, 33), DRAW), 3)
    line = engine.add(2, prompt(2, 20))
    engine.step(line, released=(2,))
    engine.run(line, 6)
    assert line.drawn == alone("llama", prompt(2, 20), Sampling(temperature=0.0), 6).drawn


def test_suppressed_stops_are_not_drawn():
    free = alone("llama", prompt(6, 20), Sampling(temperature=0.0), 1).drawn[0]
    engine = driver("llama")
    line = engine.add(0, prompt(6, 20), stop_ids=(free,))
    engine.step(line, suppress_stop=True)
    assert line.drawn[0] != free
    other = engine.add(1, prompt(6, 20), stop_ids=(free,))
    engine.step(other)
    assert other.drawn[0] == free


@pytest.mark.parametrize("rows", [8, 64])
def test_prompt_logprobs_are_those_of_the_next_tokens(rows):
    """With room for few rows they come in turns; chunks and company change nothing."""
    tokens = prompt(7, 40)
    sampling = Sampling(temperature=0.0, logprobs=1, prompt_logprobs=2)
    engine = driver("gemma", rows=rows)
    line = engine.add(0, tokens, sampling)
    engine.step(line)
    assert [entry.token_ids[0] for entry in line.prompt_logprobs] == list(tokens[1:])
    assert all(len(entry.token_ids) == 3 for entry in line.prompt_logprobs)
    # What a prompt's beginning predicts is what a shorter prompt draws from.
    for length in (1, 17, 39):
        shorter = alone("gemma", tokens[:length], Sampling(temperature=0.0, logprobs=2), 1)
        assert line.prompt_logprobs[length - 1].token_ids[1:] == shorter.outputs[0].token_ids[1:]
        assert line.prompt_logprobs[length - 1].logprobs[1:] == shorter.outputs[0].logprobs[1:]
    chunked = driver("gemma", rows=rows)
    again, other = chunked.add(1, tokens, sampling), chunked.add(0, prompt(8, 9))
    chunked.step((again, 15), other)
    chunked.step(other, (again, 25))
    assert again.prompt_logprobs == line.prompt_logprobs
    assert again.outputs == line.outputs


def test_whole_vocabulary_logprobs():
    line = alone("llama", prompt(9, 12), Sampling(temperature=0.0, logprobs=-1, prompt_logprobs=-1), 2)
    few = alone("llama", prompt(9, 12), Sampling(temperature=0.0, logprobs=4, prompt_logprobs=4), 2)
    for entry, top in zip(line.prompt_logprobs + line.outputs, few.prompt_logprobs + few.outputs, strict=True):
        assert sorted(entry.token_ids[1:]) == list(range(VOCAB))
        assert entry.token_ids[:5] == top.token_ids
        np.testing.assert_allclose(entry.logprobs[:5], top.logprobs, atol=1e-5)
        assert np.exp(entry.logprobs[1:]).sum() == pytest.approx(1.0, abs=1e-4)


def test_copied_blocks_serve_another_sequence():
    """A block of a prompt, copied, is read by a second sequence as its own."""
    from octavo.flow.plan import BlockCopy, PlannedRow, SlotArrival, StepPlan

    worker = native_worker(BEST, SPECS["llama"])
    tokens, greedy = prompt(10, 16), Sampling(temperature=0.0)
    longer = (*tokens, 5, 6)
    first = StepPlan(0, (PlannedRow(0, 0, 0, 16, ((9,),), True),), (SlotArrival(0, 0, tokens, 16, greedy),))
    worker.run_step(first)
    second = StepPlan(
        1,
        (PlannedRow(1, 3, 16, 2, ((20, 21),), True),),
        (SlotArrival(3, 1, longer, 18, greedy),),
        copies=(BlockCopy(9, 20),),
    )
    assert list(worker.run_step(second).token_ids) == alone("llama", longer, greedy, 1).drawn
