"""Granite, dense: Llama with four multipliers, of the embedding, the scores, each branch and the logits.

Source: transformers' GraniteConfig and modeling code, whose weight names are Llama's; for GGUF files, how llama.cpp's
granite architecture reads its keys (a multiplier of 0 means none).
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families import llama
from octavo.model.families.common import decoder, gguf_config, read_sizes, with_head
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, BlockSpec, BranchSpec, DecoderSpec, DenseMlpSpec, LayerSpec, NormSpec

ARCHITECTURES = ("GraniteForCausalLM",)
GGUF_ARCHITECTURES = ("granite",)

WEIGHTS = llama.WEIGHTS
GGUF_WEIGHTS = llama.GGUF_WEIGHTS  # rotary pairs side by side, too


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. A missing multiplier is 1, that of the scores as well: not head_dim^-1/2."""
    read = ConfigReader(config)
    read.refuse("position_embedding_type", "rope")
    sizes = read_sizes(read)
    bias = read.flag("attention_bias", False)
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=read.number("attention_multiplier", 1.0),
        rope=read_rope(read, sizes.head_dim),
        qkv_bias=bias,
        out_bias=bias,
    )
    mlp = DenseMlpSpec(
        read.size("intermediate_size"), read.activation("hidden_act", "silu"), bias=read.flag("mlp_bias", False)
    )
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-6))
    share = read.number("residual_multiplier", 1.0)
    layer = LayerSpec(tuple(BlockSpec((BranchSpec(body, norm, scale=share),)) for body in (attention, mlp)))
    embed_scale = read.number("embedding_multiplier", 1.0)
    spec = decoder(read, (layer,) * sizes.layers, norm, positions=2048, tied=False, embed_scale=embed_scale)
    return with_head(spec, scale=1 / read.number("logits_scaling", 1.0))


# config.json key -> GGUF key after the architecture's name. `logit_scale` divides, whatever its name.
_GGUF_MULTIPLIERS = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json. Here a missing multiplier of the scores does mean head_dim^-1/2."""
    config = gguf_config(metadata, tensors)
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    if metadata.get("granite.rope.scaling.finetuned") is False:  # this architecture's sign for no rope
        config["position_embedding_type"] = "nope"
    config["attention_multiplier"] = read_sizes(ConfigReader(config)).head_dim ** -0.5
    for key, gguf_key in _GGUF_MULTIPLIERS.items():
        value = metadata.get(f"granite.{gguf_key}")
        if value not in (None, 0):
            config[key] = value
    return config
