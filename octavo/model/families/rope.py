"""Reads rotary positions out of a config.json, in its old spelling (`rope_theta`, `rope_scaling`) and the new one
(`rope_parameters`, also by layer type)."""

import math

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.families.reader import ConfigReader
from octavo.spec.decoder import LinearScaling, Llama3Scaling, RopeScaling, RopeSpec, TableScaling, YarnScaling


def read_rope(
    config: ConfigReader,
    head_dim: int,
    theta: float = 10000.0,
    layer_type: str | None = None,
    theta_key: str = "rope_theta",
) -> RopeSpec:
    """The rope of a model, or of its layers of `layer_type` when the file tells them apart.

    Args:
        theta: the family's default base.
        theta_key: top-level key of the base, in the old spelling.
    """
    parameters = config.section("rope_parameters")
    if parameters is not None and layer_type is not None and parameters.has(layer_type):
        parameters = parameters.section(layer_type)
    if parameters is not None:
        base, scaling = parameters.number("rope_theta", config.number(theta_key, theta)), parameters
    else:
        base, scaling = config.number(theta_key, theta), config.section("rope_scaling")
    if base <= 1:
        raise CheckpointError(f"config: the rope base is {base}; it must be above 1")
    width = rotary_width(config, parameters, head_dim)
    return RopeSpec(base, width, None if scaling is None else read_scaling(config, scaling, width))


def rotary_width(config: ConfigReader, parameters: ConfigReader | None, head_dim: int) -> int:
    """How many leading elements of a head are rotated."""
    for reader in (parameters, config):
        if reader is not None and reader.has("partial_rotary_factor"):
            width = int(head_dim * reader.number("partial_rotary_factor", 1.0))
            break
    else:
        width = config.size("rotary_dim", head_dim)
    if width % 2 or not 0 < width <= head_dim:
        raise CheckpointError(f"config: {width} of {head_dim} elements of a head are rotated; an even number is needed")
    return width


def read_scaling(config: ConfigReader, scaling: ConfigReader, width: int) -> RopeScaling | None:
    """The scaling that `rope_scaling` (or `rope_parameters`) describes.

    Raises:
        UnsupportedError: a kind Octavo does not have.
        CheckpointError: it is given twice, and not the same.
    """
    old = scaling.text("type", "default")
    kind = scaling.text("rope_type", old)
    if kind != old and scaling.has("type") and {kind, old} != {"default", "mrope"}:
        raise CheckpointError(f"config: rope scaling has rope_type {kind!r} and type {old!r}; which one is it?")
    if kind in ("default", "mrope"):  # text alone has equal positions on all of mrope's axes
        return None
    if kind == "linear":
        return LinearScaling(scaling.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            scaling.number("factor"),
            scaling.number("low_freq_factor"),
            scaling.number("high_freq_factor"),
            scaling.size("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _yarn(config, scaling)
    if kind in ("longrope", "su"):
        return _longrope(config, scaling, width)
    if kind == "table":  # factors that a GGUF file carries as a tensor
        return TableScaling(_factors(scaling, "factors", width), scaling.number("attention_factor", 1.0))
    raise UnsupportedError(f"config: rope scaling {kind!r} is not supported")


def _original(config: ConfigReader, scaling: ConfigReader) -> int:
    """Positions before scaling: inside the rope section, at the top, or the model's own maximum."""
    top = config.size("original_max_position_embeddings", config.size("max_position_embeddings"))
    return scaling.size("original_max_position_embeddings", top)


def _yarn(config: ConfigReader, scaling: ConfigReader) -> YarnScaling:
    """Attention factor as in arXiv:2309.00071, section 3.4, and DeepSeek's two-sided form of it."""
    original = _original(config, scaling)
    factor = scaling.number("factor", config.size("max_position_embeddings") / original)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention = scaling.optional_number("attention_factor")
    if attention is None:
        weight, weight_all = scaling.optional_number("mscale"), scaling.optional_number("mscale_all_dim")
        both = weight is not None and weight_all is not None
        attention = magnitude(weight) / magnitude(weight_all) if both else magnitude(1.0)  # type: ignore[arg-type]
    return YarnScaling(
        factor,
        original,
        attention,
        scaling.number("beta_fast", 32.0),
        scaling.number("beta_slow", 1.0),
        scaling.flag("truncate", True),
    )


def _longrope(config: ConfigReader, scaling: ConfigReader, width: int) -> TableScaling:
    """LongRoPE, arXiv:2402.13753: the long factors when the model may be longer than its original maximum."""
    original, longest = _original(config, scaling), config.size("max_position_embeddings")
    factor = scaling.number("factor", longest / original)
    attention = scaling.optional_number("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return TableScaling(_factors(scaling, "long_factor" if longest > original else "short_factor", width), attention)


def _factors(scaling: ConfigReader, key: str, width: int) -> tuple[float, ...]:
    factors = scaling.numbers(key)
    if len(factors) != width // 2:
        raise CheckpointError(f"config: rope scaling has {len(factors)} values in {key}; {width // 2} are needed")
    return factors
