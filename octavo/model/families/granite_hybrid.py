"""Granite 4 hybrid, dense: Granite whose layers mix by Mamba-2 but for a few with attention, usually without rope.

Source: transformers' GraniteMoeHybridConfig and modeling code; the weight names of ibm-granite/granite-4.0-h-350m and
1b. Models with experts are refused.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.common import LLAMA_NAMES, decoder, read_sizes, with_head, with_layer
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import (
    AttentionSpec,
    BlockSpec,
    BranchSpec,
    DecoderSpec,
    DenseMlpSpec,
    LayerSpec,
    NormSpec,
    StateSpaceSpec,
)

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = with_layer(
    LLAMA_NAMES,
    {
        "mixer.project": at("{p}layers.{i}.mamba.in_proj"),
        "mixer.conv": at("{p}layers.{i}.mamba.conv1d"),
        "mixer.decay": at("{p}layers.{i}.mamba.A_log", negative_exp=True),
        "mixer.skip": at("{p}layers.{i}.mamba.D"),
        "mixer.step_bias": at("{p}layers.{i}.mamba.dt_bias"),
        "mixer.inner_norm": at("{p}layers.{i}.mamba.norm"),
        "mixer.out": at("{p}layers.{i}.self_attn.o_proj", "{p}layers.{i}.mamba.out_proj"),
        "mlp.gate_up": at("{p}layers.{i}.shared_mlp.input_linear"),
        "mlp.down": at("{p}layers.{i}.shared_mlp.output_linear"),
    },
)
GGUF_WEIGHTS = WEIGHTS

_KINDS = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. A missing multiplier is 1; missing layer types are all Mamba-2."""
    read = ConfigReader(config)
    if read.whole("num_local_experts", 8):
        raise UnsupportedError("config: num_local_experts is not 0; models with experts are not supported")
    sizes, eps = read_sizes(read), read.number("rms_norm_eps", 1e-6)
    positions = read.text("position_embedding_type", "nope")
    if positions not in ("nope", "rope"):
        raise UnsupportedError(f"config: position_embedding_type {positions!r} is not supported")
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=read.number("attention_multiplier", 1.0),
        rope=read_rope(read, sizes.head_dim) if positions == "rope" else None,
        qkv_bias=read.flag("attention_bias", False),
        out_bias=read.flag("attention_bias", False),
    )
    mlp = DenseMlpSpec(read.size("shared_intermediate_size", 1024), read.activation("hidden_act", "silu"))
    norm, share = NormSpec("rms", eps), read.number("residual_multiplier", 1.0)
    layer_of = {
        recurrent: LayerSpec(tuple(BlockSpec((BranchSpec(body, norm, scale=share),)) for body in (mixer, mlp)))
        for recurrent, mixer in ((True, _state_space(read, sizes.hidden, eps)), (False, attention))
    }
    kinds = read.texts("layer_types") or read.texts("layers_block_type") or ("mamba",) * sizes.layers
    if len(kinds) < sizes.layers or not set(kinds) <= set(_KINDS):
        raise CheckpointError(f"config: layer_types has {len(kinds)} entries: {', '.join(sorted(set(kinds)))[:200]}")
    layers = tuple(layer_of[_KINDS[kind]] for kind in kinds[: sizes.layers])
    scale = read.number("embedding_multiplier", 1.0)
    spec = decoder(read, layers, norm, positions=2048, tied=False, embed_scale=scale)
    return with_head(spec, scale=1 / read.number("logits_scaling", 1.0))


def _state_space(read: ConfigReader, hidden: int, eps: float) -> StateSpaceSpec:
    read.refuse("hidden_act", "silu")  # it is the convolution's activation, too
    heads, inner = read.size("mamba_n_heads", 128), hidden * read.size("mamba_expand", 2)
    groups = read.size("mamba_n_groups", 1)
    if inner % heads or heads % groups:
        raise CheckpointError(
            f"config: {inner} channels, {heads} mamba_n_heads and {groups} groups do not divide evenly"
        )
    return StateSpaceSpec(
        heads,
        inner // heads,
        read.size("mamba_d_state", 256),
        groups,
        read.size("mamba_d_conv", 4, most=16),
        eps,
        read.limits("time_step_limit", (0.0, float("inf"))),
        conv_bias=read.flag("mamba_conv_bias", True),
        bias=read.flag("mamba_proj_bias", False),
    )


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Not supported yet."""
    raise UnsupportedError("GGUF files of Granite hybrids are not supported")
