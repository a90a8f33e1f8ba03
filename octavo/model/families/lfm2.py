"""LFM2, dense: gated short convolutions, and attention with normed queries and keys in a few of the layers.

Source: transformers' Lfm2Config and modeling code; the weight names of LiquidAI/LFM2-350M ... 2.6B.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.common import IGNORED, PREFIXES, decoder, read_sizes
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, ConvSpec, DecoderSpec, DenseMlpSpec, NormSpec, ShortConvSpec, sequential

ARCHITECTURES = ("Lfm2ForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = WeightTable(
    model={"embed": at("{p}embed_tokens"), "final_norm": at("{p}embedding_norm"), "head": at("lm_head")},
    layer={
        "mixer.norm": at("{p}layers.{i}.operator_norm"),
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj"),
        "mixer.k": at("{p}layers.{i}.self_attn.k_proj"),
        "mixer.v": at("{p}layers.{i}.self_attn.v_proj"),
        "mixer.q_norm": at("{p}layers.{i}.self_attn.q_layernorm"),
        "mixer.k_norm": at("{p}layers.{i}.self_attn.k_layernorm"),
        "mixer.project": at("{p}layers.{i}.conv.in_proj"),
        "mixer.conv": at("{p}layers.{i}.conv.conv"),
        "mixer.out": at("{p}layers.{i}.self_attn.out_proj", "{p}layers.{i}.conv.out_proj"),
        "mlp.norm": at("{p}layers.{i}.ffn_norm"),
        "mlp.gate": at("{p}layers.{i}.feed_forward.w1"),
        "mlp.up": at("{p}layers.{i}.feed_forward.w3"),
        "mlp.down": at("{p}layers.{i}.feed_forward.w2"),
    },
    prefixes=PREFIXES,
    ignore=IGNORED,
)
GGUF_WEIGHTS = WEIGHTS


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json, whose older files say `block_ff_dim`, `tie_embedding` and `full_attn_idxs`."""
    older = {"intermediate_size": config.get("block_ff_dim"), "tie_word_embeddings": config.get("tie_embedding")}
    read = ConfigReader({**config, **{key: value for key, value in older.items() if value is not None}})
    sizes = read_sizes(read)
    norm = NormSpec("rms", read.number("norm_eps", 1e-5))
    rope = read_rope(read, sizes.head_dim, theta=1e6)
    attention = AttentionSpec(sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim**-0.5, rope, qk_norm=norm)
    taps = read.size("conv_L_cache", 3, most=16)
    conv = ShortConvSpec(ConvSpec(sizes.hidden, taps, gated=True), bias=read.flag("conv_bias", False))
    mlp = DenseMlpSpec(_width(read), "silu")
    layer_of = {"full_attention": sequential(attention, mlp, norm), "conv": sequential(conv, mlp, norm)}
    kinds = read.texts("layer_types")
    if kinds is None:
        attending = read.indices("full_attn_idxs")
        there = range(sizes.layers) if attending is None else attending
        kinds = tuple("full_attention" if i in there else "conv" for i in range(sizes.layers))
    if len(kinds) < sizes.layers:
        raise CheckpointError(f"config: layer_types has {len(kinds)} entries for {sizes.layers} layers")
    unknown = set(kinds) - set(layer_of)
    if unknown:
        raise UnsupportedError(f"config: layer_types has {', '.join(sorted(unknown))}")
    layers = tuple(layer_of[kind] for kind in kinds[: sizes.layers])
    return decoder(read, layers, norm, positions=128000, tied=True)


def _width(read: ConfigReader) -> int:
    """Of the MLP: two thirds of what the file says, times a factor, rounded up, unless it says otherwise."""
    width = read.size("intermediate_size", 12288)
    if not read.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(read.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = read.size("block_multiple_of", 256)
    return -(-width // multiple) * multiple


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Not supported yet."""
    raise UnsupportedError("GGUF files of LFM2 are not supported")
