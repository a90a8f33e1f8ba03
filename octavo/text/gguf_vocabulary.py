"""The tokenizer that a GGUF file's metadata describes, with the ids of the original one.

Reads a dict of the file's `tokenizer.ggml.*` keys: the file reader lives on a higher floor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.pieces import add_tokens, byte_level_spelling, library_reads, sentencepiece_spelling, spelling_of
from octavo.text.pre_tokenizers import install, pre_tokenizer
from octavo.text.sentencepiece_model import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Pieces,
    sentencepiece_backend,
)
from octavo.text.tokenizer import LibraryTokenizer, TokenizerFacts, frame
from octavo.text.unigram import unigram_backend
from octavo.text.word_piece import BERT_SETTINGS, WordPieceRules, frame_pairs, unmarked, word_piece_backend

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the format spells it so
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
# Chat models end a turn with these; older files name only the end of text.
_END_OF_TURN = frozenset(["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>"])


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> LibraryTokenizer:
    """Build the tokenizer of a GGUF file.

    Args:
        metadata: the file's key-value pairs; arrays as sequences.

    Raises:
        CheckpointError: keys are missing, of the wrong type, or contradict each other.
        UnsupportedError: a kind or a pre-tokenizer that Octavo does not have.
    """
    kind = metadata.get(_PREFIX + "model")
    if kind is None:
        raise CheckpointError("the GGUF file has no tokenizer (no tokenizer.ggml.model); name one with --tokenizer")
    tokens = _strings(metadata, "tokens")
    kinds = _kinds(metadata, len(tokens))
    count = _unpadded(metadata, tokens, kinds)
    tokens, kinds = tokens[:count], kinds[:count]
    if kind == "gpt2":
        return _byte_level(metadata, tokens, kinds)
    if kind == "llama":
        return _sentencepiece(metadata, tokens, kinds)
    if kind == "bert":
        return _word_piece(metadata, tokens, kinds)
    if kind == "t5":
        return _unigram(metadata, tokens, kinds)
    raise UnsupportedError(
        f"GGUF tokenizer kind {kind!r} is not supported (gpt2, llama, bert and t5 are); name one with --tokenizer"
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> LibraryTokenizer:
    rule = pre_tokenizer(str(metadata.get(_PREFIX + "pre", "default")))
    merges: list[tuple[str, str]] = []
    for merge in _strings(metadata, "merges"):
        left, separator, right = merge.partition(" ")
        if not separator or not right or " " in right:
            raise CheckpointError(f"tokenizer.ggml.merges: {merge!r} is not a pair of tokens")
        merges.append((left, right))
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocab.setdefault(token, token_id)
    with library_reads("tokenizer.ggml.tokens and merges do not fit"):
        backend = LibraryBackend(BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words))
    install(backend, rule)
    if metadata.get(_PREFIX + "add_space_prefix", False):
        raise UnsupportedError("byte-level GGUF tokenizers with add_space_prefix are not supported")
    backend.decoder = decoders.ByteLevel()
    for kind in ((CONTROL, UNKNOWN), (USER_DEFINED,)):
        chosen = [token for token, own in zip(tokens, kinds, strict=True) if own in kind]
        add_tokens(backend, [AddedToken(t, normalized=False, special=USER_DEFINED not in kind) for t in chosen])
    facts = _facts(metadata, tokens, kinds)
    _frame(backend, metadata, tokens, adds_bos=rule.adds_bos)
    bos, eos = facts.special_tokens.get("bos_token"), facts.special_tokens.get("eos_token")
    if metadata.get("general.architecture") == "bert" and bos is not None and eos is not None:  # RoBERTa
        frame_pairs(backend, bos, eos, 2, types=False)
    return LibraryTokenizer(backend, byte_level_spelling(), facts)


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> LibraryTokenizer:
    scores = _numbers(metadata, "scores", len(metadata[_PREFIX + "tokens"]), (int, float))[: len(tokens)]
    add_space_prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    backend = sentencepiece_backend(Pieces(tokens, list(map(float, scores)), kinds), add_space_prefix)
    facts = _facts(metadata, tokens, kinds)
    _frame(backend, metadata, tokens, adds_bos=True)
    return LibraryTokenizer(backend, sentencepiece_spelling(add_space_prefix), facts)


def _word_piece(metadata: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> LibraryTokenizer:
    facts = _facts(metadata, tokens, kinds)
    roles = {"cls_token": facts.special_tokens.get("bos_token", "[CLS]"), **BERT_SETTINGS, **facts.special_tokens}
    special = [kind in (CONTROL, UNKNOWN) or token in roles.values() for token, kind in zip(tokens, kinds, strict=True)]
    pieces = unmarked(tokens, special)
    first = roles["cls_token"] if roles["cls_token"] in pieces else roles.get("bos_token", "")
    lowercase: object = metadata.get(_PREFIX + "normalizer.lowercase")
    if lowercase is None:  # of a vocabulary with capitals, they are meant
        words = (
            piece for piece, kind in zip(pieces, kinds, strict=True) if kind == NORMAL and not piece.startswith("[")
        )
        lowercase = not any(piece != piece.lower() for piece in words)
    rules = WordPieceRules(first, roles["sep_token"], roles["unk_token"], bool(lowercase))
    backend = word_piece_backend(pieces, rules, [token for token, own in zip(tokens, special, strict=True) if own])
    return LibraryTokenizer(backend, spelling_of(backend), replace(facts, pieces=pieces))


def _unigram(metadata: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> LibraryTokenizer:
    scores = _numbers(metadata, "scores", len(tokens), (int, float))
    prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    given = cast("list[Any]", metadata.get(_PREFIX + "precompiled_charsmap") or [])
    if not isinstance(cast(object, given), list) or not all(isinstance(number, int) for number in given):
        raise CheckpointError("tokenizer.ggml.precompiled_charsmap is no array of bytes")
    charsmap = bytes(number & 255 for number in given)
    extra = bool(metadata.get(_PREFIX + "remove_extra_whitespaces", True))
    backend = unigram_backend(Pieces(tokens, list(map(float, scores)), kinds), charsmap, prefix, extra)
    facts = _facts(metadata, tokens, kinds)
    bos, eos = facts.special_tokens.get("bos_token"), facts.special_tokens.get("eos_token")
    if bos is not None and eos is not None and metadata.get(_PREFIX + "add_bos_token", True):
        frame_pairs(backend, bos, eos, 2, types=False)
    else:
        _frame(backend, metadata, tokens, adds_bos=False)
    return LibraryTokenizer(backend, sentencepiece_spelling(prefix), facts)


def _frame(backend: LibraryBackend, metadata: Mapping[str, Any], tokens: Sequence[str], adds_bos: bool) -> None:
    """`add_bos_token` and `add_eos_token`, or what this kind does where the file is silent."""
    bos = _token_id(metadata, "bos_token_id", len(tokens))
    eos = _token_id(metadata, "eos_token_id", len(tokens))
    add_bos = bool(metadata.get(_PREFIX + "add_bos_token", adds_bos)) and bos is not None
    add_eos = bool(metadata.get(_PREFIX + "add_eos_token", False)) and eos is not None
    frame(
        backend,
        [tokens[bos]] if add_bos and bos is not None else [],
        [tokens[eos]] if add_eos and eos is not None else [],
    )


def _facts(metadata: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> TokenizerFacts:
    ids = {role: _token_id(metadata, key, len(tokens)) for role, key in _ROLES.items()}
    special = {role: tokens[token_id] for role, token_id in ids.items() if token_id is not None}
    named = [ids["eos_token"], *(_token_id(metadata, key, len(tokens)) for key in ("eot_token_id", "eom_token_id"))]
    found = [i for i, kind in enumerate(kinds) if kind == CONTROL and tokens[i] in _END_OF_TURN]
    eos = dict.fromkeys(token_id for token_id in (*named, *found) if token_id is not None)
    return TokenizerFacts(tuple(eos), ids["bos_token"], special, tokens)


def _token_id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise CheckpointError(f"tokenizer.ggml.{key} is {value!r}, but the vocabulary has {count} tokens")
    return value


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value: object = metadata.get(_PREFIX + key)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise CheckpointError(f"tokenizer.ggml.{key} is missing or not an array")
    strings = list(cast("Sequence[Any]", value))
    if not all(isinstance(item, str) for item in strings):
        raise CheckpointError(f"tokenizer.ggml.{key} holds something that is not a string")
    return strings


def _kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    if metadata.get(_PREFIX + "token_type") is None:
        return [NORMAL] * count
    return [int(kind) for kind in _numbers(metadata, "token_type", count, (int,))]


def _unpadded(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> int:
    """How many ids stand for tokens. Converters call the rows of a padded vocabulary unused, and by their number."""
    roles = {metadata.get(_PREFIX + key) for key in _ROLES.values()}
    count = len(tokens)
    while count and kinds[count - 1] == UNUSED and tokens[count - 1] == f"[PAD{count - 1}]" and count - 1 not in roles:
        count -= 1
    return count


def _numbers(metadata: Mapping[str, Any], key: str, count: int, kinds: tuple[type, ...]) -> Sequence[Any]:
    """An array with one number a token. The file gives all its elements one type, so the first tells for all."""
    value: object = metadata.get(_PREFIX + key)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise CheckpointError(f"tokenizer.ggml.{key} is missing or not an array")
    numbers = cast("Sequence[Any]", value)
    if len(numbers) != count:
        raise CheckpointError(f"tokenizer.ggml.{key} has {len(numbers)} entries for {count} tokens")
    if count and not isinstance(numbers[0], kinds):
        raise CheckpointError(f"tokenizer.ggml.{key} holds {numbers[0]!r}; numbers are needed")
    return numbers
