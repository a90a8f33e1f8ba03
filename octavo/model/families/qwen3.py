"""Qwen3, dense: grouped-query attention with an RMSNorm of each query and key head.

Source: transformers' Qwen3Config, and the weight names of Qwen/Qwen3-0.6B ... 32B.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families.common import GGUF_NAMES, LLAMA_NAMES, decoder, gguf_config, read_sizes
from octavo.model.families.qwen2 import windows
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, DecoderSpec, DenseMlpSpec, NormSpec, sequential

ARCHITECTURES = ("Qwen3ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen3",)

WEIGHTS = LLAMA_NAMES
GGUF_WEIGHTS = GGUF_NAMES


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. The class's default head is 128 wide, whatever hidden / heads is."""
    read = ConfigReader(config)
    sizes = read_sizes(read, head_dim=128)
    rope = read_rope(read, sizes.head_dim)
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-6))
    mlp = DenseMlpSpec(read.size("intermediate_size"), read.activation("hidden_act", "silu"))
    bias = read.flag("attention_bias", False)
    window_of = windows(read, sizes.layers)
    layer_of = {
        window: sequential(
            AttentionSpec(
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                scale=sizes.head_dim**-0.5,
                rope=rope,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm=norm,
            ),
            mlp,
            norm,
        )
        for window in set(window_of)
    }
    return decoder(read, tuple(layer_of[window] for window in window_of), norm, positions=32768, tied=False)


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json; such files never enable the window."""
    return gguf_config(metadata, tensors)
