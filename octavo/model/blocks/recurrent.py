"""Mixers that keep a state in place of keys and values: gated short convolutions and selective state spaces."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.ops.interface import LayerCache, Ops
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import ShortConvSpec, StateSpaceSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class ShortConvWeights(Generic[V]):
    """`project`: b, c and x stacked, [3 * width, hidden]."""

    project: PackedWeight
    conv: V  # [taps * width], the oldest input's weights first
    out: PackedWeight  # [hidden, width]
    project_bias: V | None = None
    conv_bias: V | None = None
    out_bias: V | None = None


@dataclass(frozen=True, slots=True)
class StateSpaceWeights(Generic[V]):
    """`project`: gate, x, b, c and time steps stacked, [2 * inner + 2 * groups * state + heads, hidden]."""

    project: PackedWeight
    conv: V  # [taps * (inner + 2 * groups * state)]
    rates: V  # [3 * heads]: a, d, bias of the time steps
    norm: V  # [inner]
    out: PackedWeight  # [hidden, inner]
    project_bias: V | None = None
    conv_bias: V | None = None
    out_bias: V | None = None


def short_conv(ops: Ops[A, V, I], spec: ShortConvSpec, w: ShortConvWeights[V], x: A, cache: LayerCache) -> A:
    """x: [T, hidden] -> [T, hidden]."""
    projected = ops.linear(x, w.project, w.project_bias)
    y = ops.causal_conv(projected, spec.conv, cache, w.conv, w.conv_bias)
    return ops.all_reduce(ops.linear(y, w.out, w.out_bias))


def state_space(ops: Ops[A, V, I], spec: StateSpaceSpec, w: StateSpaceWeights[V], x: A, cache: LayerCache) -> A:
    """x: [T, hidden] -> [T, hidden]."""
    projected = ops.linear(x, w.project, w.project_bias)
    inputs = ops.causal_conv(projected, spec.conv, cache, w.conv, w.conv_bias)
    y = ops.state_scan(inputs, projected, spec, cache, w.rates)
    y = ops.gated_norm(y, projected, w.norm, spec)
    return ops.all_reduce(ops.linear(y, w.out, w.out_bias))
