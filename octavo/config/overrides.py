"""Values of `--hf-overrides`, which replace those of a model's config.json."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from octavo.errors import ConfigError


def read_overrides(given: str | None) -> dict[str, Any]:
    """The values of a JSON text; none without one.

    Raises:
        ConfigError: it is no JSON object.
    """
    if given is None:
        return {}
    try:
        values = msgspec.json.decode(given)
    except msgspec.DecodeError as error:
        raise ConfigError(f"hf_overrides is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError('hf_overrides must be a JSON object, for example {"architectures": ["LlamaModel"]}')
    return cast(dict[str, Any], values)


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with values replaced; those of a part (text_config and the like) one by one, as in vLLM."""
    found = dict(config)
    for name, value in overrides.items():
        before: object = found.get(name)
        if name.endswith("_config") and isinstance(value, Mapping) and isinstance(before, Mapping):
            value = overridden(cast(Mapping[str, Any], before), cast(Mapping[str, Any], value))
        found[name] = value
    return found
