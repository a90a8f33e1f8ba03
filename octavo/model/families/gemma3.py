"""Gemma 3, text: five window layers to one full one, each kind with its own rope; norms around every branch, q and k.

Source: transformers' Gemma3TextConfig and modeling code; the weight names of google/gemma-3-270m ... 27b. Multimodal
checkpoints load their text part; the vision tower's tensors are left alone.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.model.families.common import (
    GGUF_NAMES,
    IGNORED,
    PREFIXES,
    decoder,
    gguf_config,
    layer_kinds,
    read_sizes,
    with_head,
    with_layer,
)
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.quantization.gguf_blocks import bf16_from_f32
from octavo.spec.decoder import AttentionSpec, DecoderSpec, DenseMlpSpec, LayerSpec, NormSpec, sequential

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
GGUF_ARCHITECTURES = ("gemma3",)

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embed_tokens"),
        "final_norm": at("{p}norm", add_one=True),
        "head": at("lm_head", "language_model.lm_head"),
    },
    layer={
        "mixer.norm": at("{p}layers.{i}.input_layernorm", add_one=True),
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj"),
        "mixer.k": at("{p}layers.{i}.self_attn.k_proj"),
        "mixer.v": at("{p}layers.{i}.self_attn.v_proj"),
        "mixer.out": at("{p}layers.{i}.self_attn.o_proj"),
        "mixer.q_norm": at("{p}layers.{i}.self_attn.q_norm", add_one=True),
        "mixer.k_norm": at("{p}layers.{i}.self_attn.k_norm", add_one=True),
        "mixer.post_norm": at("{p}layers.{i}.post_attention_layernorm", add_one=True),
        "mlp.norm": at("{p}layers.{i}.pre_feedforward_layernorm", add_one=True),
        "mlp.gate": at("{p}layers.{i}.mlp.gate_proj"),
        "mlp.up": at("{p}layers.{i}.mlp.up_proj"),
        "mlp.down": at("{p}layers.{i}.mlp.down_proj"),
        "mlp.post_norm": at("{p}layers.{i}.post_feedforward_layernorm", add_one=True),
    },
    prefixes=PREFIXES,
    ignore=(*IGNORED, "*vision_tower.*", "*multi_modal_projector.*"),
)
# In GGUF files the one is already added.
GGUF_WEIGHTS = with_layer(
    GGUF_NAMES,
    {"mixer.post_norm": at("blk.{i}.post_attention_norm"), "mlp.post_norm": at("blk.{i}.post_ffw_norm")},
)


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json; of its `text_config`, which omits what equals the class's defaults."""
    whole = ConfigReader(config)
    nested = config.get("text_config")
    dtype = whole.text("dtype", whole.text("torch_dtype", "float32"))
    if whole.section("text_config") is None:
        nested = config
    tied = {"tie_word_embeddings": config.get("tie_word_embeddings")}  # may stand outside
    values: dict[str, Any] = {**_DEFAULTS, **tied, **dict(nested or {})}
    read = ConfigReader(values)
    if values.get("use_bidirectional_attention") == "vision":  # of images alone
        values["use_bidirectional_attention"] = None
    sizes = read_sizes(read, head_dim=256)
    pattern = read.size("sliding_window_pattern", read.size("_sliding_window_pattern", 6))
    slides = layer_kinds(read, sizes.layers, tuple((i + 1) % pattern != 0 for i in range(sizes.layers)))
    norm = NormSpec("rms", read.number("rms_norm_eps"))
    window_layer, full_layer = _layer(read, norm, window=True), _layer(read, norm, window=False)
    layers = tuple(window_layer if slide else full_layer for slide in slides)
    spec = decoder(read, layers, norm, positions=131072, tied=True, embed_scale=_embed_scale(sizes.hidden, dtype))
    return with_head(spec, softcap=read.optional_number("final_logit_softcapping"))


# Gemma3TextConfig's values: files of the larger models say only what differs.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


def _layer(read: ConfigReader, norm: NormSpec, window: bool) -> LayerSpec:
    sizes = read_sizes(read, head_dim=256)
    if window:
        # The old spelling's rope_scaling is the full layers' alone.
        local = ConfigReader({"rope_parameters": None}) if read.section("rope_parameters") is None else read
        theta = read.number("rope_local_base_freq", 10000.0)
        rope = read_rope(local, sizes.head_dim, theta, "sliding_attention", "rope_local_base_freq")
    else:
        rope = read_rope(read, sizes.head_dim, 1e6, "full_attention")
    bias = read.flag("attention_bias", False)
    both_ways = read.flag("use_bidirectional_attention", False)
    width = read.size("sliding_window")
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=read.number("query_pre_attn_scalar", 256) ** -0.5,
        rope=rope,
        window=(width // 2 + 1 if both_ways else width) if window else None,  # the token itself counts
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=norm,
        softcap=read.optional_number("attn_logit_softcapping"),
        causal=not both_ways,
    )
    mlp = DenseMlpSpec(read.size("intermediate_size"), read.activation("hidden_activation", "gelu_pytorch_tanh"))
    return sequential(attention, mlp, norm, post_norm=norm)


def _embed_scale(hidden: int, dtype: str) -> float:
    """sqrt(hidden), rounded to the type of the weights, as the model was trained."""
    factor = np.float32(math.sqrt(hidden))
    if dtype == "bfloat16":
        return float((bf16_from_f32(np.array([factor], np.float32)).astype(np.uint32) << 16).view(np.float32)[0])
    return float(np.float16(factor)) if dtype == "float16" else float(factor)


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json. Files omit the local rope base (10000), the pattern (6) and the
    attention scale: head_dim^-1/2, but (hidden / heads)^-1/2 in the 27B model, known by its 62 layers."""
    config = gguf_config(metadata, tensors)
    arch = metadata["general.architecture"]
    config.setdefault("head_dim", 256)
    local = metadata.get(f"{arch}.rope.freq_base_swa")
    if local is not None:
        config["rope_local_base_freq"] = local
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in pattern]  # pyright: ignore[reportUnknownVariableType]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    config["query_pre_attn_scalar"] = config["head_dim"]
    if config.get("num_hidden_layers") == 62:
        sizes = ConfigReader(config)
        config["query_pre_attn_scalar"] = sizes.size("hidden_size") / sizes.size("num_attention_heads")
    return config
