"""BERT's tokenizers out of vocabularies alone: a vocab.txt, or what a GGUF file keeps of one.

Source: Devlin et al. 2019, arXiv:1810.04805, and the files beside google-bert/bert-base-uncased; GGUF files as
llama.cpp's converter writes them: pieces that begin a word have a mark before them, others have lost theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.pieces import SPACE_MARK, add_tokens, library_reads

# What directories leave unsaid, by the first token of a text.
BERT_SETTINGS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
MPNET_SETTINGS = {"unk_token": "[UNK]", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>"}
_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "MPNet", "NomicBert", "SqueezeBert", "Layout", "Splinter")
_CONTINUED = "##"
_LONGEST_WORD = 100  # characters; longer ones are unknown


@dataclass(frozen=True, slots=True)
class WordPieceRules:
    """How text is prepared. `accents`: whether they are taken off; None: exactly when it is made lower case.
    `between`: how many separators stand between two texts. `types`: the second text is of another type."""

    first: str
    separator: str
    unknown: str
    lowercase: bool = True
    accents: bool | None = None
    chinese: bool = True
    between: int = 1
    types: bool = True


def read_vocabulary(path: Path) -> list[str]:
    """The pieces of a vocab.txt by id.

    Raises:
        CheckpointError: it is no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as a list of tokens: {error}") from None
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def rules_of(settings: Mapping[str, Any], special: Mapping[str, str]) -> WordPieceRules:
    """The rules of a tokenizer_config.json.

    Raises:
        UnsupportedError: another kind of tokenizer has such a file, too.
    """
    name = str(settings.get("tokenizer_class") or "BertTokenizer")
    plain = name.removesuffix("Fast").removesuffix("Tokenizer")
    if plain not in _CLASSES or settings.get("word_tokenizer_type", "basic") != "basic":
        raise UnsupportedError(f"a {name[:64]} cannot be made out of a vocab.txt alone; add a tokenizer.json")
    accents: object = settings.get("strip_accents")
    mpnet = plain == "MPNet"
    return WordPieceRules(
        first=special["cls_token"],
        separator=special["sep_token"],
        unknown=special["unk_token"],
        lowercase=bool(settings.get("do_lower_case", True)),
        accents=accents if isinstance(accents, bool) else None,
        chinese=bool(settings.get("tokenize_chinese_chars", True)),
        between=2 if mpnet else 1,
        types=not mpnet,
    )


def word_piece_backend(pieces: Sequence[str], rules: WordPieceRules, special: Sequence[str]) -> LibraryBackend:
    """The tokenizer over these pieces.

    Args:
        special: tokens that a text may name.

    Raises:
        CheckpointError: one that belongs around every text is missing.
    """
    vocabulary = {piece: number for number, piece in reversed(list(enumerate(pieces)))}  # of equal ones the first
    missing = [token for token in (rules.first, rules.separator, rules.unknown) if token not in vocabulary]
    if missing:
        raise CheckpointError(f"the vocabulary of {len(pieces)} pieces has no {', '.join(map(repr, missing))}")
    with library_reads("the vocabulary is damaged"):
        backend = LibraryBackend(WordPiece(vocabulary, unk_token=rules.unknown, max_input_chars_per_word=_LONGEST_WORD))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=rules.chinese,
        strip_accents=rules.accents,
        lowercase=rules.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUED)
    add_tokens(
        backend,
        [AddedToken(token, normalized=False, special=True) for token in special if token in vocabulary],
    )
    frame_pairs(backend, rules.first, rules.separator, rules.between, rules.types)
    return backend


def frame_pairs(backend: LibraryBackend, first: str, separator: str, between: int, types: bool) -> None:
    """Make texts and pairs of texts begin with one token and end with another."""
    second = ":1" if types else ":0"
    middle = [separator] * between
    ids = [(token, backend.token_to_id(token)) for token in dict.fromkeys((first, separator))]
    backend.post_processor = TemplateProcessing(
        single=[first, "$A", separator],
        pair=[first, "$A", *middle, f"$B{second}", f"{separator}{second}"],
        special_tokens=[(token, number) for token, number in ids if number is not None],
    )


def unmarked(pieces: Sequence[str], special: Sequence[bool]) -> list[str]:
    """A GGUF file's pieces as a vocab.txt has them."""
    return [
        piece if is_special else piece[1:] if piece.startswith(SPACE_MARK) else _CONTINUED + piece
        for piece, is_special in zip(pieces, special, strict=True)
    ]
