"""How a value written by a person becomes an option's value: sizes, counts, choices, switches, lists."""

import json
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from octavo.errors import ConfigError

# vLLM's reading of counts: lower case is decimal, upper case binary (4k = 4000, 4K = 4096).
_COUNT_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**n for n, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**n for n, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{unit: 1024**n for n, unit in enumerate(("k", "m", "g", "t"), 1)},
}
_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "fp8_per_token_head": "fp8_e4m3",
    "int8_per_token_head": "int8",
    "int4_per_token_head": "int4",
}
_LEAST_SIZE = 1 << 20  # bytes; a smaller number without a unit is meant as a share
_MOST_DIGITS = 30  # of a number: more than anything that can be meant, less than what takes long to read
_MOST_BYTES = 1 << 60
_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse_count(text: str) -> int:
    """A whole number with an optional unit: "4096", "4k" (4000), "4K" (4096), "1.5k", "1M".

    Raises:
        ConfigError: no such number.
    """
    match = re.fullmatch(r"(-?\d+)|(\d+(?:\.\d+)?)([kmgKMG])", text.strip())
    if match is None or len(match[0]) > _MOST_DIGITS:
        raise ConfigError(f"{_shown(text)} is no whole number; 4096, 4k (4000) and 4K (4096) are understood")
    if match[1]:
        return int(match[1])
    return round(float(match[2]) * _COUNT_UNITS[match[3]])


def parse_size(text: str | int) -> int:
    """A number of bytes: 1073741824, "1GiB", "1.5 GB", "512MiB", "2g" (binary).

    Raises:
        ConfigError: no such size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(text).strip().lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ConfigError(f"{_shown(text)} is no size; 512MiB, 2GiB or a number of bytes are understood")
    size = float(match[1]) * _SIZE_UNITS[match[2]]
    if size > _MOST_BYTES:
        raise ConfigError(f"{_shown(text)} is more than any machine has; give a size such as 512MiB or 2GiB")
    return round(size)


def _shown(text: object) -> str:
    """What somebody wrote, in an error: its beginning is enough."""
    text = str(text)
    return repr(text if len(text) <= 2 * _MOST_DIGITS else text[: 2 * _MOST_DIGITS] + "...")


def parse_cache_size(text: str) -> float | int:
    """ "0.9" or "90%": a share, as float; "8GiB", "512MiB" or a number of bytes: as int.

    Raises:
        ConfigError: neither, or a share outside 0 .. 1.
    """
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    plain = re.fullmatch(r"\d*\.?\d+(?:e-?\d+)?", text.strip().lower())
    if percent or (plain and float(plain[0]) < _LEAST_SIZE):
        share = float(percent[1]) / 100 if percent else float(text)
        if not 0 < share <= 1:
            raise ConfigError(f"{_shown(text)} is no share of what is free (0.01 .. 1), and a size has a unit, as 8GiB")
        return share
    try:
        size = parse_size(text)
    except ConfigError as error:
        if re.fullmatch(r"[\d.]+\s*[a-z]*", text.strip().lower()):  # a size that is too large, or with a wrong unit
            raise
        raise ConfigError(f"{_shown(text)} is neither a share such as 0.9 nor a size such as 8GiB") from error
    if size == 0:
        raise ConfigError(f"{_shown(text)} leaves no cache at all")
    return size


def format_size(count: float) -> str:
    """Bytes for people: "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def coerce(name: str, kind: object, value: object, metadata: Mapping[str, Any]) -> object:
    """Bring `value` (text of a command line, YAML, or a Python object) to option `name`'s type `kind`.

    Args:
        metadata: the field's: `within` are the least and largest number, `size` tells that a text is a number of bytes,
            `cache_size` that it is one or a share, `words` are values that are taken as they are.

    Raises:
        ConfigError: it cannot be that type; names the option and what would be right.
    """
    if value in metadata.get("words", ()):
        return value
    try:
        result = _coerce(name, kind, value)
        if metadata.get("size") and result is not None:
            parse_size(str(result))
        if metadata.get("cache_size") and result is not None:
            parse_cache_size(str(result))
        if metadata.get("within") and isinstance(result, (int, float)):
            low, high = metadata["within"]
            if not low <= result <= high:
                raise ConfigError(f"{result} is outside {low} .. {high}")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return result


def _coerce(name: str, kind: object, value: object) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _coerce_optional(name, arguments, value)
    if origin is Literal:
        return _coerce_choice(arguments, value)
    if origin is tuple:
        return _coerce_list(value)
    if kind is bool:
        return _coerce_switch(value)
    if kind is int:
        return _coerce_int(value)
    if kind is float:
        return _coerce_float(value)
    return _as_text(value)


def _as_text(value: object) -> str:
    """A text; of a mapping or a settings object its JSON."""
    if isinstance(value, (Mapping, msgspec.Struct)):
        return msgspec.json.encode(value).decode()
    return str(value)


def _coerce_optional(name: str, arguments: tuple[object, ...], value: object) -> object:
    if value is None or (isinstance(value, str) and value in ("auto", "None", "none")):
        return None
    if name == "max_model_len" and value in (-1, "-1"):  # vLLM's spelling of "decide for me"
        return None
    (inner,) = (argument for argument in arguments if argument is not NoneType)
    return _coerce(name, inner, value)


def _coerce_choice(choices: tuple[object, ...], value: object) -> object:
    text = str(value).removeprefix("torch.")  # a torch.dtype is welcome where a type is named
    by_name = {str(choice): choice for choice in choices}
    text = text if text in by_name else _ALIASES.get(text, text)
    if text not in by_name:
        raise ConfigError(f"{text!r} is none of {', '.join(by_name)}")
    return by_name[text]


def _coerce_list(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]  an untyped list from YAML
        # One item may be a whole list as vLLM writes it on a command line: --allowed-origins '["a","b"]'.
        return _json_list(items[0]) if len(items) == 1 and _is_json_list(items[0]) else tuple(map(str, items))
    if _is_json_list(value):
        return _json_list(value)
    return tuple(part for part in re.split(r"[,\s]+", str(value)) if part)


def _is_json_list(value: object) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("[") and value.rstrip().endswith("]")


def _json_list(value: object) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(str(value))))
    except ValueError:
        raise ConfigError(f"{value!r} is no list; write the values one after another, or as a JSON list") from None


def _coerce_switch(value: object) -> bool:
    switch = value if isinstance(value, bool) else _SWITCH.get(str(value).lower())
    if switch is None:
        raise ConfigError(f"{value!r} is neither true nor false")
    return switch


def _coerce_int(value: object) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{value!r} is no whole number")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else parse_count(str(value))


def _coerce_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(f"{value!r} is no number") from None
