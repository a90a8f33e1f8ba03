"""What encoder families share: no head, attention both ways, and the heads of their classifiers."""

from collections.abc import Mapping
from typing import Any, cast

from octavo.errors import CheckpointError
from octavo.model.families.common import MAX_LAYERS, gguf_config
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
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

GGUF_ENCODER_NAMES = WeightTable(
    model={
        "embed": at("token_embd"),
        "positions": at("position_embd"),
        "token_types": at("token_types"),
        "embed_norm": at("token_embd_norm"),
        "pooler.dense": at("cls"),
        "pooler.out": at("cls.output"),
    },
    layer={
        "mixer.q": at("blk.{i}.attn_q"),
        "mixer.k": at("blk.{i}.attn_k"),
        "mixer.v": at("blk.{i}.attn_v"),
        "mixer.qkv": at("blk.{i}.attn_qkv"),
        "mixer.out": at("blk.{i}.attn_output"),
        "mixer.after_norm": at("blk.{i}.attn_output_norm"),
        "mlp.gate": at("blk.{i}.ffn_gate"),
        "mlp.up": at("blk.{i}.ffn_up"),
        "mlp.down": at("blk.{i}.ffn_down"),
        "mlp.after_norm": at("blk.{i}.layer_output_norm"),
    },
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
        token_types=read.whole("type_vocab_size", types) or None,
    )
    layers = read.size("num_hidden_layers", 12, most=MAX_LAYERS)
    return post_norm_encoder(read, mlp, read.size("num_attention_heads", 12), layers, embedding)


def gguf_encoder_config(
    metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor], architecture: str
) -> dict[str, Any]:
    """The metadata of an encoder's GGUF file in the words of config.json, as llama.cpp's converter writes it.

    Raises:
        CheckpointError: tensors are missing.
    """
    arch = str(metadata["general.architecture"])
    config = gguf_config(metadata, tensors)
    types, positions = tensors.get("token_types.weight"), tensors.get("position_embd.weight")
    config |= {
        "architectures": [architecture],
        "layer_norm_eps": config.get("layer_norm_epsilon", 1e-12),
        # One type may be stored as a vector.
        "type_vocab_size": 0 if types is None else types.shape[0] if len(types.shape) > 1 else 1,
    }
    if positions is not None:
        config["max_position_embeddings"] = positions.shape[0]
    classes = tensors.get("cls.output.weight")
    if classes is not None:
        names: object = metadata.get(f"{arch}.classifier.output_labels")
        count = classes.shape[0] if len(classes.shape) > 1 else 1
        listed = cast(list[Any], names) if isinstance(names, list) and len(cast(list[Any], names)) == count else []
        labels = [str(name) for name in listed] or [f"LABEL_{number}" for number in range(count)]
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    return config


def gguf_head(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], labels: int) -> tuple[DenseSpec, ...]:
    """The head of a classifier in a GGUF file: the dense layer is there if the model has one."""
    out = DenseSpec("out", labels, bias="cls.output.bias" in tensors)
    return (DenseSpec("dense", spec.hidden, tanh=True), out) if "cls.weight" in tensors else (out,)


def classifier(
    spec: DecoderSpec, labels: int, *, tokens: bool, tanh: bool = False, activation: Activation | None = None
) -> tuple[DenseSpec, ...]:
    """The usual head: a dense layer with an activation, then the classes; for tokens the classes alone."""
    out = DenseSpec("out", labels)
    return (out,) if tokens else (DenseSpec("dense", spec.hidden, activation=activation, tanh=tanh), out)
