"""The tokenizer of XLM-RoBERTa and T5 out of a GGUF file: SentencePiece's unigram model with its own normalization.

Source: Kudo 2018, arXiv:1804.10959; the `tokenizer.ggml` keys that llama.cpp's converter writes for these models.
"""

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import Unigram

from octavo.errors import CheckpointError
from octavo.text.charsmap import check_charsmap
from octavo.text.pieces import SPACE_MARK, add_tokens, library_reads
from octavo.text.sentencepiece_model import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Pieces


def unigram_backend(
    pieces: Pieces, charsmap: bytes, add_space_prefix: bool, remove_extra_spaces: bool
) -> LibraryBackend:
    """The tokenizer over these pieces.

    Args:
        charsmap: SentencePiece's table of how characters are normalized; b"": as they are.

    Raises:
        CheckpointError: the pieces or the table are damaged.
    """
    unknown = next((number for number, kind in enumerate(pieces.kinds) if kind == UNKNOWN), None)
    if unknown is None:
        raise CheckpointError("the unigram vocabulary has no unknown token")
    if charsmap:
        check_charsmap(charsmap)
    scored = list(zip(pieces.texts, pieces.scores, strict=True))
    with library_reads("the unigram vocabulary is damaged"):
        backend = LibraryBackend(Unigram(scored, unk_id=unknown, byte_fallback=BYTE in pieces.kinds))
        steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if remove_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if add_space_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(replacement=SPACE_MARK, prepend_scheme=scheme)
    special = [AddedToken(text, normalized=False, special=True) for text in pieces.of_kind(CONTROL, UNKNOWN)]
    plain = [AddedToken(text, normalized=False, special=False) for text in pieces.of_kind(USER_DEFINED)]
    add_tokens(backend, [*special, *plain])
    return backend
