"""ModernBERT: an encoder of today's parts: rope, gated MLPs, norms before the branches, windows on most layers.

Source: Warner et al. 2024, arXiv:2412.13663; transformers' ModernBertConfig and modeling code; the weight names of
answerdotai/ModernBERT-base and Alibaba-NLP/gte-reranker-modernbert-base.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError
from octavo.model.families import bert
from octavo.model.families.common import MAX_LAYERS, layer_kinds
from octavo.model.families.encoder import GGUF_ENCODER_NAMES, IGNORED
from octavo.model.families.reader import ConfigReader
from octavo.model.families.rope import read_rope
from octavo.model.families.table import WeightTable, at
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

ARCHITECTURES = (
    "ModernBertModel",
    "ModernBertForMaskedLM",
    "ModernBertForSequenceClassification",
    "ModernBertForTokenClassification",
)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.tok_embeddings"),
        "embed_norm": at("{p}embeddings.norm"),
        "final_norm": at("{p}final_norm"),
        "pooler.dense": at("head.dense"),
        "pooler.dense_norm": at("head.norm"),
        "pooler.out": at("classifier"),
    },
    layer={
        "mixer.norm": at("{p}layers.{i}.attn_norm"),
        "mixer.qkv": at("{p}layers.{i}.attn.Wqkv"),
        "mixer.out": at("{p}layers.{i}.attn.Wo"),
        "mlp.norm": at("{p}layers.{i}.mlp_norm"),
        "mlp.gate_up": at("{p}layers.{i}.mlp.Wi"),
        "mlp.down": at("{p}layers.{i}.mlp.Wo"),
    },
    prefixes=("", "model."),
    ignore=(*IGNORED, "head.*", "decoder.*"),
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES
read_gguf_config = bert.read_gguf_config


def _norm(read: ConfigReader) -> NormSpec:
    return NormSpec("layer", read.number("norm_eps", 1e-5), bias=read.flag("norm_bias", False))


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    read = ConfigReader(config)
    width, heads = read.size("hidden_size", 768), read.size("num_attention_heads", 12)
    count = read.size("num_hidden_layers", 22, most=MAX_LAYERS)
    if width % heads:
        raise CheckpointError(f"config: hidden_size {width} is no multiple of num_attention_heads {heads}")
    every = read.size("global_attn_every_n_layers", 3)
    slides = layer_kinds(read, count, tuple(bool(layer % every) for layer in range(count)))
    norm = _norm(read)
    mlp = DenseMlpSpec(
        read.size("intermediate_size", 1152),
        read.activation("hidden_activation", "gelu"),
        bias=read.flag("mlp_bias", False),
    )
    kinds = {slides: _attention(read, width // heads, heads, slides) for slides in (False, True)}
    blocks = {slides: BlockSpec((BranchSpec(body, norm),)) for slides, body in kinds.items()}
    layers = {slides: LayerSpec((block, BlockSpec((BranchSpec(mlp, norm),)))) for slides, block in blocks.items()}
    # The embedding's norm stands in for the first layer's own.
    first = LayerSpec((BlockSpec((BranchSpec(kinds[slides[0]]),)), BlockSpec((BranchSpec(mlp, norm),))))
    return DecoderSpec(
        hidden=width,
        layers=(first, *(layers[slide] for slide in slides[1:])),
        embedding=EmbeddingSpec(read.size("vocab_size", 50368), width, norm=norm),
        final_norm=norm,
        head=None,
        max_positions=read.size("max_position_embeddings", 8192),
    )


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier, of texts and tokens alike."""
    read = ConfigReader(config)
    dense = DenseSpec(
        "dense",
        spec.hidden,
        bias=read.flag("classifier_bias", False),
        activation=read.activation("classifier_activation", "gelu"),
        norm=_norm(read),
    )
    return dense, DenseSpec("out", labels)


def _attention(read: ConfigReader, head_dim: int, heads: int, slides: bool) -> AttentionSpec:
    kind, key, theta = (
        ("sliding_attention", "local_rope_theta", 10_000.0)
        if slides
        else ("full_attention", "global_rope_theta", 160_000.0)
    )
    bias = read.flag("attention_bias", False)
    return AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(read, head_dim, theta, layer_type=kind, theta_key=key),
        window=read.size("local_attention", 128) // 2 + 1 if slides else None,  # the token itself counts
        qkv_bias=bias,
        out_bias=bias,
        causal=False,
    )
