"""NomicBERT: BERT's shape with rotary positions, gated MLPs and no biases but the norms'.

Source: Nussbaum et al. 2024, arXiv:2402.01613; transformers' NomicBertConfig and modeling code; the configuration and
weight names of nomic-ai/nomic-embed-text-v1.5.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError
from octavo.model.families import bert
from octavo.model.families.common import MAX_LAYERS
from octavo.model.families.encoder import GGUF_ENCODER_NAMES, IGNORED, gguf_encoder_config
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import (
    AttentionSpec,
    BlockSpec,
    BranchSpec,
    DecoderSpec,
    DenseMlpSpec,
    DenseSpec,
    EmbeddingSpec,
    LayerSpec,
    NormSpec,
)

ARCHITECTURES = tuple(
    f"NomicBert{end}" for end in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
)
GGUF_ARCHITECTURES = ("nomic-bert",)

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.word_embeddings"),
        "token_types": at("{p}embeddings.token_type_embeddings"),
        "embed_norm": at("{p}emb_ln"),
        "pooler.dense": at("{p}pooler.dense"),
        "pooler.out": at("classifier"),
    },
    layer={
        "mixer.qkv": at("{p}encoder.layers.{i}.attn.Wqkv"),
        "mixer.out": at("{p}encoder.layers.{i}.attn.out_proj"),
        "mixer.after_norm": at("{p}encoder.layers.{i}.norm1"),
        "mlp.gate": at("{p}encoder.layers.{i}.mlp.fc12"),
        "mlp.up": at("{p}encoder.layers.{i}.mlp.fc11"),
        "mlp.down": at("{p}encoder.layers.{i}.mlp.fc2"),
        "mlp.after_norm": at("{p}encoder.layers.{i}.norm2"),
    },
    prefixes=("", "bert.", "nomic_bert."),
    ignore=IGNORED,
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES
# The keys of the first checkpoints, and today's.
_OLDER_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_NOT_THERE: tuple[tuple[str, object], ...] = (
    ("prenorm", False),
    ("qkv_proj_bias", False),
    ("mlp_fc1_bias", False),
    ("mlp_fc2_bias", False),
    ("rotary_emb_fraction", 1.0),
    ("rotary_emb_interleaved", False),
    ("rotary_scaling_factor", None),
    ("moe_every_n_layers", 0),
    ("activation_function", "swiglu"),
)


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    given = ConfigReader(config)
    for key, neutral in _NOT_THERE:
        given.refuse(key, neutral)
    older = {today: config[key] for key, today in _OLDER_KEYS.items() if key in config and today not in config}
    read = ConfigReader({**config, **older})
    width, heads = read.size("hidden_size", 768), read.size("num_attention_heads", 12)
    if width % heads:
        raise CheckpointError(f"config: a hidden size of {width} is no multiple of {heads} heads")
    head_dim = read.size("head_dim", width // heads)
    norm = NormSpec("layer", read.number("layer_norm_eps", 1e-12), bias=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, read_rope(read, head_dim, 1000.0), causal=False)
    mlp = DenseMlpSpec(read.size("intermediate_size", 3072), read.activation("hidden_act", "silu"))
    layer = LayerSpec(tuple(BlockSpec((BranchSpec(body),), after_norm=norm) for body in (attention, mlp)))
    return DecoderSpec(
        hidden=width,
        layers=(layer,) * read.size("num_hidden_layers", 12, most=MAX_LAYERS),
        embedding=EmbeddingSpec(
            read.size("vocab_size", 30528), width, norm=norm, token_types=read.whole("type_vocab_size", 2) or None
        ),
        final_norm=None,
        head=None,
        max_positions=read.size("max_position_embeddings", 2048),
    )


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier."""
    return bert.read_head(config, spec, labels)


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json."""
    return gguf_encoder_config(metadata, tensors, "NomicBertModel")
