"""What encoder families share: no head, attention both ways, and the heads of their classifiers."""

from collections.abc import Mapping
from typing import Any, cast

from octavo.errors import CheckpointError
from octavo.model.families.common import MAX_LAYERS
from octavo.model.families.reader import ConfigReader
from octavo.spec.decoder import (
    Activation,
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

# Of masks that older files store, and of heads that predict words or whether a sentence follows.
IGNORED = ("*position_ids", "*token_type_ids", "cls.*", "lm_head.*", "*pooler.dense.*")


def architecture_of(config: Mapping[str, Any]) -> str:
    """The first name in `architectures`."""
    names = config.get("architectures")
    listed = cast(list[object], names) if isinstance(names, list) else []
    return next((name for name in listed if isinstance(name, str)), "")


def refuse_variants(read: ConfigReader) -> None:
    """Refuse what BERT's configuration classes allow and no released encoder needs."""
    read.refuse("is_decoder")
    read.refuse("add_cross_attention")
    read.refuse("position_embedding_type", "absolute")


def post_norm_encoder(
    read: ConfigReader, mlp: DenseMlpSpec, heads: int, layers: int, embedding: EmbeddingSpec
) -> DecoderSpec:
    """BERT's shape (Devlin et al. 2019, arXiv:1810.04805): norms behind the residual, biases everywhere.

    `embedding` has the norm that all of them are like.

    Raises:
        CheckpointError: heads do not divide evenly.
    """
    width, norm = embedding.width, embedding.norm
    if width % heads:
        raise CheckpointError(f"config: a hidden size of {width} is no multiple of {heads} heads")
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        scale=(width // heads) ** -0.5,
        rope=None,
        qkv_bias=True,
        out_bias=True,
        causal=False,
    )
    layer = LayerSpec(tuple(BlockSpec((BranchSpec(body),), after_norm=norm) for body in (attention, mlp)))
    return DecoderSpec(
        hidden=width,
        layers=(layer,) * layers,
        embedding=embedding,
        final_norm=None,
        head=None,
        max_positions=embedding.positions or 1,
    )


def bert_like(config: Mapping[str, Any], *, dropped: int, types: int) -> DecoderSpec:
    """The encoder of a config.json with BERT's keys.

    Args:
        dropped: rows of the position table that no token has.
        types: the family's default number of token types.

    Raises:
        CheckpointError: there are no positions.
    """
    read = ConfigReader(config)
    refuse_variants(read)
    width = read.size("hidden_size", 768)
    read.refuse("embedding_size", width)
    positions = read.size("max_position_embeddings", 512) - dropped
    if positions < 1:
        raise CheckpointError(f"config: max_position_embeddings {positions + dropped} leaves no position")
    norm = NormSpec("layer", read.number("layer_norm_eps", 1e-12), bias=True)
    mlp = DenseMlpSpec(
        read.size("intermediate_size", 3072), read.activation("hidden_act", "gelu"), gated=False, bias=True
    )
    embedding = EmbeddingSpec(
        read.size("vocab_size", 30522),
        width,
        positions=positions,
        norm=norm,
        token_types=read.size("type_vocab_size", types),
    )
    layers = read.size("num_hidden_layers", 12, most=MAX_LAYERS)
    return post_norm_encoder(read, mlp, read.size("num_attention_heads", 12), layers, embedding)


def classifier(
    spec: DecoderSpec, labels: int, *, tokens: bool, tanh: bool = False, activation: Activation | None = None
) -> tuple[DenseSpec, ...]:
    """The usual head: a dense layer with an activation, then the classes; for tokens the classes alone."""
    out = DenseSpec("out", labels)
    return (out,) if tokens else (DenseSpec("dense", spec.hidden, activation=activation, tanh=tanh), out)
