"""How one vocabulary entry is spelled in bytes: the rule that a tokenizer's decoder implies."""

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, cast

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryBackend

from octavo.errors import CheckpointError, OctavoError, UnsupportedError

SPACE_MARK = "\u2581"  # SentencePiece writes a space as U+2581
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable Latin-1 as itself, other bytes from U+0100 on.

    Source: GPT-2's encoder.py (Radford et al., 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return alphabet


@contextmanager
def library_reads(what: str) -> Generator[None, None, None]:
    """Around calls of the `tokenizers` library that take what a file says: whatever it finds wrong is the file's fault.

    Raises:
        CheckpointError: `what`, and the library's words.
    """
    try:
        yield
    except (OctavoError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # it raises plain Exception, and a panic in its Rust code is not even that
        raise CheckpointError(f"{what}: {error}") from None


def add_tokens(backend: LibraryBackend, tokens: Iterable[AddedToken]) -> None:
    """Add tokens that are matched in the text before all others; those new to the vocabulary get ids in this order."""
    library: Any = backend
    for special, group in groupby(tokens, key=lambda token: token.special):
        if special:
            library.add_special_tokens(list(group))
        else:
            library.add_tokens(list(group))


@dataclass(frozen=True, slots=True)
class Spelling:
    """Bytes of a piece, and whether a text that starts with a space loses it when a whole sequence is decoded."""

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool = False


def byte_level_spelling() -> Spelling:
    """Pieces in the byte-level alphabet; a piece with any other character stands for itself."""
    return Spelling(partial(_byte_level, byte_alphabet()))


def sentencepiece_spelling(strips_first_space: bool) -> Spelling:
    """Pieces with U+2581 for spaces and <0xNN> for single bytes."""
    return Spelling(_sentencepiece, strips_first_space)


def spelling_of(backend: LibraryBackend) -> Spelling:
    """The spelling of a tokenizer.json's decoder.

    Raises:
        UnsupportedError: a decoder that is not per-piece.
    """
    decoder: Any = backend.decoder
    if decoder is None:
        return Spelling(_spaced, strips_first_space=True)
    # The library shows a decoder's settings only as its serialized state.
    state = cast("dict[str, Any]", json.loads(decoder.__getstate__()))
    parts = cast("list[dict[str, Any]]", state["decoders"]) if state["type"] == "Sequence" else [state]
    kinds = {str(part["type"]): part for part in parts}
    if "ByteLevel" in kinds:
        return byte_level_spelling()
    if "WordPiece" in kinds:
        return Spelling(partial(_word_piece, str(kinds["WordPiece"]["prefix"])), strips_first_space=True)
    if "BPEDecoder" in kinds:
        return Spelling(partial(_suffixed, str(kinds["BPEDecoder"]["suffix"])))
    if "Metaspace" in kinds:
        return sentencepiece_spelling(_metaspace_strips(kinds["Metaspace"]))
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds:
        return sentencepiece_spelling(strips_first_space="Strip" in kinds)
    raise UnsupportedError(f"the tokenizer's decoder {' + '.join(kinds)} is not supported")


def _metaspace_strips(part: Mapping[str, Any]) -> bool:
    if "prepend_scheme" in part:
        return part["prepend_scheme"] != "never"
    return bool(part.get("add_prefix_space", True))


def _byte_level(alphabet: Mapping[str, int], piece: str) -> bytes:
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")


def _sentencepiece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def _word_piece(prefix: str, piece: str) -> bytes:
    return (piece[len(prefix) :] if piece.startswith(prefix) else " " + piece).encode()


def _suffixed(suffix: str, piece: str) -> bytes:
    return piece.replace(suffix, " ").encode()


def _spaced(piece: str) -> bytes:
    return (" " + piece).encode()
