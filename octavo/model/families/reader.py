"""Reads values of a config.json: each is checked where it is read, and a bad one is named.

Defaults are the caller's: a missing key means what the family's own configuration class says.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from octavo.errors import CheckpointError, UnsupportedError
from octavo.spec.decoder import Activation

_MAX_SIZE = 1 << 31
_INFINITY = {"__float__": "Infinity"}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}


class ConfigReader:
    """Typed reading of a mapping that came from a file. All methods raise CheckpointError and name the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def has(self, key: str) -> bool:
        """Whether the key is there, null included."""
        return key in self._config

    def size(self, key: str, default: int | None = None, most: int = _MAX_SIZE) -> int:
        """An integer in 1..most; null or absent means the default, without one it is an error."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise CheckpointError(f"config: {key} is {value!r}, not a whole number from 1 to {most}")
        return value

    def optional_size(self, key: str, default: int | None = None) -> int | None:
        """As `size`, but null means none; absent means the default."""
        if self._config.get(key, default) is None:
            return None
        return self.size(key, default)

    def whole(self, key: str, default: int) -> int:
        """An integer from 0 on; null or absent means the default."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_SIZE:
            raise CheckpointError(f"config: {key} is {value!r}, not a whole number from 0 to {_MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
            raise CheckpointError(f"config: {key} is {value!r}, not a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As `number`; null or absent means none."""
        return None if self._config.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """true or false; null means the default."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config: {key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"config: {key} is {value!r}, not a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers > 0."""
        value = self._config.get(key)
        if not isinstance(value, (list, tuple)):
            raise CheckpointError(f"config: {key} is {value!r}, not a list of numbers")
        items = cast(list[Any], value)
        return tuple(ConfigReader({key: item}).number(key) for item in items)

    def limits(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """A list of two numbers >= 0 in order, the second maybe infinite; null or absent means the default.

        transformers writes infinity as {"__float__": "Infinity"}.
        """
        value = self._config.get(key)
        if value is None:
            return default
        pair = cast(list[Any], value) if isinstance(value, (list, tuple)) else []
        numbers = [math.inf if item == _INFINITY else float(item) for item in pair if _is_limit(item)]
        if len(pair) != 2 or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
            raise CheckpointError(f"config: {key} is {value!r}, not two numbers in order")
        return numbers[0], numbers[1]

    def indices(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers; null or absent means none."""
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in cast(list[Any], value)):
            raise CheckpointError(f"config: {key} is {value!r}, not a list of whole numbers")
        return tuple(cast(list[int], value))

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings; null or absent means none."""
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in cast(list[Any], value)):
            raise CheckpointError(f"config: {key} is {value!r}, not a list of strings")
        return tuple(cast(list[str], value))

    def section(self, key: str) -> "ConfigReader | None":
        """A nested object; null or absent means none."""
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config: {key} is {value!r}, not an object")
        return ConfigReader(cast(Mapping[str, Any], value))

    def activation(self, key: str, default: str) -> Activation:
        """An activation by the name transformers gives it.

        Raises:
            UnsupportedError: Octavo does not have it.
        """
        name = self.text(key, default)
        if name not in _ACTIVATIONS:
            raise UnsupportedError(f"config: {key} is {name!r}; there are {', '.join(sorted(_ACTIVATIONS))}")
        return _ACTIVATIONS[name]

    def refuse(self, key: str, *harmless: object) -> None:
        """Raise UnsupportedError when the key has a value other than null, false or one of `harmless`."""
        value = self._config.get(key)
        if value is not None and value is not False and value not in harmless:
            raise UnsupportedError(f"config: {key} = {value!r} is not supported")

    def _value(self, key: str, default: object) -> object:
        value = self._config.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"config: {key} is missing")
        return value


def _is_limit(item: object) -> bool:
    if isinstance(item, int):
        return not isinstance(item, bool) and abs(item) <= _MAX_SIZE
    return isinstance(item, float) or item == _INFINITY
