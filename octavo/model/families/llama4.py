"""Llama 4, text, whose layers are all dense: attention within chunks where there is rope; over everything where there
is none, with queries that grow with their position.

Source: transformers' Llama4TextConfig and modeling code, and its weight names. Layers with experts are refused.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.common import LLAMA_NAMES, decoder, read_sizes, with_layer
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import (
    AttentionSpec,
    DecoderSpec,
    DenseMlpSpec,
    LayerSpec,
    NormSpec,
    QueryScaleSpec,
    RopeSpec,
    sequential,
)

ARCHITECTURES = ("Llama4ForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()  # there are files of models with experts only

WEIGHTS = with_layer(
    LLAMA_NAMES,
    {
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj", unpair=True),
        "mixer.k": at("{p}layers.{i}.self_attn.k_proj", unpair=True),
        "mlp.gate": at("{p}layers.{i}.feed_forward.gate_proj"),
        "mlp.up": at("{p}layers.{i}.feed_forward.up_proj"),
        "mlp.down": at("{p}layers.{i}.feed_forward.down_proj"),
    },
)
GGUF_WEIGHTS = WEIGHTS


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. A 1 in `no_rope_layers` means that the layer does have rope."""
    read = ConfigReader(config)
    sizes = read_sizes(read, head_dim=128)
    step, experts = read.size("interleave_moe_layer_step", 1), read.indices("moe_layers")
    experts = tuple(range(step - 1, sizes.layers, step)) if experts is None else experts
    if experts:
        raise UnsupportedError(f"config: layers {', '.join(map(str, experts))[:200]} have experts; not supported")
    every = read.size("no_rope_layer_interval", 4)
    turned = read.indices("no_rope_layers") or tuple(int((i + 1) % every != 0) for i in range(sizes.layers))
    if len(turned) < sizes.layers:
        raise CheckpointError(f"config: no_rope_layers has {len(turned)} entries for {sizes.layers} layers")
    rope = read_rope(read, sizes.head_dim, theta=500000.0)
    chunk = read.optional_size("attention_chunk_size", 8192)
    kinds = read.texts("layer_types") or tuple("chunked_attention" if on and chunk else "" for on in turned)
    layer_of = {
        (on, chunked): _layer(read, rope if on else None, chunk if chunked else None)
        for on in (False, True)
        for chunked in (False, True)
    }
    layers = tuple(layer_of[bool(on), kind == "chunked_attention"] for on, kind in zip(turned, kinds, strict=False))
    if len(layers) < sizes.layers:
        raise CheckpointError(f"config: layer_types has {len(kinds)} entries for {sizes.layers} layers")
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-5))
    return decoder(read, layers[: sizes.layers], norm, positions=131072, tied=False)


def _layer(read: ConfigReader, rope: RopeSpec | None, chunk: int | None) -> LayerSpec:
    sizes, eps = read_sizes(read, head_dim=128), read.number("rms_norm_eps", 1e-5)
    bias, tuned = read.flag("attention_bias", False), read.flag("attn_temperature_tuning", True)
    # The file's norm comes after the rotation; without a gain that is the same as before it.
    normed = rope is not None and read.flag("use_qk_norm", True)
    growth = QueryScaleSpec(read.number("attn_scale", 0.1), read.number("floor_scale", 8192))
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=NormSpec("rms", eps, weight=False) if normed else None,
        chunk=chunk,
        query_scale=growth if tuned and rope is None else None,
    )
    mlp = DenseMlpSpec(read.size("intermediate_size_mlp", 16384), read.activation("hidden_act", "silu"))
    return sequential(attention, mlp, NormSpec("rms", eps))


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """There are no GGUF files without experts."""
    raise UnsupportedError("Llama 4's GGUF files have experts, which are not supported")
