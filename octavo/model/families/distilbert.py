"""DistilBERT: half of BERT's layers, no token types.

Source: Sanh et al. 2019, arXiv:1910.01108; transformers' DistilBertConfig and modeling code; the weight names of
distilbert/distilbert-base-uncased-finetuned-sst-2-english.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families import bert
from octavo.model.families.common import MAX_LAYERS
from octavo.model.families.encoder import GGUF_ENCODER_NAMES, IGNORED, architecture_of, classifier, post_norm_encoder
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.spec.decoder import DecoderSpec, DenseMlpSpec, DenseSpec, EmbeddingSpec, NormSpec

ARCHITECTURES = (
    "DistilBertModel",
    "DistilBertForMaskedLM",
    "DistilBertForSequenceClassification",
    "DistilBertForTokenClassification",
)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.word_embeddings"),
        "positions": at("{p}embeddings.position_embeddings"),
        "embed_norm": at("{p}embeddings.LayerNorm"),
        "pooler.dense": at("pre_classifier"),
        "pooler.out": at("classifier"),
    },
    layer={
        "mixer.q": at("{p}transformer.layer.{i}.attention.q_lin"),
        "mixer.k": at("{p}transformer.layer.{i}.attention.k_lin"),
        "mixer.v": at("{p}transformer.layer.{i}.attention.v_lin"),
        "mixer.out": at("{p}transformer.layer.{i}.attention.out_lin"),
        "mixer.after_norm": at("{p}transformer.layer.{i}.sa_layer_norm"),
        "mlp.up": at("{p}transformer.layer.{i}.ffn.lin1"),
        "mlp.down": at("{p}transformer.layer.{i}.ffn.lin2"),
        "mlp.after_norm": at("{p}transformer.layer.{i}.output_layer_norm"),
    },
    prefixes=("", "distilbert."),
    ignore=(*IGNORED, "vocab_*"),
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES
read_gguf_config = bert.read_gguf_config


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    read = ConfigReader(config)
    positions = read.size("max_position_embeddings", 512)
    embedding = EmbeddingSpec(
        read.size("vocab_size", 30522),
        read.size("dim", 768),
        positions=positions,
        norm=NormSpec("layer", 1e-12, bias=True),
    )
    mlp = DenseMlpSpec(read.size("hidden_dim", 3072), read.activation("activation", "gelu"), gated=False, bias=True)
    layers = read.size("n_layers", 6, most=MAX_LAYERS)
    return post_norm_encoder(read, mlp, read.size("n_heads", 12), layers, embedding)


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier."""
    return classifier(spec, labels, tokens="TokenClass" in architecture_of(config), activation="relu")
