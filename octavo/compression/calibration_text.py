"""Which texts a model is calibrated with, and which it is judged by: windows of one length, cut from a file.

A file is plain text, or JSON lines with "text", "prompt" and "completion", or "messages" for the chat template. Without
one, public-domain prose that comes with the package is used (Doyle, Beard, Austen, Melville).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError, UserError
from octavo.text.tokenizer import Tokenizer

_DEFAULT = Path(__file__).parents[1] / "quantization" / "calibration.txt"
_MAX_BYTES = 64 << 20  # of a file: what is beyond is not read
_HELD_OUT = 8  # windows at most; never more than one in eight
# Of a text, so many characters for each token that is needed, and at least so many, are tokenized: that takes 150 bytes
# a character.
_CHARACTERS, _LEAST_CHARACTERS = 16, 1 << 20

Render = Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """calibration [samples, length] and held_out [windows, length]; no token is in both."""

    calibration: NDArray[np.int32]
    held_out: NDArray[np.int32]


def read_texts(path: Path | None, render: Render | None) -> list[str]:
    """The documents of a file; of the built-in text without one.

    Args:
        render: a conversation as the model's template writes it; None: the model has none.

    Raises:
        ConfigError: the file cannot be read, or a line is not what is expected; names the line.
    """
    place = path or _DEFAULT
    try:
        with place.open("rb") as file:
            raw = file.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"--calibration {place}: {error.strerror or error}") from None
    text = raw.decode("utf-8-sig", "replace")
    if place.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        lines = text.split("\n")[: -1 if len(raw) == _MAX_BYTES else None]
        return [_document(place, number, line, render) for number, line in enumerate(lines, 1) if line.strip()]
    return [document for document in text.split("\n\n") if document.strip()] if path is None else [text]


def cut(texts: Sequence[str], tokenizer: Tokenizer, samples: int, length: int) -> CalibrationText:
    """Windows of `length` tokens, from all over the texts; each begins as the model expects a text to begin.

    Raises:
        ConfigError: the texts are too short.
    """
    tokens: list[int] = []
    characters = max((samples + _HELD_OUT) * length * _CHARACTERS, _LEAST_CHARACTERS)
    for text in _excerpts(texts, characters, length * _CHARACTERS):
        tokens += tokenizer.encode(text, add_special_tokens=False)
        if len(texts) > 1 and tokenizer.eos_token_ids:
            tokens.append(tokenizer.eos_token_ids[0])
    first = tokenizer.encode("", add_special_tokens=True)[:1]
    step = length - len(first)
    count = len(tokens) // step
    if count < 2:
        raise ConfigError(
            f"the calibration text has {len(tokens)} tokens; two windows of {length} are the least "
            "(give a longer one, or a smaller --length)"
        )
    windows = np.array(tokens[: count * step], np.int32).reshape(count, step)
    if first:
        windows = np.concatenate([np.full((count, 1), first[0], np.int32), windows], axis=1)
    held = np.linspace(0, count - 1, max(min(_HELD_OUT, count // 8), 1) + 2).astype(int)[1:-1]
    rest = np.setdiff1d(np.arange(count), held)
    chosen = rest[np.unique(np.linspace(0, len(rest) - 1, min(samples, len(rest))).astype(int))]
    return CalibrationText(np.ascontiguousarray(windows[chosen]), np.ascontiguousarray(windows[held]))


def _excerpts(texts: Sequence[str], characters: int, piece: int) -> Sequence[str]:
    """About so many characters, in pieces from all over the texts; the texts themselves when they have no more."""
    total = sum(map(len, texts))
    if total <= characters:
        return texts
    pieces = [text[start : start + piece] for text in texts for start in range(0, len(text), piece)]
    count = max(len(pieces) * characters // total, 1)
    return [pieces[index] for index in np.unique(np.linspace(0, len(pieces) - 1, count).astype(int)).tolist()]


def _document(path: Path, number: int, line: str, render: Render | None) -> str:
    """The text of one JSON line."""
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"--calibration {path}: line {number} is not JSON") from None
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    messages = fields.get("messages")
    if isinstance(messages, list):
        if render is None:
            raise ConfigError(f"--calibration {path}: line {number} has messages, and the model no chat template")
        try:
            return _whole(render(cast(list[dict[str, Any]], messages)))
        except UserError as error:
            raise ConfigError(f"--calibration {path}: line {number}: {error}") from None
    found = [fields[key] for key in ("text", "prompt", "completion") if isinstance(fields.get(key), str)]
    if not found:
        raise ConfigError(f'--calibration {path}: line {number} has no "text", "prompt" or "messages"')
    return _whole("".join(found))


def _whole(text: str) -> str:
    """Halves of surrogate pairs, which JSON may have and tokenizers refuse, as question marks."""
    return text.encode("utf-8", "replace").decode()
