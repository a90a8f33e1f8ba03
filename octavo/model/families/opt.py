"""OPT: LayerNorm, biases, relu, learned positions whose table begins with two unused rows; the 350M model norms after
the addition and embeds in fewer elements than it computes with.

Source: transformers' OPTConfig and modeling code; the weight names of facebook/opt-125m ... 66b.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedError
from octavo.model.families.common import read_sizes
from octavo.model.families.reader import ConfigReader
from octavo.model.families.table import WeightTable, at
from octavo.ops.weight import StoredTensor
from octavo.spec.decoder import (
    AttentionSpec,
    BlockSpec,
    BranchSpec,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    LayerSpec,
    NormSpec,
    sequential,
)

ARCHITECTURES = ("OPTForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

_ATTENTION_NORM = at("{p}layers.{i}.self_attn_layer_norm")
_MLP_NORM = at("{p}layers.{i}.final_layer_norm")
WEIGHTS = WeightTable(
    model={
        "embed": at("{p}embed_tokens"),
        "positions": at("{p}embed_positions", first_row=2),
        "project_in": at("{p}project_in"),
        "final_norm": at("{p}final_layer_norm"),
        "project_out": at("{p}project_out"),
        "head": at("lm_head"),
    },
    layer={
        "mixer.norm": _ATTENTION_NORM,
        "mixer.after_norm": _ATTENTION_NORM,
        "mixer.q": at("{p}layers.{i}.self_attn.q_proj"),
        "mixer.k": at("{p}layers.{i}.self_attn.k_proj"),
        "mixer.v": at("{p}layers.{i}.self_attn.v_proj"),
        "mixer.out": at("{p}layers.{i}.self_attn.out_proj"),
        "mlp.norm": _MLP_NORM,
        "mlp.after_norm": _MLP_NORM,
        "mlp.up": at("{p}layers.{i}.fc1"),
        "mlp.down": at("{p}layers.{i}.fc2"),
    },
    prefixes=("model.decoder.", "decoder."),
)
GGUF_WEIGHTS = WEIGHTS


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder of a config.json. The norms' eps is PyTorch's default, 1e-5: no key holds it."""
    read = ConfigReader(config)
    sizes = read_sizes(read)
    affine = read.flag("layer_norm_elementwise_affine", True)
    norm = NormSpec("layer", 1e-5, weight=affine, bias=affine)
    bias = read.flag("enable_bias", True)
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=None,
        qkv_bias=bias,
        out_bias=bias,
    )
    mlp = DenseMlpSpec(read.size("ffn_dim"), read.activation("activation_function", "relu"), gated=False, bias=bias)
    before = read.flag("do_layer_norm_before", True)
    after = LayerSpec(tuple(BlockSpec((BranchSpec(body),), after_norm=norm) for body in (attention, mlp)))
    width = read.size("word_embed_proj_dim", sizes.hidden)
    positions = read.size("max_position_embeddings", 2048)
    project = width != sizes.hidden
    return DecoderSpec(
        hidden=sizes.hidden,
        layers=(sequential(attention, mlp, norm) if before else after,) * sizes.layers,
        embedding=EmbeddingSpec(read.size("vocab_size"), width, positions=positions, project=project),
        final_norm=norm if before and not read.flag("_remove_final_layer_norm", False) else None,
        head=HeadSpec(tied=read.flag("tie_word_embeddings", True), project=project),
        max_positions=positions,
    )


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """There are no GGUF files of this family."""
    raise UnsupportedError("OPT has no GGUF form")
