"""Decides how keys and values are kept: one type for all layers, or for all but some that stay unquantized."""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.config.engine import CacheConfig
from octavo.errors import ConfigError
from octavo.spec.decoder import CacheNeed

PLAIN_TYPES = ("float32", "float16", "bfloat16")
ROTATED_TYPES = ("int8", "int4")
# Bits of an element, without scales.
TYPE_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int4": 4}
# Names of kinds, as vLLM has them, beside numbers of layers and the two ends.
_KINDS = {"sliding_window": "window", "full_attention": "full", "chunked_attention": "chunked"}


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The type of each layer's keys and values.

    Attributes:
        dtype: of all layers that are not skipped.
        skipped: layers that a quantized `dtype` leaves out: numbers (negative ones count from the end), "first",
            "last", "sliding_window", "full_attention", "chunked_attention".
        plain: the type of skipped layers.
    """

    dtype: str
    skipped: tuple[str, ...] = ()
    plain: str = "float16"

    def of_layers(self, needs: Mapping[int, CacheNeed], layers: int) -> dict[int, str]:
        """The type of each layer that keeps something.

        Args:
            needs: of those layers.
            layers: how many the model has.

        Raises:
            ConfigError: a name of `skipped` fits no layer of this model.
        """
        if self.dtype in PLAIN_TYPES:
            return dict.fromkeys(needs, self.dtype)
        skipped = {layer for name in self.skipped for layer in _named(name, needs, layers)}
        return {layer: self.plain if layer in skipped else self.dtype for layer in needs}

    def __str__(self) -> str:
        return self.dtype + (f", {self.plain} in layers {', '.join(self.skipped)}" if self.skipped else "")


def _named(name: str, needs: Mapping[int, CacheNeed], layers: int) -> list[int]:
    if name in _KINDS:
        found = [layer for layer, need in needs.items() if need.kind == _KINDS[name]]
    else:
        try:
            number = {"first": 0, "last": layers - 1}.get(name)
            number = int(name) if number is None else number
        except ValueError:
            known = ", ".join(("first", "last", *_KINDS))
            raise ConfigError(
                f"kv_cache_dtype_skip_layers {name!r} is neither the number of a layer nor one of {known}"
            ) from None
        found = [number + layers if number < 0 else number]
    if not set(found) & set(needs):
        raise ConfigError(
            f"kv_cache_dtype_skip_layers {name!r} fits none of the {len(needs)} layers that keep keys and values "
            f"(numbers go from 0 to {layers - 1})"
        )
    return found


def choose_cache_dtype(
    asked: CacheConfig, weights: str, rounded: str, *, whole: bool, rotates: bool
) -> tuple[str, str]:
    """The type of keys and values, and why.

    Args:
        weights: the format that most weights have in memory.
        rounded: what they were rounded by while they loaded, if inputs of products are rounded to 8 bits, too; or
            "none".
        whole: a text is computed in one step.
        rotates: what the model keeps fits the types that rotate.

    Raises:
        ConfigError: layers are left out of a type that quantizes none.
    """
    dtype, skipped = asked.kv_cache_dtype, asked.kv_cache_dtype_skip_layers
    chosen = _usual_dtype(weights, rounded, whole, rotates) if dtype == "auto" else (dtype, "asked for")
    if skipped and chosen[0] in PLAIN_TYPES:
        fitting = "int8, fp8_e4m3, fp8_e5m2 or int4" if rotates else "fp8_e4m3 or fp8_e5m2"
        raise ConfigError(
            f"kv_cache_dtype_skip_layers {','.join(skipped)} leaves layers of a quantized cache as they are, and "
            f"kv_cache_dtype {dtype} quantizes none: choose {fitting}, or leave it out"
        )
    return chosen


def _usual_dtype(weights: str, rounded: str, whole: bool, rotates: bool) -> tuple[str, str]:
    if whole:
        return ("float32", "exact, since nothing is kept beyond a step")
    if rounded in ("int8", "int4") and rotates:
        return ("int8", f"half of float16, and beside quantization {rounded} it changes little")
    return plain_cache_dtype(weights)


def plain_cache_dtype(weights: str) -> tuple[str, str]:
    """The type of keys and values that nothing is lost by, and why."""
    if weights == "bf16":
        return ("bfloat16", "the weights' type")
    return ("float16", "half the size of float32 and exact enough")
