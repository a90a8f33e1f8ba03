"""Which files of a model directory make its tokenizer, and how each kind becomes a `tokenizers` backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import BPE

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.charsmap import check_normalizer
from octavo.text.json_files import read_json_if_present
from octavo.text.pieces import add_tokens, library_reads
from octavo.text.sentencepiece_model import read_sentencepiece, sentencepiece_backend
from octavo.text.word_piece import BERT_SETTINGS, MPNET_SETTINGS, read_vocabulary, rules_of, word_piece_backend

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What Llama's directories leave unsaid.
_SENTENCEPIECE_SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
_END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token, in directories that name none


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """`tokens`: role -> text. `contents`: every special token's text, the additional ones included."""

    tokens: Mapping[str, str]
    contents: tuple[str, ...]

    @staticmethod
    def read(settings: Mapping[str, Any]) -> "SpecialTokens":
        """From tokenizer_config.json and special_tokens_map.json, merged."""
        tokens = {name: text for name in _NAMED if (text := _content(settings.get(name))) is not None}
        extra: object = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
        if isinstance(extra, dict):
            named = cast("dict[str, Any]", extra)
            tokens.update({role: text for role, value in named.items() if (text := _content(value)) is not None})
            extra = list(named.values())
        if not isinstance(extra, list):
            raise CheckpointError(f"the tokenizer's additional special tokens are {extra!r}, not a list")
        listed = [_content(value) for value in cast("list[Any]", extra)]
        contents = dict.fromkeys([*tokens.values(), *(text for text in listed if text is not None)])
        return SpecialTokens(tokens, tuple(contents))


def tokenizer_json(directory: Path, path: Path) -> Path | None:
    """`path` itself where that is a .json file, or the directory's tokenizer.json, or None."""
    fast = path if path.suffix == ".json" else directory / "tokenizer.json"
    return fast if fast.is_file() else None


def build_backend(directory: Path, fast: Path | None, settings: Mapping[str, Any]) -> LibraryBackend:
    """The vocabulary of the tokenizer.json `fast`, else of the best file in `directory`.

    Raises:
        CheckpointError: none there, or damaged.
        UnsupportedError: only a kind that Octavo does not read.
    """
    if fast is not None:
        return _from_tokenizer_json(fast)
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        return _from_vocab_and_merges(directory, settings)
    if (directory / "vocab.txt").is_file():
        return _from_vocab_txt(directory, settings)
    if (directory / "tokenizer.model").is_file():
        return _from_sentencepiece(directory / "tokenizer.model", settings)
    others = sorted(p.name for p in directory.glob("*.tiktoken")) if directory.is_dir() else []
    if others:
        raise UnsupportedError(f"{directory}: {others[0]} is not supported; add a tokenizer.json to the directory")
    raise CheckpointError(
        f"no tokenizer in {directory}: looked for tokenizer.json, vocab.json + merges.txt, vocab.txt, tokenizer.model"
    )


def _content(value: Any) -> str | None:
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("content")
    if not isinstance(value, str) or not value:
        return None
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise CheckpointError(f"the tokenizer's files name the special token {value!r}, which is not valid Unicode")
    return value


def _from_tokenizer_json(path: Path) -> LibraryBackend:
    with library_reads(f"{path} is not a tokenizer.json that this version reads"):
        backend = LibraryBackend.from_buffer(path.read_bytes())  # the library opens no path beyond UTF-8
    try:
        check_normalizer(backend)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; get the file again") from None
    return backend


def _from_vocab_and_merges(directory: Path, settings: Mapping[str, Any]) -> LibraryBackend:
    """GPT-2 and OPT style: byte-level BPE as two plain files."""
    vocab = read_json_if_present(directory / "vocab.json")
    try:
        lines = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{directory / 'merges.txt'} is not a text: {error}") from None
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    faulty = next((pair for pair in pairs if len(pair) != 2), None)
    if faulty is not None:
        raise CheckpointError(f"{directory / 'merges.txt'}: {' '.join(faulty)!r} is not a pair of tokens")
    merges = [(left, right) for left, right in pairs]
    with library_reads(f"{directory}: vocab.json and merges.txt do not fit"):
        backend = LibraryBackend(BPE(vocab=vocab, merges=merges))
    prefix = bool(settings.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    if _END_OF_TEXT in vocab and not SpecialTokens.read(settings).contents:
        add_tokens(backend, [AddedToken(_END_OF_TEXT, normalized=False, special=True)])
    return backend


def _from_vocab_txt(directory: Path, settings: Mapping[str, Any]) -> LibraryBackend:
    """BERT style: WordPiece as a list of pieces."""
    special = SpecialTokens.read({**usual_settings(directory, settings), **settings})
    rules = rules_of(settings, special.tokens)
    return word_piece_backend(read_vocabulary(directory / "vocab.txt"), rules, special.contents)


def usual_settings(directory: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a tokenizer without a tokenizer.json has where its settings are silent, by the files that make it."""
    if (directory / "vocab.json").is_file():
        return {}
    if (directory / "vocab.txt").is_file():
        return MPNET_SETTINGS if "MPNet" in str(settings.get("tokenizer_class")) else BERT_SETTINGS
    return _SENTENCEPIECE_SETTINGS


def _from_sentencepiece(path: Path, settings: Mapping[str, Any]) -> LibraryBackend:
    """SentencePiece's own file, as Llama's and Gemma's first directories have it."""
    model = read_sentencepiece(path.read_bytes())
    if not model.is_bpe:
        raise UnsupportedError(f"{path}: only SentencePiece models of the BPE kind are supported; add a tokenizer.json")
    prefix = bool(settings.get("add_prefix_space", model.add_dummy_prefix))
    return sentencepiece_backend(model.pieces, add_space_prefix=prefix)
