"""What computes what in a layer, as its ops told: which products share an input, and what could take over its scale.

A factor a channel can move from a product's input into whatever made that input, if that is linear in it: a norm's
gain, the values of attention, the upper half of a gated MLP. It may move only if nobody else uses that input. This is
read off a layer's calls, so it holds for every family.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.compression.tapped_ops import Call
from octavo.quantization.integers import Floats
from octavo.spec.decoder import AttentionSpec

# Ops whose first vector multiplies each channel of their output, and whose second is added to it.
_NORMS = ("rms_norm", "layer_norm", "gated_norm")
# Ops that multiply queries with keys of one input.
_MEETING = ("qkv_rope_cache", "latent_cache")


@dataclass(frozen=True, slots=True)
class Giver:
    """What takes over the inverse of a product's input factors.

    weight: a norm's gain, or a matrix whose rows from `first` on are meant. bias: of a norm, "" where it has none.
    count: factors that are free; each belongs to the channels that `channels` [in] sends to it.
    """

    kind: str  # "norm", "values" or "up"
    weight: str
    first: int
    count: int
    channels: NDArray[np.intp]
    bias: str = ""

    def spread(self, factors: Floats) -> Floats:
        """Free factors [count] -> those of the input's channels [in]."""
        return factors[self.channels]

    def largest(self, values: Floats) -> Floats:
        """[in] -> the largest of each set of channels that share a factor, [count]."""
        result = np.full(self.count, -np.inf, np.float32)
        np.maximum.at(result, self.channels, values)
        return result

    def mean(self, values: Floats) -> Floats:
        """[in] -> the mean of each set of channels that share a factor, [count]."""
        sums = np.bincount(self.channels, values, self.count)
        return (sums / np.bincount(self.channels, minlength=self.count)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class SharedInput:
    """Products of the same input. giver: what could take its scale; None: nothing, and `why` says why.

    meets: a product's result is multiplied with itself, as queries and keys are.
    """

    weights: tuple[str, ...]
    giver: Giver | None
    why: str = ""
    meets: bool = False


def shared_inputs(calls: Sequence[Call], widths: dict[str, int]) -> list[SharedInput]:
    """The products of a layer, by their inputs.

    Args:
        widths: columns of each matrix.
    """
    users: dict[int, list[Call]] = {}
    makers: dict[int, Call] = {}
    for call in calls:
        for number in call.inputs:
            users.setdefault(number, []).append(call)
        if call.op != "end":
            makers.setdefault(call.output, call)
    groups: dict[int, list[str]] = {}
    for call in calls:
        if call.op == "linear":
            groups.setdefault(call.inputs[0], []).append(call.names[0])
    flow = _Flow(users, makers)
    return [flow.describe(number, tuple(names), widths[names[0]]) for number, names in groups.items()]


class _Flow:
    """Follows values backwards."""

    def __init__(self, users: dict[int, list[Call]], makers: dict[int, Call]) -> None:
        self._users = users
        self._makers = makers

    def describe(self, number: int, weights: tuple[str, ...], width: int) -> SharedInput:
        """Products with value `number` as their input."""
        maker = self._makers.get(number)
        products = [user for user in self._users[number] if user.op == "linear"]
        readers = [reader.op for product in products for reader in self._users.get(product.output, ())]
        meets = any(op in _MEETING for op in readers)
        if maker is None:
            return SharedInput(weights, None, "the input comes from the layer before", meets)
        if len(products) < len(self._users[number]):
            return SharedInput(weights, None, f"the input ({maker.op}) is used by other ops, too", meets)
        giver = self._norm(maker, width) or self._values(maker) or self._up(maker, width)
        return SharedInput(weights, giver, "" if giver else f"{maker.op} cannot take over a scale", meets)

    def _norm(self, maker: Call, width: int) -> Giver | None:
        if maker.op not in _NORMS or not maker.names:
            return None
        gain, *rest = maker.names
        return Giver("norm", gain, 0, width, np.arange(width), rest[0] if rest else "")

    def _values(self, maker: Call) -> Giver | None:
        """Attention is linear in the values; heads that share a key and value head share its factors."""
        spec = maker.detail
        if maker.op != "paged_attention" or not isinstance(spec, AttentionSpec) or spec.kv_from is not None:
            return None
        cached = self._alone(maker.inputs[0])
        if cached is not None and cached.op == "scale_by_position":
            cached = self._alone(cached.inputs[0])
        product = None if cached is None or cached.op != "qkv_rope_cache" else self._alone(cached.inputs[0])
        if product is None or product.op != "linear":
            return None
        every = np.arange(spec.heads * spec.head_dim)
        head, dim = every // spec.head_dim, every % spec.head_dim
        channels: NDArray[np.intp] = head // (spec.heads // spec.kv_heads) * spec.head_dim + dim
        first = (spec.heads + spec.kv_heads) * spec.head_dim
        return Giver("values", product.names[0], first, spec.kv_heads * spec.head_dim, channels)

    def _up(self, maker: Call, width: int) -> Giver | None:
        """act(gate) * up is linear in up; a ramp is linear in what is scaled by more than 0."""
        gated, ramp = maker.op == "act_mul", maker.op == "act" and maker.detail == "relu"
        product = self._alone(maker.inputs[0]) if gated or ramp else None
        if product is None or product.op != "linear":
            return None
        return Giver("up", product.names[0], width if gated else 0, width, np.arange(width))

    def _alone(self, number: int) -> Call | None:
        """What made a value that one op alone uses."""
        return self._makers.get(number) if len(self._users[number]) == 1 else None
