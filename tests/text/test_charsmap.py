"""A table of characters that is damaged is refused when it is loaded; one that passes never makes the library panic."""

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import normalizers

from octavo.errors import CheckpointError
from octavo.text.charsmap import check_charsmap
from octavo.text.sentencepiece_model import _fields, _message  # pyright: ignore[reportPrivateUsage]
from octavo.text.vocabulary_files import build_backend

TEXT = "".join(map(chr, range(1, 0x3400))) + "\U0001f600\u0301\ufb01x" + "e\u0301" * 9


@pytest.fixture(scope="module")
def table() -> bytes:
    """SentencePiece's own, of NFKC and more."""
    model = io.BytesIO()
    trainer: Any = sentencepiece.SentencePieceTrainer
    lines = iter(["a b c d hello world"] * 20)
    trainer.train(sentence_iterator=lines, model_writer=model, vocab_size=30, hard_vocab_limit=False, minloglevel=2)
    rules = next(_message(value) for number, value in _fields(model.getvalue()) if number == 3)
    return next(_message(value) for number, value in _fields(rules) if number == 2)


def written(directory: Path, table: bytes, nested: bool = False) -> Path:
    normalizer: Any = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    if nested:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, normalizer]}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]], "byte_fallback": False}
    state = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model}
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(state))
    return path


@pytest.mark.parametrize("nested", [False, True])
def test_a_table_is_looked_into_when_it_is_loaded(table: bytes, nested: bool, tmp_path: Path) -> None:
    backend: Any = build_backend(tmp_path, written(tmp_path, table, nested), {})
    assert backend.normalizer.normalize_str("\ufb01") == "fi"
    damaged = bytearray(table)
    damaged[4:8] = b"\xff\xff\xff\x7f"  # the root
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*precompiled_charsmap. is damaged: .*get the file"):
        build_backend(tmp_path, written(tmp_path, bytes(damaged), nested), {})


def test_what_is_wrong_is_told(table: bytes) -> None:
    check_charsmap(table)
    trie = 4 + int.from_bytes(table[:4], "little")
    for damaged, why in (
        (b"", "cut off"),
        (bytes(8), "cut off"),
        (table[: trie - 4], "cut off"),
        (table[: trie + 100], "behind its texts"),
        (table[:trie] + b"\xff" + table[trie:], "not UTF-8"),
        (table[:trie] + "\u0301".encode() * (len(table) - trie), "middle of a character"),
        ((trie - 1028).to_bytes(4, "little") + table[4 : trie - 1024] + table[trie:], "outside of itself"),
    ):
        with pytest.raises(CheckpointError, match=why):
            check_charsmap(damaged)


def test_a_damaged_table_that_passes_makes_no_panic(table: bytes) -> None:
    chance, refused = random.Random(7), 0
    trie = 4 + int.from_bytes(table[:4], "little")
    for _ in range(60):
        damaged = bytearray(table)
        for _ in range(chance.choice((1, 30))):
            damaged[chance.randrange(4, trie)] = chance.randrange(256)
        try:
            check_charsmap(bytes(damaged))
        except CheckpointError:
            refused += 1
        else:
            library: Any = normalizers.Precompiled(bytes(damaged))
            library.normalize_str(TEXT)
    assert 10 < refused < 60
