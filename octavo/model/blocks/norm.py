"""Applies a NormSpec: which op it is, and where its gain and bias go."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.ops.interface import Ops
from octavo.spec.decoder import NormSpec

A = TypeVar("A")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741  integers


@dataclass(frozen=True, slots=True)
class NormWeights(Generic[V]):
    """Gain and bias [width]; None where the spec has none."""

    weight: V | None = None
    bias: V | None = None


def normalize(ops: Ops[A, V, I], spec: NormSpec | None, weights: NormWeights[V] | None, x: A) -> A:
    """x itself when there is no norm."""
    if spec is None:
        return x
    weights = weights or NormWeights()
    if spec.kind == "rms":
        return ops.rms_norm(x, weights.weight, spec.eps)
    return ops.layer_norm(x, weights.weight, weights.bias, spec.eps)
