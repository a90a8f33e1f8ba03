"""Rope tables: transformers' frequencies for every scaling, and cos and sin that stay exact far out."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.rope import inverse_frequencies, rope_tables
from octavo.spec.decoder import RopeSpec

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 8192}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn-explicit": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 32,
        "long_factor": [1.0 + i / 3 for i in range(32)],
        "original_max_position_embeddings": 2048,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("old_spelling", [False, True])
def test_scaled_frequencies_are_those_of_transformers(name, old_spelling):
    theirs = LlamaConfig(**SIZES, rope_parameters={**SCALINGS[name], "rope_theta": 50000.0})
    length = 8192 if name == "longrope" else None
    expected, factor = ROPE_INIT_FUNCTIONS[SCALINGS[name]["rope_type"]](theirs, seq_len=length)
    ours = (
        {"rope_theta": 50000.0, "rope_scaling": SCALINGS[name]}
        if old_spelling
        else {"rope_parameters": {**SCALINGS[name], "rope_theta": 50000.0}}
    )
    spec = read_rope(ConfigReader({**SIZES, **ours}), 64)
    frequencies, own_factor = inverse_frequencies(spec)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=2e-6)
    assert own_factor == pytest.approx(factor)


def scaling_of(**section):
    return read_rope(ConfigReader({**SIZES, "rope_scaling": section}), 64).scaling


def test_both_spellings_of_the_kind_at_once():
    assert scaling_of(rope_type="linear", type="linear", factor=2.0) == scaling_of(type="linear", factor=2.0)
    assert scaling_of(rope_type="default", type="mrope") is None  # as multimodal checkpoints have it
    with pytest.raises(CheckpointError, match=r"rope_type 'linear' and type 'yarn'"):
        scaling_of(rope_type="linear", type="yarn", factor=2.0)


def test_a_scaling_is_never_passed_over():
    assert read_rope(ConfigReader({**SIZES, "rope_scaling": None}), 64).scaling is None
    assert scaling_of(rope_type="default") is None
    for kind in ("x", "dynamic"):
        with pytest.raises(UnsupportedError, match=f"rope scaling '{kind}'"):
            scaling_of(type=kind, factor=2.0)
    with pytest.raises(CheckpointError, match="factor"):
        scaling_of(type="linear")


def test_yarn_without_its_original_length_takes_the_models():
    bare = scaling_of(type="yarn", factor=4.0)
    assert bare == scaling_of(type="yarn", factor=4.0, original_max_position_embeddings=8192)


def test_tables_are_cos_and_sin_in_float64_rounded_once():
    spec = RopeSpec(10000.0, 64)
    cos, sin = rope_tables(spec, 33_000)
    frequencies, _ = inverse_frequencies(spec)
    for position in (0, 1, 255, 256, 257, 32_999):
        angles = position * frequencies
        np.testing.assert_allclose(cos[position], np.cos(angles), atol=6e-8)
        np.testing.assert_allclose(sin[position], np.sin(angles), atol=6e-8)


def test_partial_width_rotates_the_first_elements():
    spec = read_rope(ConfigReader({**SIZES, "partial_rotary_factor": 0.25}), 64)
    assert spec.width == 16
    assert rope_tables(spec, 3)[0].shape == (3, 8)
