"""What is computed of pooled states: the dense layers of a classifier or of an embedding model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.model.blocks.norm import NormWeights, normalize
from octavo.ops.interface import Ops
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import DenseSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class DenseWeights(Generic[V]):
    """Weights of one layer."""

    weight: PackedWeight  # [width, in]
    bias: V | None = None
    norm: NormWeights[V] | None = None


def pooled_head(ops: Ops[A, V, I], specs: Sequence[DenseSpec], weights: Sequence[DenseWeights[V]], x: A) -> A:
    """x: [R, hidden] -> [R, width of the last layer]; x itself when there is none."""
    for spec, layer in zip(specs, weights, strict=True):
        x = ops.linear(x, layer.weight, layer.bias)
        if spec.activation is not None:
            x = ops.act(x, spec.activation)
        if spec.tanh:
            x = ops.softcap(x, 1.0)  # 1 tanh(x / 1)
        x = normalize(ops, spec.norm, layer.norm, x)
    return x
