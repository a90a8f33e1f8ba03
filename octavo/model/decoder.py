"""One decoder for every family: walks a DecoderSpec and calls ops. It never looks at a tensor's values.

It branches on the spec alone, never on values or on the number of tokens: that one rule lets a recorder, a compiler or
a graph capture trace this same method.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.model.blocks.attention import AttentionWeights, attention
from octavo.model.blocks.latent_attention import LatentWeights, latent_attention
from octavo.model.blocks.mlp import MlpWeights, mlp
from octavo.model.blocks.norm import NormWeights, normalize
from octavo.model.blocks.pooled_head import DenseWeights, pooled_head
from octavo.model.blocks.recurrent import ShortConvWeights, StateSpaceWeights, short_conv, state_space
from octavo.ops.interface import LayerCache, Ops, RopeTable, StepHandles
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import (
    BlockSpec,
    Body,
    BranchSpec,
    DecoderSpec,
    DenseMlpSpec,
    LatentSpec,
    RopeSpec,
    ShortConvSpec,
    StateSpaceSpec,
)

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


BodyWeights = AttentionWeights[V] | LatentWeights[V] | ShortConvWeights[V] | StateSpaceWeights[V] | MlpWeights[V]


@dataclass(frozen=True, slots=True)
class BranchWeights(Generic[V]):
    """Weights of one branch, in the spec's order."""

    body: BodyWeights[V]
    norm: NormWeights[V] | None = None
    post_norm: NormWeights[V] | None = None


@dataclass(frozen=True, slots=True)
class BlockWeights(Generic[V]):
    """Weights of one block."""

    branches: tuple[BranchWeights[V], ...]
    norm: NormWeights[V] | None = None
    post_norm: NormWeights[V] | None = None
    after_norm: NormWeights[V] | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[V]):
    """Weights of one layer."""

    blocks: tuple[BlockWeights[V], ...]


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[V]):
    """Every weight of a decoder. A tied head is the same object as `embed`; None: it has no head."""

    embed: PackedWeight  # [vocab, embedding width]
    layers: tuple[LayerWeights[V], ...]
    head: PackedWeight | None  # [vocab, embedding width]
    final_norm: NormWeights[V] | None = None
    positions: PackedWeight | None = None  # [positions, hidden], first row = position 0
    embed_norm: NormWeights[V] | None = None
    project_in: PackedWeight | None = None  # [hidden, embedding width]
    project_out: PackedWeight | None = None  # [embedding width, hidden]
    head_bias: V | None = None  # [vocab]
    token_types: PackedWeight | None = None  # [types, hidden]
    pooled_head: tuple[DenseWeights[V], ...] = ()


class Decoder(Generic[V]):
    """Runs a DecoderSpec through any Ops: op by op, recorded, or compiled.

    Args:
        spec: the architecture.
        weights: packed by the backend whose ops will run it.
        caches: where each layer's keys and values live (`cache.group.layer_caches`).
        ropes: the cos/sin table of every RopeSpec that occurs.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights[V],
        caches: Mapping[int, LayerCache],
        ropes: Mapping[RopeSpec, RopeTable],
    ) -> None:
        self.spec = spec
        self._weights = weights
        self._caches = caches
        self._ropes = ropes

    def forward(self, ops: Ops[A, V, I], step: StepHandles[I]) -> None:
        """One whole step: logits of the sampled rows, their rules, and the draw into the step's outputs; without a
        head, the hidden states."""
        if self.spec.head is None:
            self.states(ops, step)
            return
        raw = self.logits(ops, step)
        ops.sample(ops.process_logits(raw), raw)

    def states(self, ops: Ops[A, V, I], step: StepHandles[I]) -> A:
        """Hidden states of all tokens behind the last norm, [T, hidden]."""
        return self._top(ops, self._through_layers(ops, step))

    def pooled_head(self, ops: Ops[A, V, I], x: A) -> A:
        """What comes of pooled states: [R, hidden] -> [R, pooled width]."""
        return pooled_head(ops, self.spec.pooled_head, self._weights.pooled_head, x)

    def logits(self, ops: Ops[A, V, I], step: StepHandles[I]) -> A:
        """Logits of the sampled rows, [R, vocab]."""
        head, weights = self.spec.head, self._weights
        assert head is not None, "logits come out of a head"
        assert weights.head is not None, "a head has weights"
        x = self._top(ops, ops.select_rows(self._through_layers(ops, step), step.sampled_rows))
        logits = ops.linear(x, weights.head, weights.head_bias)
        if head.scale != 1.0:
            logits = ops.scale(logits, head.scale)
        if head.softcap is not None:
            logits = ops.softcap(logits, head.softcap)
        return logits

    def layer(self, ops: Ops[A, V, I], step: StepHandles[I], x: A, index: int) -> A:
        """One layer, [T, hidden] -> [T, hidden]."""
        blocks, weights = self.spec.layers[index].blocks, self._weights.layers[index].blocks
        for block, block_weights in zip(blocks, weights, strict=True):
            x = self._block(ops, block, block_weights, x, step, index)
        return x

    def _through_layers(self, ops: Ops[A, V, I], step: StepHandles[I]) -> A:
        x = self.embed(ops, step)
        for index in range(len(self.spec.layers)):
            x = self.layer(ops, step, x, index)
        return x

    def _top(self, ops: Ops[A, V, I], x: A) -> A:
        """What stands between the layers and the head."""
        x = normalize(ops, self.spec.final_norm, self._weights.final_norm, x)
        return x if self._weights.project_out is None else ops.linear(x, self._weights.project_out)

    def embed(self, ops: Ops[A, V, I], step: StepHandles[I]) -> A:
        """Token (and position, and type) embedding, [T, hidden]."""
        embedding, weights = self.spec.embedding, self._weights
        x = ops.embed(step.token_ids, weights.embed)
        if embedding.scale != 1.0:
            x = ops.scale(x, embedding.scale)
        if weights.project_in is not None:
            x = ops.linear(x, weights.project_in)
        if weights.positions is not None:
            x = ops.add(x, ops.embed(step.positions, weights.positions))
        if weights.token_types is not None:
            x = ops.add(x, ops.embed(step.token_types, weights.token_types))
        return normalize(ops, embedding.norm, weights.embed_norm, x)

    def _block(
        self,
        ops: Ops[A, V, I],
        spec: BlockSpec,
        weights: BlockWeights[V],
        x: A,
        step: StepHandles[I],
        layer: int,
    ) -> A:
        """x = after_norm(skip_scale * x + post_norm(sum of branches))."""
        shared = normalize(ops, spec.norm, weights.norm, x)
        total: A | None = None
        for branch, branch_weights in zip(spec.branches, weights.branches, strict=True):
            y = self._branch(ops, branch, branch_weights, shared, step, layer)
            total = y if total is None else ops.add(total, y)
        assert total is not None, "a block has at least one branch"
        total = normalize(ops, spec.post_norm, weights.post_norm, total)
        kept = shared if spec.skip == "normed" else x
        if spec.skip_scale != 1.0:
            kept = ops.scale(kept, spec.skip_scale)
        return normalize(ops, spec.after_norm, weights.after_norm, ops.add(kept, total))

    def _branch(
        self,
        ops: Ops[A, V, I],
        spec: BranchSpec,
        weights: BranchWeights[V],
        x: A,
        step: StepHandles[I],
        layer: int,
    ) -> A:
        """scale * post_norm(body(norm(x)))."""
        h = normalize(ops, spec.norm, weights.norm, x)
        y = self._body(ops, spec.body, weights.body, h, step, layer)
        y = normalize(ops, spec.post_norm, weights.post_norm, y)
        return ops.scale(y, spec.scale) if spec.scale != 1.0 else y

    def _body(
        self,
        ops: Ops[A, V, I],
        spec: Body,
        weights: BodyWeights[V],
        x: A,
        step: StepHandles[I],
        layer: int,
    ) -> A:
        """What a branch computes, without its norms."""
        if isinstance(spec, DenseMlpSpec):
            assert isinstance(weights, MlpWeights)
            return mlp(ops, spec, weights, x)
        cache = self._caches[layer]
        if isinstance(spec, ShortConvSpec):
            assert isinstance(weights, ShortConvWeights)
            return short_conv(ops, spec, weights, x, cache)
        if isinstance(spec, StateSpaceSpec):
            assert isinstance(weights, StateSpaceWeights)
            return state_space(ops, spec, weights, x, cache)
        rope = None if spec.rope is None else self._ropes[spec.rope]
        if isinstance(spec, LatentSpec):
            assert isinstance(weights, LatentWeights)
            return latent_attention(ops, spec, weights, x, step.positions, cache, rope)
        assert isinstance(weights, AttentionWeights)
        return attention(ops, spec, weights, x, step.positions, cache, rope)
