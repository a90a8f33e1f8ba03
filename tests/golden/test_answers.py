"""Two real models say what transformers says in float32: greedy tokens, and log-probabilities at every step.

The oracle's answers are files (tests/golden/data), made by `python -m tests.golden.make`; one is checked live.
"""

import numpy as np
import pytest

from octavo import SamplingParams
from tests.families.real import gemma3_path, smollm2_path, transformers_model
from tests.golden.cases import PROMPTS, STEPS, TOP, WEIGHTS, read_bf16_errors, read_golden
from tests.golden.octavo_model import continue_prompts, judge_texts, open_llm
from tests.golden.oracle import judge, save_bf16

# Largest differences of a log-probability, in nats, over all steps. Products with GGUF weights are exact here: with the
# cache in float32 too, only the order of sums differs.
TOLERANCE = 2e-4
TOLERANCE_CACHE = 3e-2  # the cache in its default type, float16
# bf16 weights are multiplied with activations rounded to bf16, the cache is bf16.
TOLERANCE_BF16 = 0.25
# Tokens that the oracle finds this near each other may change places in bf16.
TIE_BF16 = 0.1
# Octavo's error in bf16 (root mean square) as a share of transformers' own.
SHARE_BF16 = 0.7
MODELS = tuple(PROMPTS)


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def path(name, tmp_path_factory):
    return smollm2_path() if name == "smollm2" else gemma3_path(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def exact(path):
    """The GGUF file, its cache in float32."""
    with open_llm(path, kv_cache_dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def rounded(name, path, tmp_path_factory):
    """The same weights as bf16 safetensors, run natively in bf16."""
    directory = save_bf16(name, path, tmp_path_factory.mktemp(f"{name}-bf16"))
    with open_llm(directory, skip_tokenizer_init=True) as llm:
        assert llm.llm_engine.engine.resolved.model.weights.value == "bf16"
        yield llm


def differences(golden, steps):
    """Octavo's log-probabilities less the oracle's, of the oracle's likeliest tokens at every step."""
    found = []
    for ids, logprobs, step in zip(golden.top_ids, golden.top_logprobs, steps, strict=True):
        assert set(ids) <= set(step), f"of the oracle's likeliest {ids} only {sorted(step)} are Octavo's"
        found.append([step[token] - logprob for token, logprob in zip(ids, logprobs, strict=True)])
    return np.array(found)


def assert_same_greedy(golden, tokens):
    """Equal, up to the first step that the oracle itself finds nearly undecided; returns the number of equal steps."""
    for step, (token, wanted) in enumerate(zip(tokens, golden.tokens, strict=True)):
        if token == wanted:
            continue
        listed = dict(zip(golden.top_ids[step], golden.top_logprobs[step], strict=True))
        assert token in listed, f"step {step}: {token} is none of the oracle's likeliest"
        lost = listed[wanted] - listed[token]
        assert lost <= TIE_BF16, f"step {step}: {token} is {lost:.4f} less likely than {wanted}"
        return step
    return STEPS


def test_prompts_become_the_golden_ids(name, exact):
    """Through the offline API, its tokenizer and its chat template."""
    golden = {weights: read_golden(name, weights) for weights in WEIGHTS}
    params = SamplingParams(max_tokens=1)
    for prompt in PROMPTS[name]:
        ask, text = (exact.chat, prompt.messages) if prompt.chat else (exact.generate, prompt.text)
        (output,) = ask(text, params, use_tqdm=False)
        for weights in WEIGHTS:
            assert output.prompt_token_ids == list(golden[weights][prompt.name].prompt)
            assert len(golden[weights][prompt.name].tokens) == STEPS
    assert len(golden["bf16"]["page"].prompt) > 512  # Gemma's window


def test_greedy_tokens_and_logprobs_are_the_oracle_s(name, exact):
    golden = read_golden(name, "quantized")
    answers = continue_prompts(exact, [entry.prompt for entry in golden.values()])
    for (prompt, entry), (tokens, steps) in zip(golden.items(), answers, strict=True):
        assert tokens == list(entry.tokens), prompt
        assert np.abs(differences(entry, steps)).max() <= TOLERANCE, prompt


def test_the_default_cache_changes_little(name, path):
    golden = read_golden(name, "quantized")
    with open_llm(path, skip_tokenizer_init=True) as llm:
        assert llm.llm_engine.engine.resolved.model.kv_cache_dtype.value == "float16"
        texts = judge_texts(llm, [entry.prompt + entry.tokens for entry in golden.values()])
    for entry, steps in zip(golden.values(), texts, strict=True):
        assert np.abs(differences(entry, steps[-STEPS:])).max() <= TOLERANCE_CACHE


def test_the_default_says_what_the_oracle_says(name, path):
    """Products round their inputs to 16 bits, and the cache is float16: every greedy token is still the oracle's."""
    golden = read_golden(name, "quantized")
    with open_llm(path, skip_tokenizer_init=True, linear_compute="auto") as llm:
        assert llm.llm_engine.engine.resolved.model.linear_compute.value == "int16"
        answers = continue_prompts(llm, [entry.prompt for entry in golden.values()])
    for (prompt, entry), (tokens, steps) in zip(golden.items(), answers, strict=True):
        assert tokens == list(entry.tokens), prompt
        assert np.abs(differences(entry, steps)).max() <= TOLERANCE_CACHE, prompt


def test_bf16_logprobs_are_near_the_oracle_s(name, rounded):
    """At every step of the oracle's own answer, whatever a greedy choice of Octavo would have been."""
    golden = read_golden(name, "bf16")
    texts = judge_texts(rounded, [entry.prompt + entry.tokens for entry in golden.values()])
    errors = np.concatenate(
        [differences(entry, steps[-STEPS:]) for entry, steps in zip(golden.values(), texts, strict=True)]
    )
    assert errors.shape == (STEPS * len(golden), TOP)
    assert np.abs(errors).max() <= TOLERANCE_BF16
    assert np.sqrt(np.square(errors).mean()) <= SHARE_BF16 * read_bf16_errors()[name]


def test_bf16_greedy_tokens_are_the_oracle_s_until_a_tie(name, rounded):
    golden = read_golden(name, "bf16")
    answers = continue_prompts(rounded, [entry.prompt for entry in golden.values()])
    equal = [assert_same_greedy(entry, tokens) for entry, (tokens, _) in zip(golden.values(), answers, strict=True)]
    # Never vacuous: prompts are answered alike far into the text.
    assert min(equal) >= STEPS // 4
    assert np.mean(equal) >= STEPS // 2


def test_the_golden_file_is_what_transformers_says_now():
    """One prompt live, in one pass over prompt and answer: every golden token is the likeliest."""
    golden = read_golden("smollm2", "quantized")["sky"]
    live = judge(transformers_model("smollm2", smollm2_path()), golden.prompt, golden.tokens)
    assert [ids[0] for ids in live.top_ids] == list(golden.tokens)
    for ids, logprobs, live_ids, live_logprobs in zip(
        golden.top_ids, golden.top_logprobs, live.top_ids, live.top_logprobs, strict=True
    ):
        assert sorted(ids) == sorted(live_ids)
        assert dict(zip(ids, logprobs, strict=True)) == pytest.approx(
            dict(zip(live_ids, live_logprobs, strict=True)), abs=1e-3
        )
