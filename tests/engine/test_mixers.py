"""Models with latent, chunked and recurrent layers in a whole engine: the same tokens however their history is kept.

Prompts in chunks of any length, from the prefix cache, after a preemption in a pool that is too small, and as forks of
one prompt: what a request gets never depends on it.
"""

import json
import shutil

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from tests.families.checkpoints import random_model, save

SHARED = np.random.default_rng(1).integers(3, 250, 40).tolist()
PROMPTS = [np.random.default_rng(seed).integers(3, 250, 5 + 23 * seed).tolist() for seed in range(4)]
PROMPTS += [[*SHARED, 7 + seed] for seed in range(3)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
FORKS = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module", params=["lfm2", "granite-hybrid", "deepseek3-yarn", "llama4"])
def directory(request, tmp_path_factory):
    return save(random_model(request.param), tmp_path_factory.mktemp("model"))


def engine(directory, **options):
    defaults = {"max_model_len": 128, "max_num_seqs": 8, "num_gpu_blocks_override": 600, "kv_cache_dtype": "float32"}
    return LLM(str(directory), skip_tokenizer_init=True, weight_cache=False, **{**defaults, **options})


def tokens(llm, params, prompts=PROMPTS):
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(given, params, use_tqdm=False)
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


def test_same_tokens_however_history_is_kept(directory):
    with engine(directory, max_num_batched_tokens=512, enable_prefix_caching=False) as llm:
        wanted, forks = tokens(llm, GREEDY), tokens(llm, FORKS)
        assert [tokens(llm, GREEDY, [prompt])[0] for prompt in PROMPTS] == wanted  # one by one
        assert llm.llm_engine.engine.client.stats().used_blocks == 0
    assert all(len(set(map(tuple, choices))) > 1 for choices in forks)
    for chunk in (16, 33):
        with engine(directory, max_num_batched_tokens=chunk, block_size=8) as llm:
            for _ in range(2):  # the second time from the prefix cache, where something was kept
                assert tokens(llm, GREEDY) == wanted
            assert tokens(llm, FORKS) == forks


def test_same_tokens_after_preemptions(directory):
    with engine(directory, enable_prefix_caching=False) as llm:
        wanted = tokens(llm, GREEDY)
        of_one = sum(group.peak(128, 32, 16) for group in llm.llm_engine.engine.groups)
    with engine(directory, max_num_batched_tokens=32, num_gpu_blocks_override=of_one + 2) as llm:
        assert tokens(llm, GREEDY) == wanted
        assert llm.llm_engine.engine.client.stats().preemptions > 0


@pytest.fixture
def longer(directory, tmp_path):
    """The same weights with a longer context."""
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 2048}))
    return tmp_path


def test_a_prompt_goes_on_from_what_is_kept(longer):
    """Longer than the span between two recurrent states that are kept: a real state is read back."""
    common = np.random.default_rng(9).integers(3, 250, 1090).tolist()
    prompts = [[*common, *range(10 + seed, 20 + seed)] for seed in range(2)]
    options = {"max_model_len": 1200, "max_num_batched_tokens": 256}
    with engine(longer, enable_prefix_caching=False, **options) as llm:
        wanted = tokens(llm, GREEDY, prompts)
    with engine(longer, **options) as llm:
        assert tokens(llm, GREEDY, prompts[:1]) == wanted[:1]
        again = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False)
        assert [[list(choice.token_ids) for choice in output.outputs] for output in again] == wanted
        assert all(output.num_cached_tokens >= 512 for output in again)
