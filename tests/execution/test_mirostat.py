"""Mirostat: its state follows a sequence through steps and preemptions, and holds the surprise where it is asked to."""

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.flow.plan import SlotArrival
from octavo.flow.request import Sampling, Shaping
from octavo.flow.sampler_order import FILTERS, PARAMETERS, Sampler, pack, unpack
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from tests.conformance.test_distributions import LOGITS, among, surprises
from tests.conformance.tiny import SPECS, prompt, torch_worker
from tests.execution.test_worker import alone, drive, driver
from tests.fakes import request
from tests.scheduling.driver import Engine

NAME = next(iter(SPECS))
TAU = 5.0


def sampling(version, seed=3, **options):
    shaping = Shaping(mirostat=version, mirostat_tau=TAU, mirostat_eta=0.9)
    return Sampling(temperature=2.0, seed=seed, logprobs=0, shaping=shaping, **options)


@pytest.mark.parametrize("version", [1, 2])
def test_both_backends_draw_the_same(version):
    spec = SPECS[NAME]
    reference = drive(spec, torch_worker(spec))
    wanted = reference.add(0, prompt(1, 20), sampling(version))
    reference.run(wanted, 12)
    assert alone(NAME, prompt(1, 20), sampling(version), 12).drawn == wanted.drawn
    assert len(set(wanted.drawn)) > 3


@pytest.mark.parametrize("version", [1, 2])
def test_the_state_comes_back_with_a_preempted_sequence(version):
    wanted = alone(NAME, prompt(3, 18), sampling(version), 14)
    engine = driver(NAME)
    line, other = engine.add(1, prompt(3, 18), sampling(version)), engine.add(2, prompt(5, 9), sampling(version, 8))
    mu = []
    while len(line.drawn) < 6:
        result = engine.step(other, line)
        assert [row for row, _ in result.mirostat] == [0, 1]
        mu.append(result.mirostat[1][1])
    assert len(set(mu)) == len(mu)
    again = engine.add(4, tuple(line.tokens), sampling(version))
    engine._arrivals[0] = SlotArrival(4, 4, tuple(line.tokens), 18, sampling(version), mirostat_mu=mu[-1])
    again.prompt = line.prompt
    engine.step(again, other, released=(1,))
    engine.run(again, 14)
    assert again.drawn == wanted.drawn
    forgetful = driver(NAME)
    line = forgetful.add(0, tuple(again.tokens[:24]), sampling(version))
    forgetful._arrivals[0] = SlotArrival(0, 0, tuple(again.tokens[:24]), 18, sampling(version))
    line.prompt = again.prompt
    forgetful.run(line, 14)
    assert line.drawn != wanted.drawn  # it is the state that does it


def test_the_scheduler_keeps_what_a_step_left():
    engine = Engine(blocks=14, max_num_seqs=4)
    shaping = Shaping(mirostat=2)
    asked = [request(str(i), range(i, i + 20), 30, temperature=1.0, seed=i, shaping=shaping) for i in range(4)]
    engine.add(*asked)
    seen = {}
    submit = engine.executor.on_submit

    def check(plan):
        submit(plan)
        for arrival in plan.arrivals:
            outputs = len(arrival.token_ids) - arrival.prompt_len
            assert (arrival.mirostat_mu is None) == (outputs == 0)
            assert arrival.mirostat_mu == (float(outputs) if outputs else None)
            seen[arrival.sequence] = seen.get(arrival.sequence, 0) + 1

    engine.executor.on_submit = check
    engine.run()
    assert max(seen.values()) > 1  # somebody was preempted


@pytest.mark.parametrize("version", [1, 2])
def test_the_surprise_comes_to_what_is_asked(version):
    """Over a fixed distribution: the mean of -log2 p of the drawn tokens."""
    tau = 3.4
    drawn = surprises(Shaping(mirostat=version, mirostat_tau=tau, mirostat_eta=0.1), 600)
    unbound = float(-(among(-np.inf < LOGITS) * np.log2(among(-np.inf < LOGITS))).sum())
    assert unbound > tau + 0.3
    assert np.mean(drawn[100:]) == pytest.approx(tau, abs=0.15)


# --- the order of samplers ------------------------------------------------------------------------------------------


def test_orders_are_packed_only_where_they_make_a_difference():
    params = SamplingParams(temperature=0.5, top_p=0.9, top_k=4)
    assert pack(["temperature", "top_k", "top_p"], params) == pack([], params) == pack(["top_p"], params) == 0
    assert pack(["top_p", "min_p", "temperature"], params) == Sampler.TOP_P | Sampler.TEMPERATURE << 4
    assert unpack(Sampler.TOP_P | Sampler.TEMPERATURE << 4) == [Sampler.TOP_P, Sampler.TEMPERATURE]
    assert unpack(0) == list(Sampler)


def test_samplers_that_are_not_named_are_off():
    params = SamplingParams(
        temperature=0.5, top_k=4, top_p=0.9, xtc_probability=0.5, repetition_penalty=1.2, samplers=["dry", "top_p"]
    )
    found = (params.temperature, params.top_k, params.top_p, params.xtc_probability, params.repetition_penalty)
    assert found == (1.0, 0, 0.9, 0.0, 1.0)
    assert SamplingParams(samplers=["typical_p"]).samplers == ["typ_p"]
    assert SamplingParams(samplers=list(PARAMETERS)).temperature == 1.0


@pytest.mark.parametrize(
    ("samplers", "told"),
    [
        ({"top_k": 1}, "list"),
        ("edkz", "'z' for a letter; there are e penalties"),
        ("top_k;nothing", "there are penalties, dry"),
        ("kk", "twice"),
        ("ke", "begin with penalties and dry"),
        (["top_k", "top_k"], "twice"),
        (["typ_p", "typical_p"], "twice"),
        (["nothing"], "there are penalties, dry"),
        ([1], "there are penalties"),
        (["top_k", "penalties"], "begin with penalties and dry"),
        (["dry", "penalties"], "begin with penalties and dry"),
    ],
)
def test_wrong_orders_are_refused(samplers, told):
    with pytest.raises(InvalidRequestError, match="samplers") as caught:
        SamplingParams(samplers=samplers)
    assert told in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("mirostat", 3), ("mirostat_tau", -1), ("mirostat_eta", 1.5)])
def test_ranges(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})
    assert SamplingParams(mirostat=2, temperature=0).mirostat == 0


def test_parameters_reach_the_engine():
    inputs = InputProcessor(None, None, InputLimits(64, 200))
    params = SamplingParams(mirostat=1, mirostat_tau=3, mirostat_eta=0.2, temperature=2)
    shaping = inputs.prepare([1, 2], params, "r").sampling.shaping
    assert (shaping.mirostat, shaping.mirostat_tau, shaping.mirostat_eta) == (1, 3.0, 0.2)
    params = SamplingParams(top_p=0.5, temperature=2, samplers=["top_p", "temperature"])
    shaping = inputs.prepare([1, 2], params, "r").sampling.shaping
    assert (shaping.mirostat, unpack(shaping.sampler_order)) == (0, [Sampler.TOP_P, Sampler.TEMPERATURE])


def test_mirostat_takes_the_place_of_filters():
    given = {"top_k": 4, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.5, "top_n_sigma": 1.0, "xtc_probability": 0.5}
    params = SamplingParams(mirostat=2, dry_multiplier=0.8, dynatemp_range=0.5, **given)
    assert {name: getattr(params, name) for name in given} == FILTERS
    assert (params.dry_multiplier, params.dynatemp_range) == (0.8, 0.5)
    assert {name: getattr(SamplingParams(**given), name) for name in given} == given


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("edkypmxt", ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        ("edskypmxt", ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        ("tk", ["temperature", "top_k"]),
        ("top_k", ["top_k"]),
        ("top-k; temp;nucleus", ["top_k", "temperature", "top_p"]),
        ("", []),
    ],
)
def test_orders_as_texts(text, names):
    assert SamplingParams(samplers=text).samplers == names
