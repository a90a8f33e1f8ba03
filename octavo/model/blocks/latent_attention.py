"""Multi-head latent attention: queries are brought into the latent space and outputs back out of it, head by head, so
that the cache holds one vector a token and nothing is projected up for the whole context."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.model.blocks.norm import NormWeights, normalize
from octavo.ops.interface import LayerCache, Ops, RopeTable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import LatentSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class LatentWeights(Generic[V]):
    """`q`: [heads * (nope + rope), hidden or q_rank]; `k_up` and `v_up` have a segment a head."""

    q: PackedWeight
    kv_down: PackedWeight  # [rank + rope, hidden]
    k_up: PackedWeight  # a head's [rank, nope]: from its query to the latent space
    v_up: PackedWeight  # a head's [value_dim, rank]
    out: PackedWeight  # [hidden, heads * value_dim]
    latent_norm: V | None  # [rank]
    q_down: PackedWeight | None = None  # [q_rank, hidden]
    q_norm: NormWeights[V] | None = None
    q_down_bias: V | None = None
    kv_down_bias: V | None = None
    out_bias: V | None = None


def latent_attention(
    ops: Ops[A, V, I],
    spec: LatentSpec,
    w: LatentWeights[V],
    x: A,
    positions: I,
    cache: LayerCache,
    rope: RopeTable | None,
) -> A:
    """x: [T, hidden] -> [T, hidden]."""
    q = x
    if w.q_down is not None:
        q = normalize(ops, spec.q_norm, w.q_norm, ops.linear(x, w.q_down, w.q_down_bias))
    q = ops.linear(q, w.q)
    kv = ops.linear(x, w.kv_down, w.kv_down_bias)
    q = ops.latent_cache(q, kv, spec, cache, positions, rope, w.latent_norm)
    y = ops.latent_attention(ops.head_linear(q, w.k_up), q, spec, cache)
    return ops.all_reduce(ops.linear(ops.head_linear(y, w.v_up), w.out, w.out_bias))
