"""InputProcessor: requests are valid by construction, and bad input is always a clear UserError."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, PromptTooLongError, UnsupportedError, UserError
from octavo.flow.request import CacheWish
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.text.chat_template import ChatTemplate
from tests.text.vocabularies import smol, smol_metadata

VOCAB = 49152


def processor(max_model_len=64, defaults=None, seed=0, tokenizer=smol, **limits):
    template = ChatTemplate(smol_metadata()["tokenizer.chat_template"])
    limits = InputLimits(max_model_len, VOCAB, **limits)
    return InputProcessor(tokenizer() if tokenizer else None, template, limits, defaults, seed)


def prepared(prompt, inputs=None, **options):
    return (inputs or processor()).prepare(prompt, SamplingParams(**options), "r1")


@pytest.mark.parametrize(
    "prompt",
    [
        "Hello world",
        [19556, 905],
        (19556, 905),
        np.array([19556, 905]),
        [np.int64(19556), np.int32(905)],
        {"prompt": "Hello world"},
        {"prompt_token_ids": [19556, 905]},
        {"prompt": "shown only", "prompt_token_ids": [19556, 905]},
        {"prompt": "Hello world", "multi_modal_data": None, "mm_processor_kwargs": {}},
    ],
)
def test_forms_of_a_prompt(prompt):
    request = prepared(prompt)
    assert request.prompt_token_ids == (19556, 905)
    assert all(type(token_id) is int for token_id in request.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ([], "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({}, "needs prompt"),
        ({"prompt": 3}, "text"),
        ({"prompt": "a", "prompts": "b"}, "prompts"),
        (None, "text or a list"),
        (7, "text or a list"),
        (b"bytes", "text or a list"),
        (["a"], "integers"),
        ([1.5], "integers"),
        ([True], "integers"),
        ([[1]], "integers"),
        ([VOCAB], "49152"),
        ([5, -1], "-1"),
        ("a\ud800", "Unicode"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "a", "prompt_cache_key": "k" * (1 << 20)}, "1024 characters, got 1048576"),
        ({"prompt": "a", "cache_retention": float("nan")}, "cache_retention"),
    ],
)
def test_prompts_that_are_refused(prompt, words):
    with pytest.raises(InvalidRequestError, match=words):
        prepared(prompt)


@pytest.mark.parametrize("name", ["prompt_embeds", "multi_modal_data"])
def test_media_and_embeddings_are_refused_by_name(name):
    with pytest.raises(UnsupportedError, match=name):
        prepared({"prompt": "a", name: [1]})


@pytest.mark.parametrize(
    ("length", "max_tokens", "outcome"),
    [
        (62, None, 2),
        (63, None, 1),
        (62, 1, 1),
        (62, 2, 2),
        (63, 1, 1),
        (62, 3, PromptTooLongError),
        (63, 2, PromptTooLongError),
        (64, None, PromptTooLongError),
        (64, 1, PromptTooLongError),
        (65, 1, PromptTooLongError),
        (8000, None, PromptTooLongError),
    ],
)
def test_prompt_and_output_against_the_context(length, max_tokens, outcome):
    if isinstance(outcome, int):
        assert prepared([5] * length, max_tokens=max_tokens).stopping.max_tokens == outcome
        return
    with pytest.raises(outcome) as caught:
        prepared([5] * length, max_tokens=max_tokens)
    assert "64 tokens" in str(caught.value)
    assert f"{length} tokens and {max_tokens if max_tokens and length < 64 else 1} more" in str(caught.value)


def test_offline_shortens_the_output_instead():
    inputs = processor(shorten_output=True)
    assert prepared([5] * 60, inputs, max_tokens=100).stopping.max_tokens == 4
    with pytest.raises(PromptTooLongError):
        prepared([5] * 64, inputs, max_tokens=100)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        prepared([5] * 60, inputs, max_tokens=100, min_tokens=5)


def test_a_huge_text_is_refused_without_tokenizing_it():
    class Unused(type(smol())):
        def __init__(self):
            self.__dict__.update(vars(smol()))

        def encode(self, text, add_special_tokens=True):
            raise AssertionError("tokenized")

    inputs = processor(tokenizer=Unused)
    with pytest.raises(PromptTooLongError, match="more than 64"):
        prepared("a " * 1_000_000, inputs)


def test_parameters_reach_the_engine():
    request = prepared(
        "Hello", temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=-3, logprobs=2, prompt_logprobs=0, n=3,
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={9: 1.5, 3: -2},
        allowed_token_ids=[4, 2, 4], stop=["x"], stop_token_ids=[8], min_tokens=2, max_tokens=9, ignore_eos=True,
        include_stop_str_in_output=True, skip_special_tokens=False, spaces_between_special_tokens=False,
    )  # fmt: skip
    sampling, stopping = request.sampling, request.stopping
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.seed, sampling.logprobs, sampling.prompt_logprobs, request.n) == (2**64 - 3, 2, 0, 3)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 0.5, -0.5)
    assert sampling.logit_bias == ((3, -2.0), (9, 1.5))
    assert sampling.allowed_token_ids == (2, 4)
    assert (stopping.max_tokens, stopping.min_tokens, stopping.ignore_eos) == (9, 2, True)
    assert (stopping.stop_token_ids, stopping.eos_token_ids) == (frozenset([8]), frozenset([2]))
    assert request.stop == ("x",)
    assert request.include_stop_str_in_output
    assert not request.skip_special_tokens
    assert not request.spaces_between_special_tokens


def test_tiny_temperatures_are_greedy_and_wide_top_k_is_off():
    assert prepared("Hello", temperature=1e-12).sampling.temperature == 0.0
    assert prepared("Hello", top_k=999_999).sampling.top_k == 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"logit_bias": {VOCAB: 5}}, "logit_bias"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ({"n": 10**9}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop": ["x"] * 100_000}, "stop"),
        ({"stop": "x" * 100_000}, "stop"),
        ({"max_tokens": None, "min_tokens": 64}, "min_tokens"),
    ],
)
def test_values_that_only_the_model_can_judge(options, param):
    with pytest.raises(InvalidRequestError, match=param) as caught:
        prepared("Hello", **options)
    assert caught.value.param == param


def test_all_logprobs_where_the_limit_allows():
    assert prepared("Hello", processor(max_logprobs=-1), logprobs=-1).sampling.logprobs == -1


def test_a_field_changed_after_construction_is_checked_again():
    params = SamplingParams()
    params.temperature = -1
    with pytest.raises(InvalidRequestError, match="temperature"):
        processor().prepare("Hello", params, "r1")
    with pytest.raises(InvalidRequestError, match="SamplingParams"):
        processor().prepare("Hello", {"temperature": 1}, "r1")


def test_seeds_follow_from_the_configured_seed_and_the_order():
    def seeds(seed):
        inputs = processor(seed=seed)
        return [inputs.prepare("Hello", None, str(i)).sampling.seed for i in range(50)]

    assert seeds(0) == seeds(0)
    assert len(set(seeds(0) + seeds(1))) == 100
    assert all(0 <= seed < 2**64 for seed in seeds(0))
    assert max(seeds(0)) > 2**60


def test_model_defaults_apply_only_where_nothing_is_said():
    defaults = {"top_k": 0, "repetition_penalty": 1.3, "temperature": 0.1, "eos_token_id": [2, 0, 10**7]}
    inputs = processor(defaults=defaults)
    request = inputs.prepare("Hello", None, "r1")
    assert (request.sampling.repetition_penalty, request.sampling.temperature) == (1.3, 0.1)
    assert request.stopping.eos_token_ids == frozenset([0, 2])
    explicit = inputs.default_params(repetition_penalty=1.0, temperature=1.0, top_p=None)
    assert (explicit.repetition_penalty, explicit.temperature, explicit.top_p) == (1.0, 1.0, 1.0)
    assert prepared("Hello", inputs).sampling.repetition_penalty == 1.0


def test_bad_words_of_one_token_are_banned_in_both_forms():
    bias = dict(prepared("Hello", bad_words=["Paris"]).sampling.logit_bias)
    assert set(bias) == {smol().id_of("Paris"), smol().id_of("\u0120Paris")}
    assert all(value < -1e8 for value in bias.values())
    sampling = prepared("Hello", bad_words=["antidisestablishment"]).sampling
    assert not sampling.logit_bias
    assert len(sampling.bad_words) == 2
    assert all(len(word) > 1 for word in sampling.bad_words)
    with pytest.raises(InvalidRequestError, match="tokens"):
        prepared("Hello", bad_words=["antidisestablishment" * 40])


def test_a_special_token_s_name_as_stop_text_stops_at_its_id():
    assert prepared("Hello", stop=["<|im_start|>", "x"]).stopping.stop_token_ids == frozenset([1])
    assert prepared("Hello", stop=["<|im_start|>"], skip_special_tokens=False).stopping.stop_token_ids == frozenset()


def test_conversations():
    inputs = processor(max_model_len=256)
    text = inputs.render([{"role": "user", "content": "hi"}])
    request = inputs.prepare(text, None, "r1", add_special_tokens=False)
    assert request.prompt_token_ids[0] == 1
    assert smol().decode(request.prompt_token_ids, skip_special_tokens=False) == text
    base_model = InputProcessor(smol(), None, InputLimits(64, VOCAB))
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        base_model.render([{"role": "user", "content": "hi"}])


def test_without_a_tokenizer_ids_are_served():
    inputs = processor(tokenizer=None)
    request = inputs.prepare([5, 6], SamplingParams(), "r1")
    assert not request.detokenize
    with pytest.raises(InvalidRequestError, match="token ids"):
        inputs.prepare("Hello", None, "r2")


def test_salt_priority_and_arrival_are_carried():
    inputs = processor()
    request = inputs.prepare({"prompt": "a", "cache_salt": "t1"}, None, "r1", arrival=2.5, priority=-3)
    assert (request.id, request.cache_salt, request.arrival, request.priority) == ("r1", "t1", 2.5, -3)
    with pytest.raises(InvalidRequestError, match="priority"):
        inputs.prepare("a", None, "r2", priority="high")


def test_threads_share_one_processor():
    inputs = processor()
    results: list = []

    def work():
        results.extend(inputs.prepare("The capital of France is", None, "r").sampling.seed for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 400


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = "n temperature top_k top_p seed stop stop_token_ids max_tokens min_tokens logprobs logit_bias bad_words"
OPTIONS = st.dictionaries(
    st.sampled_from([*FIELDS.split(), "allowed_token_ids", "detokenize", "structured_outputs", "nonsense"]),
    JUNK | st.integers(-3, 50),
    max_size=3,
)
PROMPTS = JUNK | st.lists(st.integers(-2, VOCAB + 2), max_size=70) | st.fixed_dictionaries({"prompt": JUNK})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(prompt=PROMPTS, options=OPTIONS)
def test_whatever_comes_in_is_a_valid_request_or_a_user_error(prompt, options):
    try:
        request = prepared(prompt, **options)
    except UserError:
        return
    assert 0 < len(request.prompt_token_ids) < 64
    assert all(0 <= token_id < VOCAB for token_id in request.prompt_token_ids)
    assert 1 <= request.stopping.max_tokens <= 64 - len(request.prompt_token_ids)
    assert request.stopping.min_tokens <= request.stopping.max_tokens


def test_a_salt_of_a_megabyte_goes_on_as_a_short_one():
    salts = ["s" * 64, "s" * 65, "s" * (1 << 20), "s" * (1 << 20) + "t"]
    made = [processor().prepare({"prompt": "hi", "cache_salt": salt}, None, "x").cache_salt for salt in salts]
    assert made[0] == salts[0]
    assert max(map(len, made)) < 256
    assert len(set(made)) == len(made)
    # Whoever knows what a long salt becomes cannot ask for it.
    forged = processor().prepare({"prompt": "hi", "cache_salt": made[2]}, None, "x").cache_salt
    assert forged not in made


def test_what_a_prompt_asks_of_the_cache():
    prompt = {"prompt": "hi", "cache_retention": 300, "prompt_cache_key": "k", "explain_cache": True}
    assert processor().prepare(prompt, None, "x").cache == CacheWish(300, "k", True)
    for wrong in ({"cache_retention": -1}, {"cache_retention": True}, {"prompt_cache_key": 3}, {"explain_cache": 1}):
        with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
            processor().prepare({"prompt": "hi", **wrong}, None, "x")


@pytest.mark.parametrize("priority", [1 << 63, -(1 << 63) - 1, 10**30, True, 1.0, "1"])
def test_a_priority_is_a_64_bit_integer(priority):
    with pytest.raises(InvalidRequestError, match="priority must be a 64-bit integer"):
        processor().prepare("Hello", None, "r1", priority=priority)


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": [2]},
        {"allowed_token_ids": [0, 5], "stop_token_ids": [0, 5], "ignore_eos": True},
        {"stop_token_ids": list(range(VOCAB)), "ignore_eos": True},
    ],
)
def test_some_token_can_be_drawn_before_min_tokens(options):
    inputs = processor(defaults={"eos_token_id": 2})
    prepared("Hello", inputs, **options)
    with pytest.raises(InvalidRequestError, match="every token that may be drawn is a stop token"):
        prepared("Hello", inputs, min_tokens=1, max_tokens=4, **options)
    prepared("Hello", inputs, min_tokens=1, max_tokens=4, allowed_token_ids=[2], ignore_eos=True)


def test_no_more_logprobs_than_the_vocabulary_has():
    inputs = processor(max_logprobs=-1)
    assert prepared("Hello", inputs, logprobs=VOCAB).sampling.logprobs == VOCAB
    with pytest.raises(InvalidRequestError, match=f"logprobs must be at most {VOCAB}"):
        prepared("Hello", inputs, logprobs=10**9)
