"""Grouped-query attention over the paged cache: full, windowed or by chunks, of own or another layer's history."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.ops.interface import LayerCache, Ops, RopeTable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import AttentionSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class AttentionWeights(Generic[V]):
    """`qkv`: q, k and v stacked along the output axis, [(heads + 2 own_kv_heads) * head_dim, hidden]."""

    qkv: PackedWeight
    out: PackedWeight  # [hidden, heads * head_dim]
    qkv_bias: V | None = None
    out_bias: V | None = None
    q_norm: V | None = None  # [head_dim]
    k_norm: V | None = None
    sinks: V | None = None  # [heads]
    distances: V | None = None  # [buckets * heads]


def attention(
    ops: Ops[A, V, I],
    spec: AttentionSpec,
    w: AttentionWeights[V],
    x: A,
    positions: I,
    cache: LayerCache,
    rope: RopeTable | None,
) -> A:
    """x: [T, hidden] -> [T, hidden]."""
    qkv = ops.linear(x, w.qkv, w.qkv_bias)
    q = ops.qkv_rope_cache(qkv, spec, cache, positions, rope, w.q_norm, w.k_norm)
    if spec.query_scale is not None:
        q = ops.scale_by_position(q, spec.query_scale, positions)
    y = ops.paged_attention(q, spec, cache, w.sinks, w.distances)
    return ops.all_reduce(ops.linear(y, w.out, w.out_bias))
