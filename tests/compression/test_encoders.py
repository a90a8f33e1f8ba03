"""Encoders, too, are rounded and calibrated: their vectors stay what they were, and the report says how near."""

import json

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from octavo.cli.main import main


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "bert"
    path.mkdir()
    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=len(words), initializer_range=0.15, **sizes)).save_pretrained(path)
    BertTokenizerFast(vocab_file=str(path / "vocab.txt")).save_pretrained(path)
    return path


def quantize(model, output, method):
    flags = ["--samples", "4", "--length", "32", "--no-progress"]
    return main(["quantize", str(model), "--method", method, "--output", str(output), *flags])


@pytest.mark.parametrize(("method", "least"), [("int8", 0.999), ("fp8", 0.99), ("gptq", 0.9), ("awq", 0.9)])
def test_vectors_stay_what_they_were(method, least, encoder, tmp_path, capsys):
    assert quantize(encoder, tmp_path / "out", method) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["problem"] is None
    assert report["matrices_rounded"] == 12
    assert least < report["cosine"]["least"] <= report["cosine"]["mean"] + 1e-9
    assert report["cosine"]["mean"] < 1
    shown = capsys.readouterr().out
    assert f"least {report['cosine']['least']:.4f}" in shown
    assert shown.endswith(f"next: octavo serve {tmp_path / 'out'}\n")
    assert ("not scaled" in shown) == (method in ("int8", "awq")), "only of methods that scale"


def test_what_a_tokenizer_has_no_gguf_form_for_is_told_with_what_to_use(encoder, tmp_path, capsys):
    assert quantize(encoder, tmp_path / "out", "gguf") == 2
    assert "WordPiece has no GGUF form that Octavo writes; use --method int8 or fp8" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
