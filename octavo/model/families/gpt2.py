"""GPT-2: LayerNorm, biases, tanh-gelu, learned positions; q, k and v in one matrix, stored [in, out].

Source: transformers' GPT2Config and modeling code; the weight names of openai-community/gpt2 ... gpt2-xl.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError
from octavo.model.families.common import GGUF_NAMES, MAX_LAYERS, gguf_config, with_layer
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import (
    AttentionSpec,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    NormSpec,
    sequential,
)

ARCHITECTURES = ("GPT2LMHeadModel",)
GGUF_ARCHITECTURES = ("gpt2",)

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}wte"),
        "positions": at("{p}wpe"),
        "final_norm": at("{p}ln_f"),
        "head": at("lm_head"),
    },
    layer={
        "mixer.norm": at("{p}h.{i}.ln_1"),
        "mixer.qkv": at("{p}h.{i}.attn.c_attn", transpose=True),
        "mixer.out": at("{p}h.{i}.attn.c_proj", transpose=True),
        "mlp.norm": at("{p}h.{i}.ln_2"),
        "mlp.up": at("{p}h.{i}.mlp.c_fc", transpose=True),
        "mlp.down": at("{p}h.{i}.mlp.c_proj", transpose=True),
    },
    prefixes=("transformer.", ""),
    ignore=("*.attn.bias", "*.attn.masked_bias"),  # causal masks
)
GGUF_WEIGHTS = with_layer(GGUF_NAMES, {"mixer.qkv": at("blk.{i}.attn_qkv")})


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json."""
    read = ConfigReader(config)
    hidden, heads, layers = read.size("n_embd"), read.size("n_head"), read.size("n_layer", most=MAX_LAYERS)
    if hidden % heads:
        raise CheckpointError(f"config: n_embd {hidden} is no multiple of n_head {heads}")
    read.refuse("add_cross_attention")
    positions = read.size("n_positions", 1024)
    norm = NormSpec("layer", read.number("layer_norm_epsilon", 1e-5), bias=True)
    mlp = DenseMlpSpec(
        read.size("n_inner", 4 * hidden), read.activation("activation_function", "gelu_new"), gated=False, bias=True
    )
    scale = (hidden // heads) ** -0.5 if read.flag("scale_attn_weights", True) else 1.0
    by_layer = read.flag("scale_attn_by_inverse_layer_idx", False)

    def attention(layer: int) -> AttentionSpec:
        own_scale = scale / (layer + 1) if by_layer else scale
        return AttentionSpec(heads, heads, hidden // heads, own_scale, rope=None, qkv_bias=True, out_bias=True)

    first = sequential(attention(0), mlp, norm)
    rest = [sequential(attention(i), mlp, norm) if by_layer else first for i in range(1, layers)]
    return DecoderSpec(
        hidden=hidden,
        layers=(first, *rest),
        embedding=EmbeddingSpec(read.size("vocab_size"), hidden, positions=positions),
        final_norm=norm,
        head=HeadSpec(tied=read.flag("tie_word_embeddings", True)),
        max_positions=positions,
    )


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json."""
    config = gguf_config(metadata, tensors)
    names = {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
        "n_inner": "intermediate_size",
    }
    return config | {ours: config[key] for ours, key in names.items() if key in config}
