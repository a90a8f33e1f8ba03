"""Every family gives the logits of transformers at every position, from every file layout and on every backend."""

import gguf
import numpy as np
import pytest
import torch

from octavo.model.weight_cache import WeightCache
from tests.families.checkpoints import CONFIGS, expected_logits, random_model, save, write_gguf
from tests.families.harness import logits_of

IDS = np.random.default_rng(3).integers(3, 256, 27).tolist()  # past the windows of 8
IN_GGUF = [
    name
    for name in CONFIGS
    if not name.startswith(
        (
            "opt",
            "deepseek",
            "llama4",
            "lfm2",
            "granite-h",
            "llama-yarn",
            "llama-longrope",
            "gpt2-by",
            "qwen2-w",
            "gemma3-s",
        )
    )
]


def assert_close(actual, expected, tolerance=2e-5):
    """Compared with the spread of the logits, so that every model is held to the same standard."""
    assert expected.std() > 0.1, "a model whose logits hardly differ proves nothing"
    error = float(np.abs(actual - expected).max()) / max(1.0, float(np.abs(expected).max()))
    assert error < tolerance


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory):
    model = random_model(request.param)
    expected = expected_logits(model, IDS)
    return save(model, tmp_path_factory.mktemp("model")), expected


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_float32_checkpoint_equals_transformers(checkpoint, backend):
    directory, expected = checkpoint
    assert_close(logits_of(directory, IDS, backend), expected)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "granite", "opt-350m", "gpt2", "deepseek3-yarn", "lfm2", "granite-hybrid", "llama4"]
)
def test_chunks_and_single_tokens_equal_one_prefill(name, backend, tmp_path):
    directory = save(random_model(name), tmp_path)
    steps = (7, 12, 1, 1, 1, 5)
    # The reference sums in another order for another number of tokens; native code must not.
    tolerance = 2e-5 if backend == "torch" else 1e-9
    assert_close(logits_of(directory, IDS, backend, steps), logits_of(directory, IDS, backend), tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama-biased-tied-llama3", "gemma3", "gpt2"])
def test_sharded_half_precision_checkpoint(name, dtype, tmp_path):
    model = random_model(name)
    save(model, tmp_path, dtype, shard="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    expected = expected_logits(model, IDS)  # the rounded weights, computed in float32
    # bf16 matrices round their input to bf16 as well; asking for float32 must not.
    assert_close(logits_of(tmp_path, IDS, "torch", dtype="float32"), expected)
    assert_close(logits_of(tmp_path, IDS, "torch"), expected, 3e-2 if dtype == torch.bfloat16 else 2e-5)
    assert_close(logits_of(tmp_path, IDS, "native"), logits_of(tmp_path, IDS, "torch"), 1e-2)


@pytest.mark.parametrize("name", IN_GGUF)
def test_gguf_gives_the_same_logits(name, tmp_path):
    model = random_model(name)
    expected = expected_logits(model, IDS)
    path = write_gguf(model, tmp_path / "m.gguf")
    assert_close(logits_of(path, IDS, "torch"), expected)


def test_cached_weights_give_the_same_bits(tmp_path):
    path = write_gguf(random_model("llama"), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_1)
    plain = logits_of(path, IDS, "native")
    for hits in (0, 1):
        cache = WeightCache(tmp_path / "cache", 1 << 30)
        np.testing.assert_array_equal(logits_of(path, IDS, "native", cache=cache), plain)
        cache.wait()
        assert cache.counts.hits == hits


def test_quantized_gguf_equals_its_own_values(tmp_path):
    """Permuted rows, q, k and v in segments, and block formats: as transformers with the dequantized weights."""
    model = random_model("llama")
    q8 = gguf.GGMLQuantizationType.Q8_0
    path = write_gguf(model, tmp_path / "m.gguf", q8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                stored = gguf.quants.quantize(parameter.numpy(), q8)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, q8)))
    expected = expected_logits(model, IDS)
    assert_close(logits_of(path, IDS, "torch"), expected)
    assert_close(logits_of(path, IDS, "native"), expected)
