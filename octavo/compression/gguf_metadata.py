"""What a GGUF file says of a model's shape, in the words of each architecture, from a DecoderSpec and its config.json.

Keys are those of ggml's docs/gguf.md. Whether they say enough is not believed but tried: the file's header is read back
and must give the same decoder.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from octavo.errors import UnsupportedError
from octavo.model.checkpoint.gguf_writer import Scalar
from octavo.model.rope import inverse_frequencies
from octavo.quantization.integers import Floats
from octavo.spec.decoder import (
    AttentionSpec,
    Body,
    DecoderSpec,
    DenseMlpSpec,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    TableScaling,
    YarnScaling,
)

Metadata = dict[str, Scalar | list[Any]]

_TOLERANCE = 1e-6  # relative; files hold float32
_MULTIPLIERS = {  # of Granite
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def shape_metadata(arch: str, spec: DecoderSpec, config: Mapping[str, Any]) -> Metadata:
    """Sizes, norms, positions and multipliers.

    Raises:
        UnsupportedError: a decoder of other parts than attention and a dense MLP.
    """
    bodies = [branch.body for layer in spec.layers for block in layer.blocks for branch in block.branches]
    attention = _first(bodies, AttentionSpec)
    mlp = _first(bodies, DenseMlpSpec)
    metadata: Metadata = {
        f"{arch}.context_length": spec.max_positions,
        f"{arch}.embedding_length": spec.hidden,
        f"{arch}.block_count": len(spec.layers),
        f"{arch}.feed_forward_length": mlp.width,
        f"{arch}.attention.head_count": attention.heads,
        f"{arch}.attention.head_count_kv": attention.kv_heads,
        f"{arch}.attention.key_length": attention.head_dim,
        f"{arch}.attention.value_length": attention.head_dim,
        f"{arch}.vocab_size": spec.vocab,
    }
    norm = spec.final_norm or next(block.branches[0].norm for block in spec.layers[0].blocks)
    if norm is not None:
        kind = "layer_norm_rms_epsilon" if norm.kind == "rms" else "layer_norm_epsilon"
        metadata[f"{arch}.attention.{kind}"] = float(norm.eps)
    windows = [body.window for body in bodies if isinstance(body, AttentionSpec)]
    window = next((each for each in windows if each is not None), None)
    if window is not None:
        metadata[f"{arch}.attention.sliding_window"] = window
    # Where kinds of layers have ropes of their own, the one that sees everything gives the main keys.
    full = next((b for b in bodies if isinstance(b, AttentionSpec) and b.window is None), attention)
    metadata |= _rope(arch, full.rope)
    local = next((b.rope for b in bodies if isinstance(b, AttentionSpec) and b.window is not None), None)
    if local is not None and local != full.rope:
        metadata[f"{arch}.rope.freq_base_swa"] = float(local.theta)
    if arch == "granite":
        for key, name in _MULTIPLIERS.items():
            if config.get(key) is not None:
                metadata[f"{arch}.{name}"] = float(config[key])
    return metadata


def rope_factors(spec: DecoderSpec) -> Floats | None:
    """What each frequency is divided by, [width / 2], where only a table can say it."""
    for rope in spec.ropes:
        if isinstance(rope.scaling, Llama3Scaling | TableScaling):
            plain = RopeSpec(rope.theta, rope.width)
            return (inverse_frequencies(plain)[0] / inverse_frequencies(rope)[0]).astype(np.float32)
    return None


def same_decoder(left: object, right: object) -> bool:
    """Whether two specs mean the same: numbers as near as float32 holds them, positions by their frequencies."""
    if isinstance(left, RopeSpec) and isinstance(right, RopeSpec):
        (first, factor), (second, other) = inverse_frequencies(left), inverse_frequencies(right)
        near = len(first) == len(second) and np.allclose(first, second, rtol=_TOLERANCE, atol=0)
        return bool(near) and abs(factor - other) <= _TOLERANCE * factor
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= _TOLERANCE * max(abs(left), abs(right))
    if isinstance(left, tuple) and isinstance(right, tuple):
        one, other_one = cast(tuple[object, ...], left), cast(tuple[object, ...], right)
        return len(one) == len(other_one) and all(map(same_decoder, one, other_one))
    if is_dataclass(left) and type(left) is type(right):
        return all(same_decoder(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    return left == right


def _first(bodies: list[Body], kind: type[Any]) -> Any:
    for body in bodies:
        if isinstance(body, kind):
            return body
    raise UnsupportedError(f"a decoder without {kind.__name__} has no GGUF form that Octavo writes")


def _rope(arch: str, rope: RopeSpec | None) -> Metadata:
    if rope is None:
        return {}
    metadata: Metadata = {f"{arch}.rope.freq_base": float(rope.theta), f"{arch}.rope.dimension_count": rope.width}
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        metadata |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": float(scaling.factor)}
    if isinstance(scaling, YarnScaling):
        metadata |= {
            f"{arch}.rope.scaling.type": "yarn",
            f"{arch}.rope.scaling.factor": float(scaling.factor),
            f"{arch}.rope.scaling.original_context_length": scaling.original_max_positions,
            f"{arch}.rope.scaling.yarn_beta_fast": float(scaling.beta_fast),
            f"{arch}.rope.scaling.yarn_beta_slow": float(scaling.beta_slow),
        }
    return metadata
