"""The dense feed-forward block, gated or plain."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.ops.interface import Ops
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import DenseMlpSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class MlpWeights(Generic[V]):
    """`up`: gate and up stacked, [2 * width, hidden], when gated; else [width, hidden]."""

    up: PackedWeight
    down: PackedWeight  # [hidden, width]
    up_bias: V | None = None
    down_bias: V | None = None


def mlp(ops: Ops[A, V, I], spec: DenseMlpSpec, w: MlpWeights[V], x: A) -> A:
    """x: [T, hidden] -> [T, hidden]."""
    h = ops.linear(x, w.up, w.up_bias)
    h = ops.act_mul(h, spec.activation) if spec.gated else ops.act(h, spec.activation)
    return ops.all_reduce(ops.linear(h, w.down, w.down_bias))
