"""The `tokenizer.ggml.*` metadata of a GGUF file, from a tokenizer in Hugging Face layout.

The inverse of gguf_vocabulary.py, which is asked at the end whether it reads the same tokenizer out of it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, install
from octavo.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_sentencepiece,
)
from octavo.text.tokenizer import LibraryTokenizer

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Names that readers have had longest come first, where several stand for one rule.
_NAMES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "llama4", "falcon", "stablelm2", "smaug-bpe")
# Everything on which rules differ: case of contractions, runs of digits, spaces and lines, marks, other scripts.
_PROBE = (
    "Hello World's can't CAN'T we'Ll  don\u2019t 1234567 12,345.678 3.14e-10 ½ ²³ x=1+y**2; foo_bar(baz)->qux!?\n\n\n"
    "  leading\tand trailing  \r\n\r\n a\u0301e\u0308 \u00e9\u0065\u0301 naïve Straße ΑΒγδ Привет МИР 你好世界 "
    "こんにちは 안녕하세요 العربية हिन्दी ไทย 🙂👍🏽 “quoted” — (see §4) [x]{y} @user #tag $5.00 100% a/b\\c ~`^|<>  "
    "\u00a0end HTTPServer XMLHttp iOS"
)

Metadata = dict[str, Any]


def tokenizer_metadata(tokenizer: LibraryTokenizer, directory: Path, vocab: int) -> Metadata:
    """Metadata that describes the tokenizer, for a model with `vocab` embeddings.

    Args:
        directory: where a tokenizer.model may be, whose scores are then used.

    Raises:
        UnsupportedError: GGUF has no form for it, or none that would give the same tokens.
    """
    state = tokenizer.serialized()
    model = cast(dict[str, Any], state.get("model") or {})
    if model.get("type") != "BPE":
        raise UnsupportedError(
            f"a tokenizer of the kind {model.get('type')} has no GGUF form that Octavo writes; use --method int8 or fp8"
        )
    pieces, kinds = _pieces(state, model, vocab)
    decoder = json.dumps(state.get("decoder"))
    if '"ByteLevel"' in decoder:
        metadata = _byte_level(state, model, pieces, kinds)
    elif model.get("byte_fallback"):
        metadata = _sentencepiece(state, model, pieces, kinds, directory)
    else:
        raise UnsupportedError("the tokenizer is BPE, but neither of bytes nor with bytes to fall back to")
    metadata |= _special(tokenizer)
    _check(tokenizer, metadata)
    return metadata


def _pieces(state: Mapping[str, Any], model: Mapping[str, Any], vocab: int) -> tuple[list[str], list[int]]:
    """The text and kind of every id; ids without a token are unused."""
    entries = {int(number): text for text, number in cast(dict[str, Any], model["vocab"]).items()}
    added = {int(token["id"]): token for token in cast(list[dict[str, Any]], state.get("added_tokens") or [])}
    count = max(vocab, max(entries, default=-1) + 1, max(added, default=-1) + 1)
    if count > vocab:
        raise CheckpointError(f"the tokenizer has ids up to {count - 1}, the model {vocab} embeddings")
    pieces: list[str] = []
    kinds: list[int] = []
    for number in range(count):
        token = added.get(number)
        if token is not None:
            pieces.append(str(token["content"]))
            kinds.append(CONTROL if token.get("special") else USER_DEFINED)
        elif number in entries:
            pieces.append(str(entries[number]))
            kinds.append(NORMAL)
        else:
            pieces.append(f"[PAD{number}]")
            kinds.append(UNUSED)
    return pieces, kinds


def _byte_level(
    state: Mapping[str, Any], model: Mapping[str, Any], pieces: Sequence[str], kinds: Sequence[int]
) -> Metadata:
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in cast(list[Any], model["merges"])]
    return {
        _PREFIX + "model": "gpt2",
        _PREFIX + "pre": _rule_name(state, bool(model.get("ignore_merges"))),
        _PREFIX + "tokens": list(pieces),
        _PREFIX + "token_type": list(kinds),
        _PREFIX + "merges": merges,
    }


def _rule_name(state: Mapping[str, Any], whole_words: bool) -> str:
    """The name of the rule that cuts as the tokenizer does, found by cutting.

    Raises:
        UnsupportedError: none does.
    """
    own = LibraryBackend.from_str(json.dumps({**state, "post_processor": None}))
    normalizer: Any = own.normalizer
    composes = normalizer is not None and '"NFC"' in json.dumps(state.get("normalizer"))
    if normalizer is not None and not composes:
        raise UnsupportedError("the tokenizer changes its text in a way that GGUF files cannot say")
    if own.pre_tokenizer is None:
        raise UnsupportedError("the tokenizer does not cut its text, which GGUF files cannot say")
    wanted = _cuts(own)
    for name in (*_NAMES, *PRE_TOKENIZERS):
        rule = PRE_TOKENIZERS[name]
        if rule.whole_words == whole_words and rule.composes == composes and _cuts(_with_rule(rule)) == wanted:
            return name
    raise UnsupportedError("the tokenizer cuts its text by a rule that has no name in GGUF files")


def _with_rule(rule: PreTokenizer) -> LibraryBackend:
    backend = LibraryBackend(BPE())
    install(backend, rule)
    return backend


def _cuts(backend: LibraryBackend) -> list[str]:
    pre_tokenizer: Any = backend.pre_tokenizer
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(_PROBE)]


def _sentencepiece(
    state: Mapping[str, Any],
    model: Mapping[str, Any],
    pieces: list[str],
    kinds: list[int],
    directory: Path,
) -> Metadata:
    unknown = model.get("unk_token")
    for number, piece in enumerate(pieces):
        if kinds[number] != USER_DEFINED and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            kinds[number] = BYTE
        elif piece == unknown:
            kinds[number] = UNKNOWN
    written = json.dumps([state.get("normalizer"), state.get("pre_tokenizer")])
    prefix = '"Prepend"' in written or '"prepend_scheme": "first"' in written or '"prepend_scheme": "always"' in written
    return {
        _PREFIX + "model": "llama",
        _PREFIX + "pre": "default",
        _PREFIX + "tokens": pieces,
        _PREFIX + "scores": _scores(model, pieces, directory),
        _PREFIX + "token_type": kinds,
        _PREFIX + "add_space_prefix": prefix,
    }


def _scores(model: Mapping[str, Any], pieces: Sequence[str], directory: Path) -> list[float]:
    """Those of tokenizer.model; without one, the earlier a merge makes a piece the higher its score."""
    path = directory / "tokenizer.model"
    if path.is_file():
        known = read_sentencepiece(path.read_bytes()).pieces
        scores = dict(zip(known.texts, known.scores, strict=True))
        return [float(scores.get(piece, 0.0)) for piece in pieces]
    ranks: dict[str, int] = {}
    merges = cast(list[Any], model["merges"])
    for rank, pair in enumerate(merges):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        ranks.setdefault(left + right, rank)
    return [-float(ranks.get(piece, len(merges))) for piece in pieces]


def _special(tokenizer: LibraryTokenizer) -> Metadata:
    """Ids of the special tokens, and whether every text gets a first or a last one."""
    metadata: Metadata = {}
    for role, key in _ROLES.items():
        number = tokenizer.id_of(tokenizer.special_tokens.get(role, ""))
        if number is not None:
            metadata[_PREFIX + key] = number
    if tokenizer.eos_token_ids:
        metadata[_PREFIX + "eos_token_id"] = tokenizer.eos_token_ids[0]
    if tokenizer.bos_token_id is not None:
        metadata[_PREFIX + "bos_token_id"] = tokenizer.bos_token_id
    plain, framed = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    extra = len(framed) - len(plain)
    metadata[_PREFIX + "add_bos_token"] = extra > 0 and framed[0] == tokenizer.bos_token_id
    metadata[_PREFIX + "add_eos_token"] = (
        extra > 0 and framed[-1] in tokenizer.eos_token_ids and framed[-1] != plain[-1]
    )
    return metadata


def _check(tokenizer: LibraryTokenizer, metadata: Metadata) -> None:
    """Read the metadata back.

    Raises:
        UnsupportedError: that gives other tokens.
    """
    back = tokenizer_from_metadata(metadata)
    texts = [_PROBE, *(f"{token} a{token}b" for token in list(tokenizer.special_tokens.values())[:8])]
    if any(back.encode(text) != tokenizer.encode(text) for text in texts):
        raise UnsupportedError("the tokenizer cannot be written into a GGUF file so that it gives the same tokens")
