"""A quantized cache gives the same answers alone, batched, in chunks, from the prefix cache and from slower tiers."""

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError
from octavo.ops.conformance import QUANTIZED
from tests.families.checkpoints import random_model, save

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
PROMPTS = [
    [(7 * i * (seed + 3) + seed) % 250 + 3 for i in range(length)] for seed, length in enumerate((75, 9, 40, 51))
]
ROOMY = {"max_model_len": 128, "num_gpu_blocks_override": 400, "max_num_seqs": 6}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save(random_model(request.param), path)
    return str(path)


def opened(directory, **options):
    return LLM(directory, skip_tokenizer_init=True, weight_cache=False, **{**ROOMY, **options})


def answers(llm, prompts):
    """Tokens and log-probabilities, to the bit."""
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], PARAMS, use_tqdm=False)
    return [
        [(token, {k: v.logprob for k, v in step.items()}) for token, step in zip(o.token_ids, o.logprobs, strict=True)]
        for o in (output.outputs[0] for output in outputs)
    ]


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_the_same_bits_alone_batched_chunked_and_from_the_cache(directory, dtype):
    with opened(directory, kv_cache_dtype=dtype) as llm:
        alone = [answers(llm, [prompt])[0] for prompt in PROMPTS]
        assert answers(llm, PROMPTS) == alone  # together, and from the prefix cache
    with opened(directory, kv_cache_dtype=dtype, max_num_batched_tokens=11, enable_prefix_caching=False) as llm:
        assert answers(llm, PROMPTS) == alone
    with opened(directory, kv_cache_dtype="float32") as llm:
        assert answers(llm, PROMPTS) != alone  # it is quantized


def test_layers_that_are_left_out_take_more_and_are_told(directory):
    sizes = {}
    for skipped in ((), ("0", "last")):
        with opened(directory, kv_cache_dtype="int8", kv_cache_dtype_skip_layers=skipped) as llm:
            engine = llm.llm_engine.engine
            sizes[skipped] = engine.memory.token_bytes
            kept = str(engine.resolved.model.cache_types)
            assert answers(llm, PROMPTS[:1])
    assert sizes[()] < sizes["0", "last"]
    assert kept == "int8, float16 in layers 0, last" or kept == "int8, bfloat16 in layers 0, last"


def test_the_same_tokens_through_host_and_disk(directory, tmp_path):
    small = {"num_gpu_blocks_override": 40, "max_num_seqs": 2, "kv_cache_dtype": "int8", "max_num_batched_tokens": 64}
    with opened(directory, **small) as llm:
        wanted = [answers(llm, [prompt]) for prompt in PROMPTS]
    tiers = {"kv_host": "1MiB", "kv_disk": "16MiB", "kv_disk_path": str(tmp_path / "kv")}
    for _ in range(2):  # the second engine finds the first one's files
        with opened(directory, **small, **tiers) as llm:
            for _ in range(2):
                assert [answers(llm, [prompt]) for prompt in PROMPTS] == wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_cache_dtype_skip_layers": ["0"]}, "quantizes none"),
        ({"kv_cache_dtype": "int8", "kv_cache_dtype_skip_layers": ["99"]}, "fits none of"),
        ({"kv_cache_dtype": "int8", "kv_cache_dtype_skip_layers": ["middle"]}, "neither the number of a layer nor"),
        ({"kv_cache_dtype": "int3"}, "is none of"),
    ],
)
def test_what_cannot_be_is_refused(directory, options, words):
    with pytest.raises(ConfigError, match=words):
        opened(directory, **options)
