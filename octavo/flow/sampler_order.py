"""In which order samplers narrow down a draw: the usual order, and one that a request gives instead."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import cast

from octavo.errors import InvalidRequestError


class Sampler(IntEnum):
    """What narrows down a draw, in the usual order; the native header's OctavoSampler has the same numbers."""

    TOP_N_SIGMA = 1
    TEMPERATURE = 2
    TYPICAL = 3
    MIN_P = 4
    TOP_K = 5
    TOP_P = 6
    XTC = 7


# By the names of llama.cpp's `samplers`: the parameters of each, with the values that are off.
PARAMETERS: dict[str, dict[str, float]] = {
    "penalties": {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "typ_p": {"typical_p": 1.0},
    "min_p": {"min_p": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "xtc": {"xtc_probability": 0.0},
}
# What cuts the list of candidates short.
FILTERS: dict[str, float] = {
    field: off
    for name, fields in PARAMETERS.items()
    if name not in ("penalties", "dry", "temperature")
    for field, off in fields.items()
}
_NUMBERS = dict(zip(list(PARAMETERS)[2:], Sampler, strict=True))
# Other spellings, as llama.cpp reads them; hyphens stand for underscores.
_ALIASES = {"typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "nucleus": "top_p", "temp": "temperature"}
# In a text without names each letter is a sampler: llama.cpp's short form, "edskypmxt" being its usual one.
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
_BITS = 4  # a sampler's in the packed order


def read_samplers(given: object) -> list[str]:
    """A request's `samplers`: each at most once, `penalties` and `dry` first.

    Args:
        given: a list of names, names with ";" between them, or a letter for each.

    Raises:
        InvalidRequestError: it is none of these.
    """
    if isinstance(given, str):
        given = _split(given)
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Sequence):
        raise _wrong(f"must be a list of names, got {given!r:.100}")
    items = cast("Sequence[object]", given)
    names = [_name(item) if isinstance(item, str) else repr(item) for item in items[: 2 * len(PARAMETERS)]]
    for name in names:
        if name not in PARAMETERS:
            raise _wrong(f"has {name[:32]!r}; there are {', '.join(PARAMETERS)}")
    if len(set(names)) < len(items):
        raise _wrong("names a sampler twice")
    first = [name for name in ("penalties", "dry") if name in names]
    if names[: len(first)] != first:
        raise _wrong("must begin with penalties and dry where it has them: they are applied before everything else")
    return names


def _name(spelling: str) -> str:
    plain = spelling.strip().replace("-", "_")
    return _ALIASES.get(plain, plain)


def _split(text: str) -> list[str]:
    """The names in a text: of one or several samplers, or a letter for each."""
    if ";" in text or _name(text) in PARAMETERS:
        return text.split(";")
    for letter in text:
        if letter not in _LETTERS:
            told = ", ".join(f"{letter} {name}" for letter, name in _LETTERS.items())
            raise _wrong(f"has {letter!r} for a letter; there are {told}")
    return [_LETTERS[letter] for letter in text]


def left_out(samplers: Iterable[str]) -> dict[str, float]:
    """The parameters of all samplers that are not among these, with the values that are off."""
    named = set(samplers)
    return {field: off for name, fields in PARAMETERS.items() if name not in named for field, off in fields.items()}


def pack(samplers: Sequence[str], params: object) -> int:
    """The order as native code reads it, the first sampler in the lowest bits; 0 when the usual one does the same.

    Args:
        params: has all parameters of PARAMETERS; samplers that are off have no place.
    """
    active = [
        _NUMBERS[name]
        for name in samplers
        if name in _NUMBERS and any(getattr(params, field) != off for field, off in PARAMETERS[name].items())
    ]
    if active == sorted(active):
        return 0
    return sum(number << _BITS * place for place, number in enumerate(active))


def unpack(order: int) -> list[Sampler]:
    """The samplers of a packed order, the first first; all in the usual order for 0."""
    places = range(0, order.bit_length(), _BITS)
    return [Sampler(order >> place & (1 << _BITS) - 1) for place in places] or list(Sampler)


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"samplers {what}", "samplers")
