"""Which pieces a text is cut into before byte-level BPE, by the name that GGUF files give the rule."""

from typing import NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryBackend

from octavo.errors import UnsupportedError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_REST = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = _CASED % ("", "") + r"|\p{N}" + _CASED_REST
_GPT4O = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}" + _CASED_REST
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"
_ONE_DIGIT = r"\p{N}"


class PreTokenizer(NamedTuple):
    """Cuts, one after the other; `composes`: the text is put into NFC first; `whole_words`: a piece that is a token
    as it stands needs no merges; `adds_bos`: where the file does not say."""

    cuts: tuple[str, ...]
    composes: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_PLAIN = PreTokenizer((_GPT2,))
_DIGITS = PreTokenizer((_ONE_DIGIT, _GPT2))
_LLAMA = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN = PreTokenizer((_QWEN2,), composes=True)
_CASES = PreTokenizer((_GPT4O,))

# Source of the rules: each original model's tokenizer.json; of the names: the GGUF files in circulation.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _PLAIN,
    "gpt2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "jais": _PLAIN,
    "roberta-bpe": _PLAIN,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": _DIGITS,
    "exaone": _DIGITS,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "llama-bpe": _LLAMA,
    "falcon3": _LLAMA,
    "lfm2": _LLAMA,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), composes=True),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
    "gpt-4o": _CASES,
    "llama4": PreTokenizer((_GPT4O,), whole_words=True, adds_bos=True),
    "falcon": PreTokenizer((_PUNCTUATION, _GPT2, _THREE_DIGITS)),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rule of that name.

    Raises:
        UnsupportedError: no such rule here; guessing one would give wrong ids without a sign.
    """
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        raise UnsupportedError(
            f"the GGUF file's pre-tokenizer {name!r} is not supported (known: {', '.join(sorted(PRE_TOKENIZERS))}); "
            "name a tokenizer directory with --tokenizer"
        )
    return rule


def install(backend: LibraryBackend, rule: PreTokenizer) -> None:
    """Give the backend this rule's normalizer and cuts, then bytes."""
    if rule.composes:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in rule.cuts]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
