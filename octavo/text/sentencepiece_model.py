"""A SentencePiece BPE vocabulary (pieces with scores) as a `tokenizers` backend with the same ids."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError
from octavo.text.pieces import SPACE_MARK, add_tokens, library_reads

# Kinds of piece, numbered as in GGUF's tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_BPE_MODEL = 2
_LONGEST_PIECE = 1024  # characters; the cuts of a piece take the square of it


class Pieces(NamedTuple):
    """A vocabulary in columns; a piece's index is its id, `kinds` are of the constants above."""

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]

    def of_kind(self, *kinds: int) -> list[str]:
        """Texts of the pieces of these kinds."""
        return [text for text, kind in zip(self.texts, self.kinds, strict=True) if kind in kinds]


def sentencepiece_backend(pieces: Pieces, add_space_prefix: bool) -> LibraryBackend:
    """BPE with byte fallback over these pieces.

    SentencePiece joins the neighbours whose union scores best; as ranked merges that is: for every piece, each way to
    cut it into two pieces, in the order of falling scores.

    Raises:
        CheckpointError: the pieces do not make a vocabulary.
    """
    marked = Pieces(list(map(_marked, pieces.texts, pieces.kinds)), pieces.scores, pieces.kinds)
    # Of equal texts the first keeps its id.
    vocab = dict(zip(reversed(marked.texts), range(len(marked.texts) - 1, -1, -1), strict=True))
    unknown = next(iter(pieces.of_kind(UNKNOWN)), "<unk>" if "<unk>" in vocab else None)
    longest = max(map(len, marked.texts), default=0)
    if longest > _LONGEST_PIECE:
        raise CheckpointError(f"the SentencePiece vocabulary has a piece of {longest} characters; it is damaged")
    with library_reads("the SentencePiece vocabulary is damaged"):
        model = BPE(
            vocab=vocab,
            merges=_merges(marked, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in pieces.kinds,
        )
    backend = LibraryBackend(model)
    mark = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark]) if add_space_prefix else mark
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space_prefix else steps)
    special = [AddedToken(text, normalized=False, special=True) for text in pieces.of_kind(CONTROL, UNKNOWN)]
    plain = [AddedToken(text, normalized=False, special=False) for text in marked.of_kind(USER_DEFINED)]
    add_tokens(backend, [*special, *plain])
    return backend


class SentencePieceFile(NamedTuple):
    """What a tokenizer.model holds."""

    pieces: Pieces
    is_bpe: bool
    add_dummy_prefix: bool


def read_sentencepiece(data: bytes) -> SentencePieceFile:
    """Read the protobuf message of a tokenizer.model.

    Format: sentencepiece_model.proto of google/sentencepiece; fields other than the ones named here are passed over.

    Raises:
        CheckpointError: it is damaged.
    """
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    model_type, dummy_prefix = 1, 1
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(_message(value)))
                texts.append(_message(piece[1]).decode())
                scores.append(struct.unpack("<f", _message(piece.get(2, bytes(4))))[0])
                kinds.append(_number(piece.get(3, NORMAL)))
            elif number == 2:
                model_type = _number(dict(_fields(_message(value))).get(3, model_type))
            elif number == 3:
                dummy_prefix = _number(dict(_fields(_message(value))).get(3, dummy_prefix))
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise CheckpointError(f"the SentencePiece model is damaged: {error}") from None
    return SentencePieceFile(Pieces(texts, scores, kinds), model_type == _BPE_MODEL, bool(dummy_prefix))


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


def _marked(text: str, kind: int) -> str:
    """Converters write the spaces of user-defined pieces plainly; the model sees them marked, like all others."""
    return text.replace(" ", SPACE_MARK) if kind == USER_DEFINED and not text.strip(" ") else text


def _merges(pieces: Pieces, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """User-defined and control pieces win over all scores and grow longest first; then normal ones by score."""
    texts, scores, kinds = pieces
    fixed: list[tuple[str, str]] = []
    _add_cuts(pieces.of_kind(UNKNOWN, CONTROL, USER_DEFINED, UNUSED), vocab, fixed)
    fixed.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
    ranked = sorted((i for i, kind in enumerate(kinds) if kind == NORMAL), key=lambda index: -scores[index])
    _add_cuts((texts[index] for index in ranked), vocab, fixed)
    return fixed


def _add_cuts(texts: Iterable[str], vocab: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Append the ways to cut each piece into two pieces, the longest left part first."""
    for text in texts:
        for cut in range(len(text) - 1, 0, -1):
            left = text[:cut]
            if left in vocab:
                right = text[cut:]
                if right in vocab:
                    merges.append((left, right))
