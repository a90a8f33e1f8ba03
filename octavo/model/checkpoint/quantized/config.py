"""Finds what a model's directory says about its quantization, in whichever file, and reads single values of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.json_files import read_json_if_present

# Beside config.json: AutoGPTQ's, AutoAWQ's and ModelOpt's own files.
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """What was said. method: in lower case, e.g. "gptq". where: the file, for messages."""

    method: str
    fields: Mapping[str, Any]
    where: str

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number.

        Raises:
            CheckpointError: it is missing or none.
        """
        value = self.fields.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckpointError(f"{self.where}: {key} should be a whole number, not {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; null means the default."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{self.where}: {key} should be true or false, not {value!r}")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        """A word, in lower case; null means the default."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"{self.where}: {key} should be a word, not {value!r}")
        return (value or default).lower()


def read_quantization(directory: Path, config: Mapping[str, Any]) -> QuantizationConfig | None:
    """The quantization of a model's directory; None when nothing speaks of one.

    Raises:
        CheckpointError: what is said is no JSON object.
        UnsupportedError: it does not name its method.
    """
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            where = f"{directory / 'config.json'}: {key}"
            fields = _fields(config[key], where)
            if "quant_method" not in fields and ("load_in_8bit" in fields or "load_in_4bit" in fields):
                return QuantizationConfig("bitsandbytes", fields, where)
            return QuantizationConfig(_method(fields.get("quant_method"), where), fields, where)
    for name, method in _FILES.items():
        said = read_json_if_present(directory / name)
        if said:
            fields = _fields(said.get("quantization", said), str(directory / name))
            return QuantizationConfig(_method(fields.get("quant_method", method), name), fields, str(directory / name))
    return None


def _fields(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is no JSON object")
    return cast(dict[str, Any], value)


def _method(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UnsupportedError(f"{where} does not say its quant_method, so that the weights cannot be read")
    return value.lower().replace("_", "-")
