"""What a family makes of a configuration that leaves things out: its own defaults, not another family's."""

import contextlib

import numpy as np
import pytest

from octavo.errors import OctavoError, UnsupportedError
from octavo.model.families import (
    deepseek,
    gemma3,
    gpt2,
    granite,
    granite_hybrid,
    lfm2,
    llama,
    llama4,
    opt,
    qwen2,
    qwen3,
)
from octavo.model.families.catalog import FAMILIES, GGUF_TABLE, TABLE, family_name
from octavo.model.rope import rope_tables
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, LinearScaling, QueryScaleSpec

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


def test_granite_multipliers_and_what_their_absence_means():
    spec = granite.read_spec(MINIMAL)
    assert (attention(spec).scale, spec.embedding.scale, spec.head.scale, spec.max_positions) == (1, 1, 1, 2048)
    assert granite.read_spec({**MINIMAL, "logits_scaling": 8.0}).head.scale == 0.125
    spec = granite.read_spec({**MINIMAL, "residual_multiplier": 0.22})
    assert [block.branches[0].scale for block in spec.layers[0].blocks] == [0.22, 0.22]
    sizes = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "feed_forward_length": 128}
    sizes |= {"embedding_scale": 12.0, "residual_scale": 0.0, "logit_scale": 8.0}
    metadata = {"general.architecture": "granite"} | {f"granite.{key}": value for key, value in sizes.items()}
    tensors = {"token_embd.weight": type("T", (), {"shape": (8, 64)})}
    spec = granite.read_spec(granite.read_gguf_config(metadata, tensors))
    assert (attention(spec).scale, spec.embedding.scale, spec.head.scale) == (0.25, 12, 0.125)
    assert spec.layers[0].blocks[0].branches[0].scale == 1
    unrotated = {**metadata, "granite.rope.scaling.finetuned": False}
    with pytest.raises(UnsupportedError, match="position_embedding_type"):
        granite.read_spec(granite.read_gguf_config(unrotated, tensors))


def test_opt_and_gpt2_defaults():
    spec = opt.read_spec({**MINIMAL, "ffn_dim": 128})
    assert (spec.embedding.positions, spec.embedding.project, spec.head.tied) == (2048, False, True)
    spec = gpt2.read_spec({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100})
    assert (spec.max_positions, spec.layers[0].blocks[1].branches[0].body.width) == (1024, 256)
    with pytest.raises(UnsupportedError, match="add_cross_attention"):
        gpt2.read_spec({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "add_cross_attention": True})


def test_lfm2_layers_widths_and_older_keys():
    spec = lfm2.read_spec({**MINIMAL, "layer_types": ["conv", "full_attention"] * 6})
    assert [type(attention(spec, i)).__name__ for i in (0, 1)] == ["ShortConvSpec", "AttentionSpec"]
    assert (attention(spec).conv.taps, attention(spec, 1).rope.theta, spec.head.tied) == (3, 1e6, True)
    assert spec.layers[0].blocks[1].branches[0].body.width == 256  # 2/3 of 128 up to a multiple of 256
    older = {"block_ff_dim": 999, "block_auto_adjust_ff_dim": False, "tie_embedding": False, "full_attn_idxs": [2]}
    spec = lfm2.read_spec({**MINIMAL, **older})
    assert [isinstance(attention(spec, i), AttentionSpec) for i in (1, 2, 3)] == [False, True, False]
    assert (spec.layers[0].blocks[1].branches[0].body.width, spec.head.tied) == (999, False)
    with pytest.raises(UnsupportedError, match="moe"):
        lfm2.read_spec({**MINIMAL, "layer_types": ["moe"] * 12})


def test_llama4_layers_with_and_without_rope():
    spec = llama4.read_spec({**MINIMAL, "moe_layers": []})
    first, fourth = attention(spec, 0), attention(spec, 3)
    assert (first.chunk, first.rope.theta, first.qk_norm.weight, first.query_scale) == (8192, 5e5, False, None)
    assert (fourth.chunk, fourth.rope, fourth.qk_norm, fourth.query_scale) == (
        None,
        None,
        None,
        QueryScaleSpec(0.1, 8192),
    )
    assert spec.layers[0] is spec.layers[4]
    spec = llama4.read_spec({**MINIMAL, "moe_layers": [], "attention_chunk_size": None, "use_qk_norm": False})
    assert (attention(spec).chunk, attention(spec).qk_norm) == (None, None)
    with pytest.raises(UnsupportedError, match="layers 3, 7, 11 have experts"):
        llama4.read_spec({**MINIMAL, "interleave_moe_layer_step": 4})


def test_granite_hybrid_defaults_and_refusals():
    dense = {**MINIMAL, "num_local_experts": 0, "mamba_n_heads": 8}
    body = attention(granite_hybrid.read_spec(dense))
    assert (body.inner, body.head_dim, body.state, body.taps, body.limits) == (128, 16, 256, 4, (0.0, np.inf))
    limited = granite_hybrid.read_spec({**dense, "time_step_limit": [0.1, {"__float__": "Infinity"}]})
    assert attention(limited).limits == (0.1, np.inf)
    spec = granite_hybrid.read_spec({**dense, "layers_block_type": ["attention"] * 12})
    assert (attention(spec).rope, attention(spec).scale) == (None, 1.0)
    spec = granite_hybrid.read_spec(
        {**dense, "layer_types": ["full_attention"] * 12, "position_embedding_type": "rope"}
    )
    assert attention(spec).rope.theta == 1e4
    with pytest.raises(UnsupportedError, match="experts"):
        granite_hybrid.read_spec(MINIMAL)


def test_deepseek_defaults_refusals_and_yarn():
    dense = {**MINIMAL, "first_k_dense_replace": 12}
    longer = {"max_position_embeddings": 2560}
    spec = deepseek.read_spec(dense)
    body = attention(spec)
    assert (body.q_rank, body.rank, body.nope, body.rope_dim, body.value_dim) == (1536, 512, 128, 64, 128)
    assert body.scale == pytest.approx(192**-0.5)
    assert (spec.max_positions, deepseek.read_spec({**dense, "model_type": "deepseek_v3"}).max_positions) == (
        2048,
        4096,
    )
    assert attention(deepseek.read_spec({**dense, "q_lora_rank": None})).q_norm is None
    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    scaled = attention(deepseek.read_spec({**dense, "rope_scaling": scaling, **longer}))
    assert scaled.scale == pytest.approx(192**-0.5 * (0.1 * np.log(40.0) + 1) ** 2)
    assert scaled.rope.scaling.attention_factor == 1.0
    with pytest.raises(UnsupportedError, match="layers 0 to 11 have experts"):
        deepseek.read_spec(MINIMAL)
    with pytest.raises(UnsupportedError, match="layers 3 to 11 have experts"):
        deepseek.read_spec({**MINIMAL, "architectures": ["DeepseekV3ForCausalLM"]})
    with pytest.raises(UnsupportedError, match="rope_interleave"):
        deepseek.read_spec({**dense, "rope_interleave": False})


JUNK = (None, 0, -1, 1, 1.5, 1 << 70, float("nan"), "", "x", True, [], [[1]], {}, {"rope_type": 3})
JUNK += ({"sliding_attention": 1}, {"rope_type": "yarn"}, {"rope_type": "longrope", "factor": 2})


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_whatever_a_config_says_the_answer_is_a_spec_or_a_clear_error(family):
    """A file's values of any type: never a TypeError, KeyError, or a hang."""
    gpt = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 128, "layer_norm_epsilon": 1e-5}
    others = "rope_theta rope_scaling rope_parameters sliding_window sliding_window_pattern layer_types head_dim"
    others += " partial_rotary_factor rotary_dim num_key_value_heads use_sliding_window max_window_layers text_config"
    others += " hidden_act hidden_activation activation_function tie_word_embeddings query_pre_attn_scalar dtype"
    others += " moe_layers interleave_moe_layer_step no_rope_layers no_rope_layer_interval attention_chunk_size"
    others += " use_qk_norm attn_temperature_tuning floor_scale attn_scale intermediate_size_mlp"
    others += " conv_L_cache conv_bias norm_eps block_ff_dim block_multiple_of block_ffn_dim_multiplier full_attn_idxs"
    others += " tie_embedding block_auto_adjust_ff_dim mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv"
    others += " mamba_expand time_step_limit layers_block_type position_embedding_type shared_intermediate_size"
    others += " first_k_dense_replace q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
    others += " attention_multiplier embedding_multiplier residual_multiplier logits_scaling"
    others += " max_position_embeddings word_embed_proj_dim attention_bias rms_norm_eps model_type architectures"
    base = {**MINIMAL, **gpt, "ffn_dim": 64}
    few = {"moe_layers": [], "first_k_dense_replace": 1, "num_local_experts": 0, "mamba_n_heads": 8}
    for key in (*base, *others.split()):
        for junk in JUNK:
            with contextlib.suppress(OctavoError):
                spec = family.read_spec({**base, "num_hidden_layers": 1, "n_layer": 1, **few, key: junk})
                for rope in (rope for rope in spec.ropes if rope.width < 1000):
                    assert np.isfinite(rope_tables(rope, 4)[0]).all()


@pytest.mark.parametrize("arch", GGUF_TABLE)
def test_whatever_gguf_metadata_say_the_answer_is_a_spec_or_a_clear_error(arch):
    sizes = {"context_length": 64, "embedding_length": 64, "block_count": 62, "feed_forward_length": 64}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 4, "attention.key_length": 16}
    others = (
        "attention.value_length attention.sliding_window attention.sliding_window_pattern rope.freq_base expert_count"
    )
    others += " rope.scaling.type rope.scaling.factor rope.scale_linear rope.dimension_count rope.freq_base_swa"
    others += " attention.layer_norm_rms_epsilon attention.layer_norm_epsilon"
    others += " attention.scale embedding_scale residual_scale logit_scale"
    tensors = {"token_embd.weight": StoredTensor("token_embd.weight", "f32", (8, 64), np.zeros(2048, np.uint8))}
    base = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in sizes.items()}
    family = GGUF_TABLE[arch]
    assert family.read_spec(family.read_gguf_config(base, tensors)).hidden == 64
    for key in (*sizes, *others.split()):
        for junk in JUNK:
            with contextlib.suppress(OctavoError):
                family.read_spec(family.read_gguf_config({**base, f"{arch}.{key}": junk}, tensors))


def test_the_catalog_lists_every_family_once():
    names = [
        "llama",
        "qwen2",
        "qwen3",
        "gemma3",
        "granite",
        "opt",
        "gpt2",
        "deepseek",
        "lfm2",
        "granite_hybrid",
        "llama4",
        "bert",
        "roberta",
        "distilbert",
        "modernbert",
        "mpnet",
        "nomic_bert",
    ]
    assert [family_name(family) for family in FAMILIES] == names
    assert len(TABLE) == sum(len(family.ARCHITECTURES) for family in FAMILIES)
    assert len(GGUF_TABLE) == sum(len(family.GGUF_ARCHITECTURES) for family in FAMILIES)
