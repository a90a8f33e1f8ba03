"""Walks a DecoderSpec and says which weights it has, of which sizes: once to plan a load, once to put it together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from octavo.model.blocks.attention import AttentionWeights
from octavo.model.blocks.latent_attention import LatentWeights
from octavo.model.blocks.mlp import MlpWeights
from octavo.model.blocks.norm import NormWeights
from octavo.model.blocks.pooled_head import DenseWeights
from octavo.model.blocks.recurrent import ShortConvWeights, StateSpaceWeights
from octavo.model.decoder import BlockWeights, BodyWeights, BranchWeights, DecoderWeights, LayerWeights
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import (
    AttentionSpec,
    Body,
    BranchSpec,
    DecoderSpec,
    DenseMlpSpec,
    DenseSpec,
    LatentSpec,
    LayerSpec,
    NormSpec,
    ShortConvSpec,
    StateSpaceSpec,
)

V_co = TypeVar("V_co", covariant=True)
V = TypeVar("V")

# A part of a stacked weight: its canonical name, and its rows.
Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HeadPart:
    """Which rows of a stacked matrix are a head's: of the `block` rows that each head has there, `rows` from `first`.

    of: the stacked matrix's canonical name. turned: the head's matrix is the transpose of these rows.
    """

    of: str
    heads: int
    block: int
    first: int
    rows: int
    turned: bool = False


class Take(Protocol[V_co]):
    """Gives the weights the walk asks for. `name` is unique in the model; `place` is "" or "layers.{i}."."""

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        """`parts` stacked along the output axis; `name` is also the canonical name when the file has them stacked."""
        ...

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        """A matrix for every head, one segment each, out of a matrix `part.of` [heads * block, columns]."""
        ...

    def gain(self, place: str, name: str, width: int) -> V_co:
        """A norm's weight."""
        ...

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> V_co:
        """Biases of `parts`, one after the other."""
        ...

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> V_co:
        """Vectors that stand for themselves, not for a module: their names have no ending."""
        ...

    def taps(self, place: str, name: str, width: int, taps: int) -> V_co:
        """The weights of a convolution of each channel, [width, 1, taps] in the file: [taps * width]."""
        ...


def assemble(spec: DecoderSpec, take: Take[V]) -> DecoderWeights[V]:
    """All weights of a decoder, asked from `take` one after the other."""
    embedding, head, hidden = spec.embedding, spec.head, spec.hidden
    vocab, width = embedding.vocab, embedding.width
    embed = take.matrix("", "embed", [("embed", vocab)], width)
    projects = embedding.project if head is None else head.project
    head_width = width if projects else hidden
    tied = head is not None and head.tied
    if tied and head_width != width:
        raise ValueError(f"a tied head needs the embedding's width {width}, not {head_width}")
    rows, types = embedding.positions, embedding.token_types
    top = embed if tied else None
    if head is not None and top is None:
        top = take.matrix("", "head", [("head", vocab)], head_width)
    return DecoderWeights(
        embed=embed,
        positions=take.matrix("", "positions", [("positions", rows)], hidden) if rows is not None else None,
        embed_norm=_norm(embedding.norm, take, "", "embed_norm", hidden),
        project_in=take.matrix("", "project_in", [("project_in", hidden)], width) if embedding.project else None,
        layers=tuple(assemble_layer(layer, take, i, hidden) for i, layer in enumerate(spec.layers)),
        final_norm=_norm(spec.final_norm, take, "", "final_norm", hidden),
        project_out=take.matrix("", "project_out", [("project_out", width)], hidden) if projects else None,
        head=top,
        head_bias=take.bias("", "head", [("head", vocab)]) if head is not None and head.bias else None,
        token_types=take.matrix("", "token_types", [("token_types", types)], hidden) if types is not None else None,
        pooled_head=_pooled_head(spec.pooled_head, take, head_width),
    )


def _pooled_head(specs: Sequence[DenseSpec], take: Take[V], width: int) -> tuple[DenseWeights[V], ...]:
    found: list[DenseWeights[V]] = []
    for spec in specs:
        name = f"pooler.{spec.name}"
        found.append(
            DenseWeights(
                weight=take.matrix("", name, [(name, spec.width)], width),
                bias=take.bias("", name, [(name, spec.width)]) if spec.bias else None,
                norm=_norm(spec.norm, take, "", f"{name}_norm", spec.width),
            )
        )
        width = spec.width
    return tuple(found)


def assemble_layer(spec: LayerSpec, take: Take[V], index: int, hidden: int) -> LayerWeights[V]:
    """The weights of layer `index`, asked from `take`."""
    place = f"layers.{index}."
    last = len(spec.blocks) - 1
    blocks: list[BlockWeights[V]] = []
    for b, block in enumerate(spec.blocks):
        ends = [b == last and r == len(block.branches) - 1 for r in range(len(block.branches))]
        names = [branch_name(b, r, last=end) for r, end in enumerate(ends)]
        branches = tuple(
            _branch(branch, take, place, name, hidden) for branch, name in zip(block.branches, names, strict=True)
        )
        blocks.append(
            BlockWeights(
                branches=branches,
                norm=_norm(block.norm, take, place, f"{names[0]}.shared_norm", hidden),
                post_norm=_norm(block.post_norm, take, place, f"{names[0]}.sum_norm", hidden),
                after_norm=_norm(block.after_norm, take, place, f"{names[0]}.after_norm", hidden),
            )
        )
    return LayerWeights(tuple(blocks))


def branch_name(block: int, branch: int, *, last: bool) -> str:
    """The canonical name of a branch: the first of a layer is "mixer", the last "mlp", others are numbered."""
    if block == 0 and branch == 0:
        return "mixer"
    return "mlp" if last else f"blocks.{block}.{branch}"


def _branch(spec: BranchSpec, take: Take[V], place: str, name: str, hidden: int) -> BranchWeights[V]:
    return BranchWeights(
        body=_body(spec.body, take, place, name, hidden),
        norm=_norm(spec.norm, take, place, f"{name}.norm", hidden),
        post_norm=_norm(spec.post_norm, take, place, f"{name}.post_norm", hidden),
    )


def _body(spec: Body, take: Take[V], place: str, name: str, hidden: int) -> BodyWeights[V]:
    if isinstance(spec, AttentionSpec):
        return _attention(spec, take, place, name, hidden)
    if isinstance(spec, LatentSpec):
        return _latent(spec, take, place, name, hidden)
    if isinstance(spec, ShortConvSpec):
        return _short_conv(spec, take, place, name, hidden)
    if isinstance(spec, StateSpaceSpec):
        return _state_space(spec, take, place, name, hidden)
    return _mlp(spec, take, place, name, hidden)


def _attention(spec: AttentionSpec, take: Take[V], place: str, name: str, hidden: int) -> AttentionWeights[V]:
    width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    qkv = [(f"{name}.q", width), (f"{name}.k", kv_width), (f"{name}.v", kv_width)]
    if spec.kv_from is not None:
        qkv = qkv[:1]
    out = [(f"{name}.out", hidden)]
    normed = spec.qk_norm is not None and spec.qk_norm.weight
    return AttentionWeights(
        qkv=take.matrix(place, f"{name}.qkv", qkv, hidden),
        qkv_bias=take.bias(place, f"{name}.qkv", qkv) if spec.qkv_bias else None,
        q_norm=take.gain(place, f"{name}.q_norm", spec.head_dim) if normed else None,
        k_norm=take.gain(place, f"{name}.k_norm", spec.head_dim) if normed and spec.own_kv_heads else None,
        out=take.matrix(place, f"{name}.out", out, width),
        out_bias=take.bias(place, f"{name}.out", out) if spec.out_bias else None,
        sinks=take.parameters(place, f"{name}.sinks", [(f"{name}.sinks", spec.heads)]) if spec.sinks else None,
        distances=_distances(spec, take, place, f"{name}.distances"),
    )


def _distances(spec: AttentionSpec, take: Take[V], place: str, name: str) -> V | None:
    if spec.distances is None:
        return None
    return take.parameters(place, name, [(name, spec.distances.buckets * spec.heads)])


def _latent(spec: LatentSpec, take: Take[V], place: str, name: str, hidden: int) -> LatentWeights[V]:
    def matrix(part: str, rows: int, columns: int) -> PackedWeight:
        return take.matrix(place, f"{name}.{part}", [(f"{name}.{part}", rows)], columns)

    def bias(part: str, rows: int) -> V | None:
        return take.bias(place, f"{name}.{part}", [(f"{name}.{part}", rows)]) if spec.bias else None

    up, block = f"{name}.kv_up", spec.nope + spec.value_dim
    narrow, rank = spec.q_rank is not None, spec.q_rank or 0
    return LatentWeights(
        q_down=matrix("q_down", rank, hidden) if narrow else None,
        q_down_bias=bias("q_down", rank) if narrow else None,
        q_norm=_norm(spec.q_norm, take, place, f"{name}.q_norm", rank),
        q=matrix("q", spec.heads * spec.head_dim, rank if narrow else hidden),
        kv_down=matrix("kv_down", spec.width, hidden),
        kv_down_bias=bias("kv_down", spec.width),
        latent_norm=take.gain(place, f"{name}.latent_norm", spec.rank) if spec.latent_norm.weight else None,
        k_up=take.heads(place, f"{name}.k_up", HeadPart(up, spec.heads, block, 0, spec.nope, turned=True), spec.rank),
        v_up=take.heads(place, f"{name}.v_up", HeadPart(up, spec.heads, block, spec.nope, spec.value_dim), spec.rank),
        out=matrix("out", hidden, spec.heads * spec.value_dim),
        out_bias=bias("out", hidden),
    )


def _short_conv(spec: ShortConvSpec, take: Take[V], place: str, name: str, hidden: int) -> ShortConvWeights[V]:
    width = spec.conv.width
    project, conv, out = [(f"{name}.project", 3 * width)], [(f"{name}.conv", width)], [(f"{name}.out", hidden)]
    return ShortConvWeights(
        project=take.matrix(place, f"{name}.project", project, hidden),
        project_bias=take.bias(place, f"{name}.project", project) if spec.bias else None,
        conv=take.taps(place, f"{name}.conv", width, spec.conv.taps),
        conv_bias=take.bias(place, f"{name}.conv", conv) if spec.bias else None,
        out=take.matrix(place, f"{name}.out", out, width),
        out_bias=take.bias(place, f"{name}.out", out) if spec.bias else None,
    )


def _state_space(spec: StateSpaceSpec, take: Take[V], place: str, name: str, hidden: int) -> StateSpaceWeights[V]:
    project, out = [(f"{name}.project", spec.first_step + spec.heads)], [(f"{name}.out", hidden)]
    conv = [(f"{name}.conv", spec.conv.width)]
    rates = [(f"{name}.{part}", spec.heads) for part in ("decay", "skip", "step_bias")]
    return StateSpaceWeights(
        project=take.matrix(place, f"{name}.project", project, hidden),
        project_bias=take.bias(place, f"{name}.project", project) if spec.bias else None,
        conv=take.taps(place, f"{name}.conv", spec.conv.width, spec.conv.taps),
        conv_bias=take.bias(place, f"{name}.conv", conv) if spec.conv_bias else None,
        rates=take.parameters(place, f"{name}.rates", rates),
        norm=take.gain(place, f"{name}.inner_norm", spec.inner),
        out=take.matrix(place, f"{name}.out", out, spec.inner),
        out_bias=take.bias(place, f"{name}.out", out) if spec.bias else None,
    )


def _mlp(spec: DenseMlpSpec, take: Take[V], place: str, name: str, hidden: int) -> MlpWeights[V]:
    gated_up = [(f"{name}.gate", spec.width), (f"{name}.up", spec.width)]
    up = gated_up if spec.gated else gated_up[1:]
    stacked = f"{name}.gate_up" if spec.gated else f"{name}.up"
    down = [(f"{name}.down", hidden)]
    return MlpWeights(
        up=take.matrix(place, stacked, up, hidden),
        up_bias=take.bias(place, stacked, up) if spec.bias else None,
        down=take.matrix(place, f"{name}.down", down, spec.width),
        down_bias=take.bias(place, f"{name}.down", down) if spec.bias else None,
    )


def _norm(spec: NormSpec | None, take: Take[V], place: str, name: str, width: int) -> NormWeights[V] | None:
    if spec is None:
        return None
    return NormWeights(
        weight=take.gain(place, name, width) if spec.weight else None,
        bias=take.bias(place, name, [(name, width)]) if spec.bias else None,
    )
