"""The perplexity of a real page under SmolLM2 in every weight format: the oracle's, and near that of float32."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.quantization.format import FORMATS as STORAGE
from tests.families.real import gemma3_path, smollm2_path, transformers_model
from tests.golden import oracle
from tests.golden.cases import PROMPTS, page_ids
from tests.golden.octavo_model import open_llm, perplexity
from tests.golden.quantizers import quantize
from tests.golden.requantize import FORMATS, Requantizer, read_perplexities

# Relative difference from transformers in float32 with the same quantized weights.
TOLERANCE = 5e-4
# With bf16 weights, whose products round their inputs to bf16: a last bit decides which way. Two orders of sums with
# caches of three types gave 0.04 % less to 0.06 % more.
BF16_TOLERANCE = 1.5e-3
# The same when products round their inputs; one format of each kind of kernel.
ROUNDED_TOLERANCES = {"int16": TOLERANCE, "int8": 0.01}
ROUNDED_FORMATS = ("q4_0", "q8_0", "q4_k", "q6_k")
# How much a format may raise the perplexity of float32, as a share of it. Formats of 256-element blocks hold only the
# down projections here (requantize.py). The test's quantizers only round: files made with care do better.
BOUNDS = {
    "f32": 0.0, "f16": 0.001, "bf16": 0.01, "q8_0": 0.01, "q6_k": 0.01, "q5_k": 0.06, "q4_k": 0.06, "q3_k": 0.3,
    "q2_k": 3.5, "q5_1": 0.2, "q5_0": 0.2, "q4_1": 0.06, "q4_0": 0.4, "iq4_nl": 0.3, "mxfp4": 1.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def requantizer():
    return Requantizer(smollm2_path())


@pytest.fixture(scope="module")
def ids():
    return page_ids(smollm2_path())


@pytest.mark.parametrize("format", FORMATS)
def test_perplexity_is_the_oracle_s(format, requantizer, ids, tmp_path):
    wanted = read_perplexities()
    path = requantizer.write(format, tmp_path / f"{format}.gguf")
    with open_llm(path, skip_tokenizer_init=True) as llm:
        found = perplexity(llm, ids)
    path.unlink()
    assert found == pytest.approx(wanted[format], rel=BF16_TOLERANCE if format == "bf16" else TOLERANCE)
    assert found <= wanted["f32"] * (1 + BOUNDS[format] + TOLERANCE)


@pytest.mark.parametrize("format", ROUNDED_FORMATS)
@pytest.mark.parametrize("compute", ROUNDED_TOLERANCES)
def test_rounded_inputs_cost_little(compute, format, requantizer, ids, tmp_path):
    """Different numbers, so it was in effect."""
    path = requantizer.write(format, tmp_path / f"{format}.gguf")
    with open_llm(path, skip_tokenizer_init=True, linear_compute=compute) as llm:
        found = perplexity(llm, ids)
    path.unlink()
    wanted = read_perplexities()[format]
    assert found == pytest.approx(wanted, rel=ROUNDED_TOLERANCES[compute])
    assert found != pytest.approx(wanted, rel=1e-5 if compute == "int8" else 1e-8)


@pytest.mark.parametrize("name", PROMPTS)
def test_perplexity_of_the_files_as_they_are(name, tmp_path):
    path = smollm2_path() if name == "smollm2" else gemma3_path(tmp_path)
    with open_llm(path, skip_tokenizer_init=True) as llm:
        found = perplexity(llm, page_ids(path))
    assert found == pytest.approx(read_perplexities()[name], rel=TOLERANCE)


def test_the_page_on_accuracy_shows_the_golden_numbers():
    page = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text()
    wanted = read_perplexities()
    for format in FORMATS:
        assert f"| {format} | {STORAGE[format].bits_per_weight:g} | {wanted[format]:.3f} |" in page


def test_the_golden_perplexities_are_what_transformers_says_now(requantizer, ids, tmp_path):
    path = requantizer.write("q4_k", tmp_path / "q4_k.gguf")
    live = oracle.perplexity(transformers_model("smollm2", path), ids)
    assert live == pytest.approx(read_perplexities()["q4_k"], rel=1e-4)


@pytest.mark.parametrize("format", FORMATS)
def test_quantizers_lose_what_their_bits_explain(format):
    """Values come back within about a step of the format, zero exactly, whatever their sign."""
    values = np.random.default_rng(1).standard_normal((6, 512)).astype(np.float32) * 0.05
    values[2] = 0
    values[3] = np.abs(values[3])
    values[4] = -np.abs(values[4])
    back = gguf.quants.dequantize(quantize(values, format), gguf.GGMLQuantizationType[format.upper()])
    assert not back[2].any()
    bits = STORAGE[format].bits_per_weight
    error = np.sqrt(np.square(back - values).mean() / np.square(values).mean())
    assert error < 1.8 / 2 ** min(bits - 1, 8)
