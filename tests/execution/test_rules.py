"""A request's own rules change what is drawn when they hold, in both backends alike, and survive a preemption."""

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.flow.logits_rules import MOST_RULES, NEVER, Effect, LogitsRule, in_effect, read_rules
from octavo.flow.request import Sampling
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from tests.conformance.tiny import SPECS, prompt, torch_worker
from tests.execution.test_worker import alone, drive, driver
from tests.serving.scripted_engine import ByteTokenizer

NAME = next(iter(SPECS))


def answer(*ids):
    return np.array(ids, np.int32).tobytes()


# --- when a rule holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "holding", "failing"),
    [
        (LogitsRule(from_step=1, until_step=2), [(1,), (1, 2)], [(), (1, 2, 3)]),
        (LogitsRule(after=((1, 2), (5,))), [(1, 2), (9, 5)], [(), (2,), (1, 2, 3)]),
        (LogitsRule(seen=((1, 2),)), [(1, 2), (0, 1, 2, 7)], [(), (1, 0, 2), (2, 1)]),
        (LogitsRule(not_seen=((1, 2),)), [(), (1, 0, 2)], [(1, 2), (9, 1, 2, 3)]),
        (LogitsRule(seen=((3,),), not_seen=((4,),), from_step=2), [(3, 3)], [(3,), (3, 4)]),
        (LogitsRule(seen=((256,),)), [(256,)], [(1, 0), (0x10000, 0)]),  # whole ids, not their bytes
    ],
)
def test_conditions(rule, holding, failing):
    assert all(rule.holds(answer(*ids)) for ids in holding)
    assert not any(rule.holds(answer(*ids)) for ids in failing)


def test_actions_add_up():
    rules = (
        LogitsRule(bias=((1, 2.0), (2, NEVER))),
        LogitsRule(bias=((1, 0.5),), allow=(1, 2, 3)),
        LogitsRule(allow=(2, 3)),
        LogitsRule(from_step=9, allow=(7,)),
    )
    assert in_effect(rules, b"") == Effect({}, {1: 2.5, 2: NEVER}, [2, 3])
    assert in_effect(rules, b"", [1, 3]).allowed == [3]
    assert in_effect(rules, b"", [1]).allowed == [2, 3]  # nothing would be left: the later rule wins


def test_factors_multiply_within_bounds():
    rules = (LogitsRule(scale=((1, 0.5), (2, 4.0))), LogitsRule(scale=((2, 2.0),)), LogitsRule(from_step=1))
    assert in_effect(rules, b"").scale == {1: 0.5, 2: 8.0}
    assert in_effect([LogitsRule(scale=((1, 100.0),))] * MOST_RULES, b"").scale == {1: 1e6}
    assert in_effect([LogitsRule(scale=((1, 0.01),))] * MOST_RULES, b"").scale == {1: 1e-6}


# --- what comes of it ------------------------------------------------------------------------------------------------


def test_rules_decide_what_is_drawn():
    plain = alone(NAME, prompt(1, 20), Sampling(temperature=0.0), 8).drawn
    rules = (
        LogitsRule(until_step=0, bias=((plain[0], NEVER),)),
        LogitsRule(from_step=1, until_step=2, allow=(5, 6)),
        LogitsRule(after=((5,), (6,)), from_step=3, bias=((9, 100.0),)),
        LogitsRule(seen=((9,),), allow=(11,)),
    )
    line = alone(NAME, prompt(1, 20), Sampling(temperature=0.0, logprobs=0, rules=rules), 6)
    first, *others = line.drawn
    assert first != plain[0]
    assert set(others[:2]) <= {5, 6}
    assert others[2:] == [9, 11, 11]
    assert all(np.isfinite(entry.logprobs[0]) for entry in line.outputs)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.2, "seed": 3, "logit_bias": ((4, 3.0),)}])
def test_both_backends_do_the_same(sampling):
    rules = (
        LogitsRule(bias=tuple((i, 2.0) for i in range(20)), until_step=4),
        LogitsRule(after=((3,),), allow=(7, 8)),
        LogitsRule(scale=tuple((i, 0.5 + i / 20) for i in range(5, 60)), from_step=1),
    )
    spec = SPECS[NAME]
    reference = drive(spec, torch_worker(spec))
    wanted = reference.add(0, prompt(1, 20), Sampling(rules=rules, **sampling), stop_ids=(2,))
    reference.run(wanted, 8, suppress_stop=True)
    engine = driver(NAME)
    line = engine.add(0, prompt(1, 20), Sampling(rules=rules, **sampling), stop_ids=(2,))
    engine.run(line, 8, suppress_stop=True)
    assert line.drawn == wanted.drawn
    assert 2 not in line.drawn


def test_a_factor_moves_a_token_by_its_logit():
    """Of a logit above 0 a small factor makes the likeliest token lose; the answer's log-probability stays the raw."""
    plain = alone(NAME, prompt(1, 20), Sampling(temperature=0.0, logprobs=0), 1)
    token = plain.drawn[0]
    rules = (LogitsRule(scale=((token, 0.01),)),)
    assert alone(NAME, prompt(1, 20), Sampling(temperature=0.0, rules=rules), 1).drawn[0] != token
    kept = (LogitsRule(scale=((token, 100.0),)),)
    line = alone(NAME, prompt(1, 20), Sampling(temperature=1.0, logprobs=0, rules=kept), 1)
    assert line.drawn == [token]
    assert line.outputs[0].logprobs == plain.outputs[0].logprobs


def test_a_preempted_answer_goes_on_by_the_same_rules():
    rules = (LogitsRule(seen=((5,),), allow=(6, 7)), LogitsRule(until_step=0, allow=(5,)))
    sampling = Sampling(temperature=1.0, seed=1, rules=rules)
    wanted = alone(NAME, prompt(3, 18), sampling, 9)
    engine = driver(NAME)
    line = engine.add(1, prompt(3, 18), sampling)
    engine.run(line, 4)
    again = engine.add(4, tuple(line.tokens), sampling)
    engine._arrivals[0] = engine._arrivals[0].__class__(4, 4, tuple(line.tokens), 18, sampling)
    again.prompt = line.prompt
    engine.step(again, released=(1,))
    engine.run(again, 9)
    assert again.drawn == wanted.drawn
    assert again.drawn[0] == 5
    assert set(again.drawn[1:]) <= {6, 7}


# --- how they are written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, "list"),
        ([3], "[0]"),
        ([{"do": "ban"}], "[0].tokens"),
        ([{"do": "run", "tokens": [1]}], "bias, scale, ban, allow"),
        ([{"do": "ban", "tokens": [1], "code": "x"}], "'code'"),
        ([{"do": "ban", "tokens": [1], "value": 2}], "value"),
        ([{"do": "bias", "tokens": [1]}], "value"),
        ([{"do": "bias", "tokens": [1], "value": 101}], "100"),
        ([{"do": "scale", "tokens": [1]}], "from 0.01 to 100"),
        ([{"do": "scale", "tokens": [1], "value": 0}], "from 0.01 to 100"),
        ([{"do": "scale", "tokens": [1], "value": -2.0}], "from 0.01 to 100"),
        ([{"do": "bias", "tokens": [1], "value": float("nan")}], "100"),
        ([{"do": "ban", "tokens": [1], "when": {"step": 1}}], "'step'"),
        ([{"do": "ban", "tokens": [1], "when": {"from_step": -1}}], "from_step"),
        ([{"do": "ban", "tokens": [1], "when": {"after": "x"}}], "after"),
        ([{"do": "ban", "tokens": [1], "when": {"after": [[]]}}], "after[0]"),
        ([{"do": "ban", "tokens": [1], "when": {"seen": [[1] * 33]}}], "32"),
        ([{"do": "ban", "tokens": [True]}], "tokens[0]"),
        ([{"do": "ban", "tokens": list(range(5000))}], "4096"),
        ([{"do": "ban", "tokens": [1]}] * (MOST_RULES + 1), "64"),
    ],
)
def test_wrong_rules_are_refused(rules, told):
    with pytest.raises(InvalidRequestError, match="logits_rules") as caught:
        SamplingParams(logits_rules=rules)
    assert told in str(caught.value)


def test_texts_become_tokens():
    inputs = InputProcessor(ByteTokenizer(), None, InputLimits(512, 257, 20))

    def prepared(*rules):
        return inputs.prepare("Hi", SamplingParams(logits_rules=list(rules)), "r").sampling.rules

    (rule,) = prepared({"when": {"after": ["ab"], "from_step": 3}, "do": "ban", "tokens": ["x", 9, [10]]})
    assert rule.after == ((97, 98), (32, 97, 98))
    assert rule.bias == ((9, NEVER), (10, NEVER), (120, NEVER))
    assert prepared({"do": "allow", "tokens": ["x"]})[0].allow == (120,)
    assert prepared({"do": "scale", "tokens": ["x", 9], "value": 0.5})[0].scale == ((9, 0.5), (120, 0.5))
    for wrong, told in (("xyz", "several"), (257, "257"), (-1, "-1")):
        with pytest.raises(InvalidRequestError, match=told):
            prepared({"do": "ban", "tokens": [wrong]})
    assert read_rules([]) == ()
