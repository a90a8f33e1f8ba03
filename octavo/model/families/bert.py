"""BERT and what has its shape: embedding, cross-encoder and classifier models over learned positions and token types.

Source: Devlin et al. 2019, arXiv:1810.04805; transformers' BertConfig and modeling code; the weight names of
google-bert/bert-base-uncased and sentence-transformers/all-MiniLM-L6-v2.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families.encoder import (
    GGUF_ENCODER_NAMES,
    IGNORED,
    architecture_of,
    bert_like,
    classifier,
    gguf_encoder_config,
)
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import DecoderSpec, DenseSpec

ARCHITECTURES = (
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "HF_ColBERT",
)
GGUF_ARCHITECTURES = ("bert",)  # RoBERTa and DistilBERT, too: their differences are gone from such files

LAYER_NAMES = {
    "mixer.q": at("{p}encoder.layer.{i}.attention.self.query"),
    "mixer.k": at("{p}encoder.layer.{i}.attention.self.key"),
    "mixer.v": at("{p}encoder.layer.{i}.attention.self.value"),
    "mixer.out": at("{p}encoder.layer.{i}.attention.output.dense"),
    "mixer.after_norm": at("{p}encoder.layer.{i}.attention.output.LayerNorm"),
    "mlp.up": at("{p}encoder.layer.{i}.intermediate.dense"),
    "mlp.down": at("{p}encoder.layer.{i}.output.dense"),
    "mlp.after_norm": at("{p}encoder.layer.{i}.output.LayerNorm"),
}
WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.word_embeddings"),
        "positions": at("{p}embeddings.position_embeddings"),
        "token_types": at("{p}embeddings.token_type_embeddings"),
        "embed_norm": at("{p}embeddings.LayerNorm"),
        "pooler.dense": at("{p}pooler.dense"),
        "pooler.out": at("classifier"),
    },
    layer=LAYER_NAMES,
    prefixes=("", "bert."),
    ignore=IGNORED,
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    return bert_like(config, dropped=0, types=2)


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier: the pooler, then the classes."""
    return classifier(spec, labels, tokens="TokenClass" in architecture_of(config), tanh=True)


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """GGUF metadata in the words of config.json."""
    return gguf_encoder_config(metadata, tensors, "BertModel")
