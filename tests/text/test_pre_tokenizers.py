"""How texts are cut before byte-level BPE, by rule name: the cuts of the original tokenizers."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from octavo.errors import UnsupportedError
from octavo.text.pieces import byte_level_spelling
from octavo.text.pre_tokenizers import PRE_TOKENIZERS, install, pre_tokenizer

TEXT = "I'LL say 12345 \u00e9t\u00e9s!!\n\n  x/y\u00b2"


def cuts(name: str, text: str) -> list[str]:
    backend = Tokenizer(BPE())
    install(backend, pre_tokenizer(name))
    spelled = byte_level_spelling().to_bytes
    return [spelled(piece).decode() for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["I", "'", "LL", " say", " 12345", " \u00e9t\u00e9s", "!!", "\n\n ", " x", "/", "y", "\u00b2"]),
        ("smollm", ["I", "'", "LL", " say", " ", *"12345", " \u00e9t\u00e9s", "!!", "\n\n ", " x", "/", "y", "\u00b2"]),
        ("llama-bpe", ["I", "'LL", " say", " ", "123", "45", " \u00e9t\u00e9s", "!!\n\n", " ", " x", "/y", "\u00b2"]),
        ("qwen2", ["I", "'LL", " say", " ", *"12345", " \u00e9t\u00e9s", "!!\n\n", " ", " x", "/y", "\u00b2"]),
        ("tekken", ["I", "'LL", " say", " ", *"12345", " \u00e9t\u00e9s", "!!\n\n", " ", " x", "/y", "\u00b2"]),
        ("gpt-4o", ["I'LL", " say", " ", "123", "45", " \u00e9t\u00e9s", "!!\n\n", " ", " x", "/y", "\u00b2"]),
    ],
)
def test_cuts(name, expected):
    assert cuts(name, TEXT) == expected


def test_case_borders_cut_only_in_cased_rules():
    assert cuts("tekken", "camelCase ABCdef") == ["camel", "Case", " ABCdef"]
    assert cuts("llama-bpe", "camelCase ABCdef") == ["camelCase", " ABCdef"]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_no_rule_loses_a_character(name):
    assert "".join(cuts(name, TEXT + "\t\u4e16\u754c \x00\r\n ")) == TEXT + "\t\u4e16\u754c \x00\r\n "


def test_unknown_rule_is_refused_and_says_what_is_known():
    with pytest.raises(UnsupportedError, match=r"'klingon'.*qwen2"):
        pre_tokenizer("klingon")
