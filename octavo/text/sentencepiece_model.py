"""A SentencePiece BPE vocabulary (pieces with scores) as a `tokenizers` backend with the same ids."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError
from octavo.text.pieces import SPACE_MARK, add_tokens

# Kinds of piece, numbered as in GGUF's tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


_BPE_MODEL = 2


class Piece(NamedTuple):
    """One vocabulary entry; `kind` is one of the constants above."""

    text: str
    score: float
    kind: int


def sentencepiece_backend(pieces: Sequence[Piece], add_space_prefix: bool) -> LibraryBackend:
    """BPE with byte fallback over these pieces; a piece's index is its id.

    SentencePiece joins the neighbours whose union scores best; as ranked merges that is: for every piece, each way to
    cut it into two pieces, in the order of falling scores.

    Raises:
        CheckpointError: the pieces do not make a vocabulary.
    """
    texts = [_marked(piece) for piece in pieces]
    vocab: dict[str, int] = {}
    for index, text in enumerate(texts):
        vocab.setdefault(text, index)
    unknown = next((piece.text for piece in pieces if piece.kind == UNKNOWN), "<unk>" if "<unk>" in vocab else None)
    try:
        model = BPE(
            vocab=vocab,
            merges=_merges(pieces, texts, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=any(piece.kind == BYTE for piece in pieces),
        )
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"the SentencePiece vocabulary is damaged: {error}") from None
    backend = LibraryBackend(model)
    mark = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark]) if add_space_prefix else mark
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space_prefix else steps)
    special = [AddedToken(p.text, normalized=False, special=True) for p in pieces if p.kind in (CONTROL, UNKNOWN)]
    plain = [
        AddedToken(text, normalized=False, special=False)
        for piece, text in zip(pieces, texts, strict=True)
        if piece.kind == USER_DEFINED
    ]
    add_tokens(backend, [*special, *plain])
    return backend


class SentencePieceFile(NamedTuple):
    """What a tokenizer.model holds."""

    pieces: list[Piece]
    is_bpe: bool
    add_dummy_prefix: bool


def read_sentencepiece(data: bytes) -> SentencePieceFile:
    """Read the protobuf message of a tokenizer.model.

    Format: sentencepiece_model.proto of google/sentencepiece; fields other than the ones named here are passed over.

    Raises:
        CheckpointError: it is damaged.
    """
    pieces: list[Piece] = []
    model_type, dummy_prefix = 1, 1
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(_message(value)))
                score = struct.unpack("<f", _message(piece.get(2, bytes(4))))[0]
                pieces.append(Piece(_message(piece[1]).decode(), score, _number(piece.get(3, NORMAL))))
            elif number == 2:
                model_type = _number(dict(_fields(_message(value))).get(3, model_type))
            elif number == 3:
                dummy_prefix = _number(dict(_fields(_message(value))).get(3, dummy_prefix))
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise CheckpointError(f"the SentencePiece model is damaged: {error}") from None
    return SentencePieceFile(pieces, model_type == _BPE_MODEL, bool(dummy_prefix))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}[wire]
        if at + size > len(data):
            raise ValueError("a field is longer than the file")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where bytes were expected")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("bytes where a number was expected")
    return value


def _marked(piece: Piece) -> str:
    """Converters write the spaces of user-defined pieces plainly; the model sees them marked, like all others."""
    if piece.kind == USER_DEFINED and not piece.text.strip(" "):
        return piece.text.replace(" ", SPACE_MARK)
    return piece.text


def _merges(pieces: Sequence[Piece], texts: Sequence[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """User-defined and control pieces win over all scores and grow longest first; then normal ones by score."""
    fixed: list[tuple[str, str]] = []
    ranked = sorted(
        (index for index, piece in enumerate(pieces) if piece.kind == NORMAL and len(texts[index]) > 1),
        key=lambda index: -pieces[index].score,
    )
    for index, piece in enumerate(pieces):
        if piece.kind not in (NORMAL, BYTE):
            fixed += _cuts(texts[index], vocab)
    fixed.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
    merges = fixed
    for index in ranked:
        merges += _cuts(texts[index], vocab)
    return merges


def _cuts(text: str, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Ways to cut a piece into two pieces, the longest left part first."""
    return [
        (text[:cut], text[cut:]) for cut in range(len(text) - 1, 0, -1) if text[:cut] in vocab and text[cut:] in vocab
    ]
