"""What a family makes of a configuration that leaves things out: its own defaults, not another family's."""

import pytest

from octavo.errors import UnsupportedError
from octavo.model.families import gemma3, gpt2, llama, opt, qwen2, qwen3
from octavo.model.families.catalog import FAMILIES, GGUF_TABLE, TABLE, family_name
from octavo.spec.decoder import LinearScaling

MINIMAL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def attention(spec, layer=0):
    return spec.layers[layer].blocks[0].branches[0].body


def test_llama_and_mistral_defaults():
    spec = llama.read_spec(MINIMAL)
    assert (attention(spec).window, attention(spec).kv_heads, spec.max_positions) == (None, 4, 2048)
    assert not spec.head.tied
    mistral = {**MINIMAL, "num_attention_heads": 8, "model_type": "mistral"}
    assert (attention(llama.read_spec(mistral)).window, attention(llama.read_spec(mistral)).kv_heads) == (4096, 8)
    assert attention(llama.read_spec({**mistral, "sliding_window": None})).window is None
    named = {**MINIMAL, "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert attention(llama.read_spec(named)).window == 4096
    assert spec.layers[0] is spec.layers[-1]


def test_qwen_windows_are_off_unless_enabled():
    config = {**MINIMAL, "sliding_window": 32, "max_window_layers": 10}
    spec = qwen2.read_spec(config)
    assert attention(spec, 11).window is None
    assert attention(spec).qkv_bias
    assert not attention(spec).out_bias
    spec = qwen2.read_spec({**config, "use_sliding_window": True})
    assert [attention(spec, i).window for i in (9, 10, 11)] == [None, 32, 32]
    spec = qwen3.read_spec(MINIMAL)
    assert attention(spec).head_dim == 128
    assert attention(spec).qk_norm is not None


def test_gemma_defaults_pattern_ropes_and_scales():
    spec = gemma3.read_spec({**MINIMAL, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    windows = [attention(spec, i).window for i in range(12)]
    assert windows == ([4096] * 5 + [None]) * 2
    local, whole = attention(spec, 0).rope, attention(spec, 5).rope
    assert (local.theta, local.scaling) == (10000.0, None)
    assert (whole.theta, whole.scaling) == (1e6, LinearScaling(8.0))
    assert attention(spec).scale == 256**-0.5
    assert spec.head.tied
    assert spec.layers[0] is spec.layers[6]
    assert gemma3.read_spec({**MINIMAL, "hidden_size": 640}).embedding.scale == pytest.approx(640**0.5, rel=1e-6)
    assert gemma3.read_spec({**MINIMAL, "hidden_size": 640, "torch_dtype": "bfloat16"}).embedding.scale == 25.25


def test_gemma_text_part_of_a_multimodal_file():
    nested = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = gemma3.read_spec({"text_config": nested, "dtype": "bfloat16"})
    assert (attention(spec).heads, attention(spec).kv_heads, attention(spec).window) == (8, 4, 1024)
    assert (spec.vocab, spec.hidden, spec.head.tied) == (262208, 2560, True)


def test_gemma_27b_scale_in_gguf_is_by_hidden():
    sizes = {"block_count": 62, "embedding_length": 5376, "attention.head_count": 32, "attention.key_length": 128}
    metadata = {"general.architecture": "gemma3"} | {f"gemma3.{key}": value for key, value in sizes.items()}
    tensors = {"token_embd.weight": type("T", (), {"shape": (8, 5376)})}
    assert gemma3.read_gguf_config(metadata, tensors)["query_pre_attn_scalar"] == 168


def test_opt_and_gpt2_defaults():
    spec = opt.read_spec({**MINIMAL, "ffn_dim": 128})
    assert (spec.embedding.positions, spec.embedding.project, spec.head.tied) == (2048, False, True)
    spec = gpt2.read_spec({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100})
    assert (spec.max_positions, spec.layers[0].blocks[1].branches[0].body.width) == (1024, 256)
    with pytest.raises(UnsupportedError, match="add_cross_attention"):
        gpt2.read_spec({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "add_cross_attention": True})


def test_the_catalog_lists_every_family_once():
    assert [family_name(family) for family in FAMILIES] == ["llama", "qwen2", "qwen3", "gemma3", "opt", "gpt2"]
    assert len(TABLE) == sum(len(family.ARCHITECTURES) for family in FAMILIES)
    assert len(GGUF_TABLE) == sum(len(family.GGUF_ARCHITECTURES) for family in FAMILIES)
