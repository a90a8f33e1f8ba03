"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that are counted from the padding token's id on.

Source: Liu et al. 2019, arXiv:1907.11692; Conneau et al. 2020, arXiv:1911.02116; transformers' RobertaConfig and
modeling code; the weight names of FacebookAI/roberta-base and BAAI/bge-reranker-base.
"""

from collections.abc import Mapping
from typing import Any

from octavo.model.families import bert
from octavo.model.families.encoder import GGUF_ENCODER_NAMES, IGNORED, architecture_of, bert_like, classifier
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.spec.decoder import DecoderSpec, DenseSpec

_PADDING = 1  # the padding token's id; positions begin behind it
ARCHITECTURES = tuple(
    f"{name}{end}"
    for name in ("Roberta", "XLMRoberta", "Camembert")
    for end in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.word_embeddings"),
        "positions": at("{p}embeddings.position_embeddings", first_row=_PADDING + 1),
        "token_types": at("{p}embeddings.token_type_embeddings"),
        "embed_norm": at("{p}embeddings.LayerNorm"),
        "pooler.dense": at("classifier.dense"),
        "pooler.out": at("classifier.out_proj", "classifier"),
    },
    layer=bert.LAYER_NAMES,
    prefixes=("", "roberta."),
    ignore=IGNORED,
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES
read_gguf_config = bert.read_gguf_config


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    ConfigReader(config).refuse("pad_token_id", _PADDING)
    return bert_like({"layer_norm_eps": 1e-12, "type_vocab_size": 2, **config}, dropped=_PADDING + 1, types=1)


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier."""
    return classifier(spec, labels, tokens="TokenClass" in architecture_of(config), tanh=True)
