"""What Llama-like families share: sizes out of config.json, weight names, and GGUF metadata as a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import Source, WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.quantization.gguf_blocks import dequantize
from octavo.spec.decoder import DecoderSpec, EmbeddingSpec, HeadSpec, LayerSpec, NormSpec

MAX_LAYERS = 4096  # far above any model: keeps a lying file from asking for memory


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every family has under its own keys."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def read_sizes(config: ConfigReader, head_dim: int | None = None) -> Sizes:
    """The usual keys. `head_dim`: the family's default when it is not hidden / heads.

    Raises:
        CheckpointError: heads do not divide evenly.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    if not config.has("head_dim") and head_dim is None and hidden % heads:
        raise CheckpointError(f"config: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    if heads % kv_heads:
        raise CheckpointError(f"config: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    width = config.size("head_dim", head_dim or max(hidden // heads, 1))
    return Sizes(hidden, config.size("num_hidden_layers", most=MAX_LAYERS), heads, kv_heads, width)


def layer_kinds(config: ConfigReader, layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers have a window: `layer_types` when the file has it, else the family's own pattern."""
    types = config.texts("layer_types")
    if types is None:
        return default
    if len(types) < layers:
        raise CheckpointError(f"config: layer_types has {len(types)} entries for {layers} layers")
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedError(f"config: layer_types has {', '.join(sorted(unknown))}")
    return tuple(kind == "sliding_attention" for kind in types[:layers])


def decoder(
    config: ConfigReader,
    layers: tuple[LayerSpec, ...],
    norm: NormSpec,
    *,
    positions: int,
    tied: bool,
    embed_scale: float = 1.0,
) -> DecoderSpec:
    """A decoder with plain embedding, final norm and head. `positions` and `tied` are the family's defaults."""
    hidden = config.size("hidden_size")
    return DecoderSpec(
        hidden=hidden,
        layers=layers,
        embedding=EmbeddingSpec(config.size("vocab_size"), hidden, embed_scale),
        final_norm=norm,
        head=HeadSpec(tied=config.flag("tie_word_embeddings", tied)),
        max_positions=config.size("max_position_embeddings", positions),
    )


def with_head(spec: DecoderSpec, **changes: Any) -> DecoderSpec:
    """The decoder with fields of its head changed."""
    assert spec.head is not None, "decoders have a head"
    return replace(spec, head=replace(spec.head, **changes))


# --- weight names ----------------------------------------------------------------------------------------------------

# Text models, and text parts of multimodal files of several ages.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
IGNORED = ("*rotary_emb.inv_freq",)

LLAMA_NAMES = WeightTable(
    model={
        "embed": at("{p}embed_tokens"),
        "final_norm": at("{p}norm"),
        "head": at("lm_head", "language_model.lm_head"),
    },
    layer={
        "mixer.norm": at("{p}layers.{i}.input_layernorm"),
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj"),
        "mixer.k": at("{p}layers.{i}.self_attn.k_proj"),
        "mixer.v": at("{p}layers.{i}.self_attn.v_proj"),
        "mixer.out": at("{p}layers.{i}.self_attn.o_proj"),
        "mixer.q_norm": at("{p}layers.{i}.self_attn.q_norm"),
        "mixer.k_norm": at("{p}layers.{i}.self_attn.k_norm"),
        "mlp.norm": at("{p}layers.{i}.post_attention_layernorm"),
        "mlp.gate": at("{p}layers.{i}.mlp.gate_proj"),
        "mlp.up": at("{p}layers.{i}.mlp.up_proj"),
        "mlp.down": at("{p}layers.{i}.mlp.down_proj"),
    },
    prefixes=PREFIXES,
    ignore=IGNORED,
)

GGUF_NAMES = WeightTable(
    model={
        "embed": at("token_embd"),
        "positions": at("position_embd"),
        "final_norm": at("output_norm"),
        "head": at("output"),
    },
    layer={
        "mixer.norm": at("blk.{i}.attn_norm"),
        "mixer.q": at("blk.{i}.attn_q"),
        "mixer.k": at("blk.{i}.attn_k"),
        "mixer.v": at("blk.{i}.attn_v"),
        "mixer.out": at("blk.{i}.attn_output"),
        "mixer.q_norm": at("blk.{i}.attn_q_norm"),
        "mixer.k_norm": at("blk.{i}.attn_k_norm"),
        "mlp.norm": at("blk.{i}.ffn_norm"),
        "mlp.gate": at("blk.{i}.ffn_gate"),
        "mlp.up": at("blk.{i}.ffn_up"),
        "mlp.down": at("blk.{i}.ffn_down"),
    },
    ignore=("rope_freqs.weight",),  # part of the spec, see gguf_config
)


def with_layer(table: WeightTable, changes: Mapping[str, Source]) -> WeightTable:
    """The table with some of a layer's sources replaced or added."""
    return replace(table, layer={**table.layer, **changes})


# --- GGUF metadata ---------------------------------------------------------------------------------------------------

# config.json key -> GGUF key after the architecture's name.
_GGUF_KEYS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "rotary_dim": "rope.dimension_count",
    "sliding_window": "attention.sliding_window",
}


def gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The metadata of a decoder in the words of config.json. Keys the file omits stay absent.

    Raises:
        UnsupportedError: layers of different sizes, experts, or unequal key and value widths.
        CheckpointError: no token embedding.
    """
    arch = metadata["general.architecture"]
    config: dict[str, Any] = {"model_type": arch, "tie_word_embeddings": "output.weight" not in tensors}
    for key, gguf_key in _GGUF_KEYS.items():
        value = metadata.get(f"{arch}.{gguf_key}")
        if isinstance(value, list):
            value = _same_in_all_layers(f"{arch}.{gguf_key}", value)  # pyright: ignore[reportUnknownArgumentType]
        if value is not None and (key, value) != ("sliding_window", 0):  # 0 is none
            config[key] = value
    if metadata.get(f"{arch}.expert_count"):
        raise UnsupportedError(f"{arch} with experts is not supported")
    value_width = metadata.get(f"{arch}.attention.value_length")
    if value_width is not None and value_width != config.get("head_dim", value_width):
        raise UnsupportedError(f"{arch}: keys of {config['head_dim']} and values of {value_width} elements")
    if "token_embd.weight" not in tensors or len(tensors["token_embd.weight"].shape) != 2:
        raise CheckpointError("tensor token_embd.weight is missing or is no matrix")
    config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    scaling = _gguf_scaling(arch, metadata, tensors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _same_in_all_layers(key: str, values: list[Any]) -> Any:
    if not values or any(value != values[0] for value in values):
        raise UnsupportedError(f"{key} differs between layers")
    return values[0]


def _gguf_scaling(arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any] | None:
    """Rope scaling: a table of factors in a tensor (Llama 3.1), or metadata keys."""
    factors = tensors.get("rope_freqs.weight")
    if factors is not None:
        return {"rope_type": "table", "factors": dequantize(factors.format, factors.data, factors.shape).tolist()}
    kind = metadata.get(f"{arch}.rope.scaling.type")
    if kind is None and f"{arch}.rope.scale_linear" in metadata:  # files of 2023
        return {"rope_type": "linear", "factor": metadata[f"{arch}.rope.scale_linear"]}
    if kind in (None, "none"):
        return None
    keys = {
        "factor": "factor",
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    scaling = {ours: metadata.get(f"{arch}.rope.scaling.{theirs}") for ours, theirs in keys.items()}
    return {"rope_type": kind} | {key: value for key, value in scaling.items() if value is not None}
