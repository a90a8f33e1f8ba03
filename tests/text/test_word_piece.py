"""A vocab.txt alone makes the tokenizer that transformers makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, MPNetTokenizer

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.tokenizer import load_tokenizer_file

PIECES = [
    "the",
    "panda",
    "Panda",
    "##s",
    "cafe",
    "café",
    "hello",
    ",",
    ".",
    "!",
    "?",
    "'",
    "-",
    "東",
    "京",
    "e",
    "x",
    "##x",
    "a",
    "b",
]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
MPNET = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *PIECES]
TEXTS = (
    "the pandas, hello!",
    "Café PANDA  e\u0301",
    "東京 a-b",
    "[MASK] the [SEP] x",
    "x" * 101,
    "a\u200b\x00\tb\n",
    "it's ???",
    "",
)


def write(directory: Path, pieces: list[str], config: dict[str, Any] | None = None) -> Path:
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"},
    ],
)
def test_bert(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, BERT, config or None)
    expected, found = BertTokenizer.from_pretrained(tmp_path), load_tokenizer_file(tmp_path)
    for text in TEXTS:
        assert found.encode(text) == expected(text)["input_ids"], text
        assert found.encode(text, add_special_tokens=False) == expected(text, add_special_tokens=False)["input_ids"]
    pair = expected("the panda", "hello")
    parts = found.encode_parts(["the panda", "hello"])
    assert parts.ids == pair["input_ids"]
    assert parts.second_at == pair["token_type_ids"].index(1)
    assert found.decode(found.encode("the pandas"), skip_special_tokens=True) == "the pandas"


def test_mpnet(tmp_path: Path) -> None:
    write(tmp_path, MPNET, {"tokenizer_class": "MPNetTokenizer"})
    expected, found = MPNetTokenizer.from_pretrained(tmp_path), load_tokenizer_file(tmp_path)
    for text in TEXTS:
        assert found.encode(text) == expected(text)["input_ids"], text
    assert found.encode_parts(["the", "a"]).ids == expected("the", "a")["input_ids"]


def test_other_tokenizers_with_such_a_file_are_refused(tmp_path: Path) -> None:
    for config in ({"tokenizer_class": "EsmTokenizer"}, {"word_tokenizer_type": "mecab"}):
        write(tmp_path, BERT, config)
        with pytest.raises(UnsupportedError, match=r"add a tokenizer.json"):
            load_tokenizer_file(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, BERT[4:])
    with pytest.raises(CheckpointError, match=r"no '\[CLS\]', '\[SEP\]', '\[UNK\]'"):
        load_tokenizer_file(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(CheckpointError, match=r"vocab.txt cannot be read"):
        load_tokenizer_file(tmp_path)
