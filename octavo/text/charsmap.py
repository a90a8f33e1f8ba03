"""Checks SentencePiece's table of how characters are normalized, which the `tokenizers` library trusts: it looks into
the table with the first text, and panics where that points to nothing.

Layout: the length of a double-array trie in bytes, its units of 32 bits, and the texts that its leaves point to, each
up to a zero byte. Source: Yata, darts-clone, double-array units; SentencePiece, normalizer.cc,
DecodePrecompiledCharsMap.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryBackend

from octavo.errors import CheckpointError

_BLOCK = 0xFF
_UTF8_BYTES = np.arange(1, 0xF5)


def check_charsmap(table: bytes) -> None:
    """Follow every path that a text can take.

    Raises:
        CheckpointError: one leads out of the table.
    """
    count = int.from_bytes(table[:4], "little") // 4
    texts = table[4 + 4 * count :]
    if not count or len(table) < 4 + 4 * count:
        raise _damaged("its trie is cut off")
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise _damaged("its texts are not UTF-8") from None
    units = np.frombuffer(table, "<u4", count, 4).astype(np.int64)
    labels = units & (1 << 31 | _BLOCK)
    offsets = (units >> 10) << ((units & 1 << 9) >> 6)
    places = np.arange(count)
    parents = places ^ labels  # where the node has to be whose child a unit is
    places = places[(labels > 0) & (labels <= _BLOCK) & (parents < count)]
    parents, leaf = parents[places], (units[places] >> 8 & 1) == 1
    after = places ^ offsets[places]  # where a unit's own children begin, and its leaf is
    seen = np.zeros(count, bool)
    new = offsets[:1]
    while len(new):
        edge = new[(new | _BLOCK) >= count]
        if ((edge[:, None] ^ _UTF8_BYTES) >= count).any():
            raise _damaged("its trie points outside of itself")
        fresh = np.zeros(count, bool)
        fresh[new[new < count]] = True
        fresh &= ~seen
        seen |= fresh
        reached = fresh[parents]
        _check_ends(units, after[reached & leaf], texts)
        new = after[reached]


def _check_ends(units: NDArray[np.int64], ends: NDArray[np.int64], texts: bytes) -> None:
    if (ends >= len(units)).any():
        raise _damaged("its trie points outside of itself")
    values = units[ends] & (1 << 31) - 1
    if (values > len(texts)).any():
        raise _damaged("its trie points behind its texts")
    firsts = np.frombuffer(texts + b"\0", np.uint8)[values]
    if ((firsts & 0xC0) == 0x80).any():
        raise _damaged("its trie points into the middle of a character")


def check_normalizer(backend: LibraryBackend) -> None:
    """Check the tables that a tokenizer normalizes by.

    Raises:
        CheckpointError: one is damaged.
    """
    normalizer: Any = backend.normalizer
    if normalizer is None:
        return
    state = cast("bytes", normalizer.__getstate__())
    if b'"Precompiled"' not in state:
        return
    for table in _tables(json.loads(state)):
        check_charsmap(table)


def _tables(state: object) -> Iterator[bytes]:
    if isinstance(state, list):
        for item in cast("list[object]", state):
            yield from _tables(item)
    elif isinstance(state, Mapping):
        fields = cast("Mapping[str, object]", state)
        table = fields.get("precompiled_charsmap")
        if isinstance(table, str):
            yield base64.b64decode(table)
        yield from _tables(list(fields.values()))


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"the tokenizer's table of characters (precompiled_charsmap) is damaged: {why}")
