"""A SentencePiece BPE vocabulary (pieces with scores) as a `tokenizers` backend with the same ids."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError
from octavo.text.pieces import SPACE_MARK, add_tokens

# Kinds of piece, numbered as in GGUF's tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


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
