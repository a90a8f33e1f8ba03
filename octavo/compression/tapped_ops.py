"""A model's ops on numpy arrays, with an ear: who computes what of whom, and what goes into every product.

Products run in numpy on plain float32 matrices, so that a weight can be exchanged at once; all else runs in native
code, one op a call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.instruction import Ids
from octavo.kernels.cpu.ops import NativeOps
from octavo.ops.weight import PackedWeight, Segment

Floats = NDArray[np.float32]
Listener = Callable[[str, Floats], None]  # the weight's name, the product's input [T, in]

_END = "end"


class Heard(Exception):
    """Raised by a listener that needs no more of a forward."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op of a forward: values are numbered in the order in which they first appeared.

    names: of the weights and vectors it took. detail: the spec of its attention, or the name of its activation.
    """

    op: str
    inputs: tuple[int, ...]
    output: int
    names: tuple[str, ...]
    detail: object = None


def array_weight(parts: list[Floats]) -> PackedWeight:
    """Matrices stacked along the output axis, as TappedOps takes them."""
    rows = sum(len(part) for part in parts)
    return PackedWeight((rows, parts[0].shape[1]), tuple(Segment("f32", len(part), part) for part in parts))


class TappedOps:
    """Passes every op on. Implements Ops but for process_logits and sample, which calibration does without.

    Args:
        names: of weights and vectors, by their id().
        listener: hears every product's input; None: nobody does.
        calls: where ops are noted; None: they are not.
        ids: what `embed` looks up.
    """

    def __init__(
        self,
        native: NativeOps,
        names: Mapping[int, str],
        listener: Listener | None = None,
        calls: list[Call] | None = None,
        ids: Mapping[Ids, NDArray[np.integer]] | None = None,
    ) -> None:
        self._native = native
        self._names = names
        self._listener = listener
        self._calls = calls
        self._ids = ids or {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Floats] = []  # an id() must not come back while it is noted

    def linear(self, x: Floats, weight: PackedWeight, bias: Floats | None = None) -> Floats:
        """See Ops."""
        if self._listener is not None:
            self._listener(self._names[id(weight)], x)
        (segment,) = weight.segments
        matrix: Any = segment.data
        y: Floats = x @ matrix.T
        if bias is not None:
            y += bias
        self._note("linear", (x,), y, (weight, bias))
        return y

    def embed(self, ids: Ids, table: PackedWeight) -> Floats:
        """See Ops."""
        (segment,) = table.segments
        rows: Any = segment.data
        return rows[self._ids[ids]]

    def head_linear(self, x: Floats, weight: PackedWeight) -> Floats:
        """See Ops."""
        count = len(weight.segments)
        heads = x.reshape(len(x), count, -1)[:, :, : weight.shape[1]]
        matrices: list[Any] = [segment.data for segment in weight.segments]
        y = np.concatenate([heads[:, head] @ matrix.T for head, matrix in enumerate(matrices)], axis=1)
        self._note("head_linear", (x,), y, (weight,))
        return y

    def add(self, left: Floats, right: Floats) -> Floats:
        """See Ops; here, because a copy into native memory takes longer than the sum."""
        y = left + right
        self._note("add", (left, right), y, ())
        return y

    def all_reduce(self, x: Floats) -> Floats:
        """See Ops."""
        return x

    def end(self, x: Floats) -> None:
        """The forward's result, which somebody outside will use."""
        self._note(_END, (x,), x, ())

    def __getattr__(self, op: str) -> Callable[..., Floats]:
        run: Callable[..., Floats] = getattr(self._native, op)

        def call(*arguments: Any) -> Floats:
            y = run(*arguments)
            activations = tuple(a for a in arguments if isinstance(a, np.ndarray) and id(a) not in self._names)
            detail = next((a for a in arguments if isinstance(a, str) or hasattr(a, "cache_needs")), None)
            self._note(op, activations, y, arguments, detail)
            return y

        return call

    def _note(
        self, op: str, inputs: tuple[Any, ...], output: Floats, operands: tuple[Any, ...], detail: object = None
    ) -> None:
        if self._calls is None:
            return
        names = tuple(self._names[id(a)] for a in operands if id(a) in self._names)
        numbers = tuple(self._number(value) for value in inputs)
        self._calls.append(Call(op, numbers, self._number(output), names, detail))

    def _number(self, value: Floats) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return self._numbers[id(value)]
