"""What a model's generation_config.json says about how its answers are drawn, and about where they end."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

_SAMPLING = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")


def end_ids(value: object) -> tuple[int, ...]:
    """`eos_token_id` of a configuration file: nothing, one id or several."""
    values = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else (value,)
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))


def defaults_from(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation_config.json says about SamplingParams; its `max_new_tokens` is our `max_tokens`."""
    known = {name: generation_config[name] for name in _SAMPLING if generation_config.get(name) is not None}
    if generation_config.get("do_sample") is False and "temperature" not in known:
        known["temperature"] = 0.0
    if generation_config.get("max_new_tokens") is not None:
        known["max_tokens"] = generation_config["max_new_tokens"]
    return known
