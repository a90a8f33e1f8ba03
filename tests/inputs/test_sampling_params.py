"""SamplingParams: vLLM's names, defaults and ranges; nothing that cannot be done is passed over in silence."""

import copy

import numpy as np
import pytest

import octavo.sampling_params
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError
from octavo.flow.generation_config import defaults_from, end_ids
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    expected = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": [],
        "stop_token_ids": [],
        "min_tokens": 0,
        "ignore_eos": False,
        "max_tokens": 16,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "output_kind": RequestOutputKind.CUMULATIVE,
        "logit_bias": None,
        "allowed_token_ids": None,
    }
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("n", [1, 100], [0, -1, 1.5, "2", None, True]),
        ("presence_penalty", [-2, 2.0, 0], [-2.1, 2.1, float("nan"), "1", None]),
        ("frequency_penalty", [-2, 2.0], [-3, float("inf"), float("nan")]),
        ("repetition_penalty", [1e-4, 0.1, 1, 2.0, 1e4], [0, -1, 1e-40, 1e5, float("nan"), float("inf")]),
        ("temperature", [0, 1e-12, 5e-324, 2], [-1, -1e-9, 2.1, float("nan"), None, "0.5", True]),
        ("top_p", [1e-9, 1, 0.5], [0, 1.0001, -0.1, float("nan")]),
        ("top_k", [0, -1, 1, 999_999], [-2, 1.0, None]),
        ("min_p", [0, 1, 0.5], [-0.1, 1.1, float("nan")]),
        ("seed", [None, 0, 7, -1, -5, 2**64 - 1, -(2**63)], [1.5, "7", 2**64, -(2**63) - 1, True]),
        ("max_tokens", [1, None, 10**9], [0, -1, 1.5, "3", True]),
        ("min_tokens", [0, 16], [-1, 17, None]),
        ("logprobs", [None, 0, 5, -1], [-2, 1.5, True]),
        ("prompt_logprobs", [None, 0, 5, -1], [-2, "1"]),
        ("stop", [None, "x", ["x", "yy"], ("x",), []], ["", [""], [1], 3, {"x": 1}]),
        ("stop_token_ids", [None, [], [1, 2], (3,), np.array([1, 2]).tolist()], [[-1], ["a"], [True], [1.5], 3, "ab"]),
        ("allowed_token_ids", [None, [1]], [[], [-1], 3]),
        ("logit_bias", [None, {}, {1: 5}, {"81": -100}], [{"abc": 1}, {-1: 1}, {1: "x"}, {1: float("nan")}, [1]]),
        ("bad_words", [None, [], ["foo"]], [[""], [" "], "foo", [1]]),
        ("ignore_eos", [True, False], [None, 1, "no"]),
        ("detokenize", [True, False], [None]),
        ("skip_special_tokens", [True, False], [0]),
        ("include_stop_str_in_output", [True, False], ["yes"]),
        ("output_kind", list(RequestOutputKind), [1, "delta", None]),
    ],
)
def test_ranges(name, good, bad):
    for value in good:
        SamplingParams(**{name: value})
    for value in bad:
        with pytest.raises(InvalidRequestError, match=name) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "name",
    ["best_of", "use_beam_search", "early_stopping", "length_penalty", "logits_processors"],
)
def test_removed_options_say_what_to_do_instead(name):
    with pytest.raises(InvalidRequestError, match=f"{name} is not a sampling parameter any more") as caught:
        SamplingParams(**{name: 1})
    assert caught.value.param == name


def test_the_older_name_of_forms_says_what_to_import_instead():
    with pytest.raises(ImportError, match="GuidedDecodingParams is StructuredOutputsParams now"):
        exec("from octavo.sampling_params import GuidedDecodingParams")
    assert not hasattr(octavo.sampling_params, "NothingOfThisName")


def test_misspelt_options_are_named():
    with pytest.raises(InvalidRequestError, match="temprature"):
        SamplingParams(temprature=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flat_logprobs", True),
        ("logprob_token_ids", [1]),
        ("thinking_token_budget", 5),
        ("extra_args", {"a": 1}),
        ("skip_reading_prefix_cache", True),
    ],
)
def test_options_that_do_not_exist_yet_are_refused_but_may_be_neutral(name, value):
    with pytest.raises(UnsupportedError, match=name):
        SamplingParams(**{name: value})
    SamplingParams(**{name: None})


@pytest.mark.parametrize("temperature", [0, 1e-12, 9e-6])
def test_greedy_switches_the_filters_off(temperature):
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=3, min_p=0.1)
    assert params.greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_forms_are_brought_into_one():
    params = SamplingParams(stop="x", top_k=-1, seed=-1, logit_bias={"5": 1000.0, 6: -float("inf")})
    assert (params.stop, params.top_k, params.seed) == (["x"], 0, None)
    assert params.logit_bias == {5: 100.0, 6: -100.0}


def test_stop_texts_need_text():
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_the_caller_s_lists_are_not_shared():
    stop, ids = ["x"], [3]
    params = SamplingParams(stop=stop, stop_token_ids=ids)
    clone = params.clone()
    stop.append("y")
    ids.append(4)
    clone.stop.append("z")
    clone.temperature = 0.3
    assert (params.stop, params.stop_token_ids, params.temperature) == (["x"], [3], 1.0)


def test_copies_are_equal():
    params = SamplingParams(temperature=0.5, stop=["a"], seed=3, logit_bias={1: 2.0})
    assert copy.deepcopy(params) == params == params.clone()


def test_from_optional_takes_none_as_not_given():
    assert SamplingParams.from_optional(temperature=None, n=None, top_p=0.5) == SamplingParams(top_p=0.5)
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
    with pytest.raises(OctavoError):
        SamplingParams.from_optional(best_of=3)


def test_update_from_generation_config_adds_the_other_ends():
    params = SamplingParams(stop_token_ids=[5])
    params.update_from_generation_config({"eos_token_id": [2, 7]}, eos_token_id=2)
    assert params.stop_token_ids == [5, 7]
    unending = SamplingParams(ignore_eos=True)
    unending.update_from_generation_config({"eos_token_id": [2, 7]}, eos_token_id=2)
    assert unending.stop_token_ids == []


def test_defaults_from_a_generation_config():
    config = {"temperature": 0.6, "top_k": 0, "max_new_tokens": 99, "eos_token_id": 2, "do_sample": True, "top_p": None}
    assert defaults_from(config) == {"temperature": 0.6, "top_k": 0, "max_tokens": 99}
    assert defaults_from({"do_sample": False}) == {"temperature": 0.0}
    assert [end_ids(value) for value in (None, 3, [1, 2], True)] == [(), (3,), (1, 2), ()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("typical_p", 0.0),
        ("typical_p", 1.5),
        ("top_n_sigma", -2),
        ("xtc_probability", 1.5),
        ("xtc_threshold", -0.1),
        ("dynatemp_range", float("nan")),
        ("dynatemp_exponent", 0),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("repetition_detection", True),
        ("repetition_detection", {"size": 3}),
        ("repetition_detection", {"max_pattern_size": 1000}),
        ("repetition_detection", {"max_pattern_size": 2, "min_pattern_size": 3}),
        ("repetition_detection", {"max_pattern_size": 2, "min_count": 1}),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", ["x"] * 100),
    ],
)
def test_samplers_that_few_ask_for_have_their_ranges(name, value):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_greedy_switches_every_filter_off():
    params = SamplingParams(temperature=0, typical_p=0.5, top_n_sigma=1, xtc_probability=0.5, dynatemp_range=1)
    assert (params.typical_p, params.top_n_sigma, params.xtc_probability, params.dynatemp_range) == (1.0, 0.0, 0.0, 0.0)
    assert SamplingParams(top_n_sigma=-1).top_n_sigma == 0.0
