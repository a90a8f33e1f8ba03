"""Mirostat's state stays with its answer in a pool that is too small, beside others, and when it runs again."""

import pytest

from octavo import LLM, SamplingParams
from tests.families.checkpoints import random_model, save

PROMPTS = [[(7 * i * (seed + 3) + seed) % 250 + 3 for i in range(25 + seed)] for seed in range(4)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    save(random_model("llama"), path)
    return str(path)


def engine(directory, blocks):
    options = {"max_model_len": 96, "max_num_seqs": 8, "kv_cache_dtype": "float32", "enable_prefix_caching": False}
    return LLM(directory, skip_tokenizer_init=True, weight_cache=False, num_gpu_blocks_override=blocks, **options)


def params(seed):
    given = {"mirostat": 1 + seed % 2, "mirostat_tau": 4.0, "mirostat_eta": 0.8, "temperature": 1.5}
    return SamplingParams(seed=seed, n=2, max_tokens=50, ignore_eos=True, **given)


def answers(llm, numbers):
    asked = [{"prompt_token_ids": PROMPTS[number]} for number in numbers]
    outputs = llm.generate(asked, [params(number) for number in numbers], use_tqdm=False)
    return [[tuple(choice.token_ids) for choice in output.outputs] for output in outputs]


def test_the_same_tokens_after_preemptions(directory):
    numbers = range(len(PROMPTS))
    with engine(directory, 200) as llm:
        alone = [answers(llm, [number])[0] for number in numbers]
        assert answers(llm, numbers) == alone
        assert llm.llm_engine.engine.client.stats().preemptions == 0
    assert len({choice for answer in alone for choice in answer}) == 2 * len(PROMPTS)
    with engine(directory, 14) as llm:
        assert answers(llm, numbers) == alone
        assert llm.llm_engine.engine.client.stats().preemptions > 0
