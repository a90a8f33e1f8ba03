"""Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v; windows only where the file enables them.

Source: transformers' Qwen2Config, and the weight names of Qwen/Qwen2.5-0.5B ... 72B.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families.common import GGUF_NAMES, LLAMA_NAMES, decoder, gguf_config, layer_kinds, read_sizes
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import AttentionSpec, DecoderSpec, DenseMlpSpec, NormSpec, sequential

ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen2",)

WEIGHTS = LLAMA_NAMES
GGUF_WEIGHTS = GGUF_NAMES


def windows(read: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: layers from `max_window_layers` on, and only when `use_sliding_window`."""
    window = read.optional_size("sliding_window", 4096) if read.flag("use_sliding_window", False) else None
    first = read.size("max_window_layers", 28)
    slides = layer_kinds(read, layers, tuple(window is not None and i >= first for i in range(layers)))
    return tuple(window if slides[i] else None for i in range(layers))


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json."""
    read = ConfigReader(config)
    sizes = read_sizes(read)
    rope = read_rope(read, sizes.head_dim)
    norm = NormSpec("rms", read.number("rms_norm_eps", 1e-6))
    mlp = DenseMlpSpec(read.size("intermediate_size"), read.activation("hidden_act", "silu"))
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
                qkv_bias=True,
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
