"""Llama 1 to 3.x and what shares its shape: SmolLM, Yi, Vicuna; and Mistral, whose layers may all have a window.

Source: transformers' LlamaConfig and MistralConfig, and the weight names of their checkpoints.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families.common import GGUF_NAMES, LLAMA_NAMES, decoder, gguf_config, read_sizes, with_layer
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, DecoderSpec, DenseMlpSpec, NormSpec, sequential

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)

WEIGHTS = LLAMA_NAMES
# This GGUF architecture stores rotary pairs side by side.
GGUF_WEIGHTS = with_layer(
    GGUF_NAMES,
    {"mixer.q": at("blk.{i}.attn_q", unpair=True), "mixer.k": at("blk.{i}.attn_k", unpair=True)},
)


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. Mistral's default window is 4096; null means none."""
    read = ConfigReader(config)
    named = read.texts("architectures") or ()
    mistral = "MistralForCausalLM" in named or read.text("model_type", "llama") == "mistral"
    sizes = read_sizes(read)
    kv_heads = read.size("num_key_value_heads", 8) if mistral else sizes.kv_heads
    bias = read.flag("attention_bias", False)
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=read_rope(read, sizes.head_dim),
        window=read.optional_size("sliding_window", 4096) if mistral else None,
        qkv_bias=bias,
        out_bias=bias,
    )
    mlp = DenseMlpSpec(
        read.size("intermediate_size"), read.activation("hidden_act", "silu"), bias=read.flag("mlp_bias", False)
    )
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-6))
    layers = (sequential(attention, mlp, norm),) * sizes.layers
    return decoder(read, layers, norm, positions=131072 if mistral else 2048, tied=False)


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json. A window in the file (Mistral 7B v0.1) makes it a Mistral."""
    config = gguf_config(metadata, tensors)
    config["model_type"] = "mistral" if "sliding_window" in config else "llama"
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    return config
