"""MPNet: BERT's shape whose attention also knows by learned numbers how far apart two tokens are.

Source: Song et al. 2020, arXiv:2004.09297; transformers' MPNetConfig and modeling code; the weight names of
sentence-transformers/all-mpnet-base-v2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from octavo.model.families import bert
from octavo.model.families.encoder import GGUF_ENCODER_NAMES, IGNORED, architecture_of, bert_like, classifier
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.spec.decoder import AttentionSpec, DecoderSpec, DenseSpec, DistanceSpec

_PADDING = 1  # the padding token's id; positions begin behind it
_REACH = 128  # farther keys are all alike; the modeling code's own number
ARCHITECTURES = tuple(
    f"MPNet{end}" for end in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embeddings.word_embeddings"),
        "positions": at("{p}embeddings.position_embeddings", first_row=_PADDING + 1),
        "embed_norm": at("{p}embeddings.LayerNorm"),
        "pooler.dense": at("classifier.dense"),
        "pooler.out": at("classifier.out_proj", "classifier"),
    },
    layer={
        "mixer.q": at("{p}encoder.layer.{i}.attention.attn.q"),
        "mixer.k": at("{p}encoder.layer.{i}.attention.attn.k"),
        "mixer.v": at("{p}encoder.layer.{i}.attention.attn.v"),
        "mixer.out": at("{p}encoder.layer.{i}.attention.attn.o"),
        "mixer.distances": at("{p}encoder.relative_attention_bias.weight", flat=True),  # one for all layers
        "mixer.after_norm": at("{p}encoder.layer.{i}.attention.LayerNorm"),
        **{name: source for name, source in bert.LAYER_NAMES.items() if name.startswith("mlp.")},
    },
    prefixes=("", "mpnet."),
    ignore=IGNORED,
)
GGUF_WEIGHTS = GGUF_ENCODER_NAMES
read_gguf_config = bert.read_gguf_config


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The encoder of a config.json."""
    read = ConfigReader(config)
    read.refuse("pad_token_id", _PADDING)
    plain = bert_like({"vocab_size": 30527, **config}, dropped=_PADDING + 1, types=1)
    buckets = read.size("relative_attention_num_buckets", 32, most=1024)
    block, mlp = plain.layers[0].blocks
    attention = cast(AttentionSpec, block.branches[0].body)
    leaning = replace(attention, distances=DistanceSpec(buckets, _REACH))
    layer = replace(plain.layers[0], blocks=(replace(block, branches=(replace(block.branches[0], body=leaning),)), mlp))
    embedding = replace(plain.embedding, token_types=None)
    return replace(plain, layers=(layer,) * len(plain.layers), embedding=embedding)


def read_head(config: Mapping[str, Any], spec: DecoderSpec, labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier."""
    return classifier(spec, labels, tokens="TokenClass" in architecture_of(config), tanh=True)
