"""Encoders out of GGUF files: the bits of the safetensors original, its tokens and its scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from octavo import LLM, PoolingParams
from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from tests.pooling.checkpoints import TEXTS, VOCABULARY, make_encoder, randomized, save, tokenizer
from tests.pooling.gguf_files import write_encoder

QUIET: dict[str, Any] = {"use_tqdm": False}
RAW = PoolingParams(use_activation=False)
ODD = ("Café, naïve!", "PANDA\tbear \n tree", "東京 panda", "[MASK] of [SEP] a", "e\u0301", "x" * 130, "🐼 bears")


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(str(path), weight_cache=False, enable_metrics=False, **options)


def plain(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Tensors without the prefix that a model with a head gives the encoder's."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def same(one: LLM, other: LLM, texts: tuple[str, ...]) -> None:
    found, expected = (llm.encode(list(texts), RAW, pooling_task="token_embed", **QUIET) for llm in (one, other))
    for a, b in zip(found, expected, strict=True):
        assert a.prompt_token_ids == b.prompt_token_ids
        np.testing.assert_array_equal(a.outputs.data, b.outputs.data)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_bert(tmp_path: Path, pooling: str) -> None:
    model = make_encoder("bert")
    directory = save(model, tmp_path / "bert")
    file = write_encoder(
        tmp_path / "bert.gguf", model.state_dict(), model.config.to_dict(), tokenizer(), pooling=pooling
    )
    config = {"pooling_type": pooling.upper()}
    with open_llm(file) as small, open_llm(directory, pooler_config=config) as original:
        same(small, original, (*TEXTS, *ODD))
        for a, b in zip(small.embed(list(TEXTS), **QUIET), original.embed(list(TEXTS), **QUIET), strict=True):
            assert a.outputs == b.outputs
        assert small.engine_info.max_model_len == 128
    with pytest.raises(UnsupportedError, match="does not generate"):
        open_llm(file, runner="generate")
    with pytest.raises(UnsupportedError, match="has no classifier"):
        open_llm(file, convert="classify")
    with pytest.raises(UnsupportedError, match="architectures has no effect on a GGUF file"):
        open_llm(file, hf_overrides={"architectures": ["BertForSequenceClassification"]})


def unigram() -> Tokenizer:
    """As XLM-RoBERTa's, without its table of characters."""
    words = [
        (piece if len(piece) == 1 else "\u2581" + piece.removeprefix("##"), -float(number))
        for number, piece in enumerate(VOCABULARY[5:])
    ]
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    built = Tokenizer(models.Unigram([*special, ("\u2581", -3.0), *dict(words).items()], unk_id=3))
    built.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    built.normalizer = None  # pyright: ignore[reportAttributeAccessIssue]
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    built.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return built


def test_xlm_roberta_and_its_reranker(tmp_path: Path) -> None:
    vocabulary = unigram()
    head = make_encoder(
        "xlm-roberta", "ForSequenceClassification", num_labels=1, vocab_size=vocabulary.get_vocab_size()
    )
    directory = save(head, tmp_path / "xlmr", pair_types=False)
    vocabulary.save(str(directory / "tokenizer.json"))
    config = {**head.config.to_dict(), "dropped_positions": 2}
    file = write_encoder(
        tmp_path / "ranker.gguf", plain(head.state_dict(), "roberta."), config, vocabulary, pooling="rank"
    )
    with open_llm(file) as small, open_llm(directory) as original:
        scores = [llm.score(TEXTS[0], list(TEXTS[1:]), **QUIET) for llm in (small, original)]
        for a, b in zip(*scores, strict=True):
            assert a.prompt_token_ids == b.prompt_token_ids
            assert a.outputs == b.outputs
        assert small.engine_info.max_model_len == original.engine_info.max_model_len == 128
    with open_llm(file, convert="embed") as small:
        assert len(small.embed("panda", **QUIET)[0].outputs.embedding) == 48


def nomic(**changes: Any) -> Any:
    import transformers

    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.NomicBertConfig(**sizes, intermediate_size=80, max_position_embeddings=128, **changes)
    torch.manual_seed(5)
    return randomized(transformers.NomicBertModel(config).eval())


def test_nomic_bert(tmp_path: Path) -> None:
    model = nomic()
    directory = save(model, tmp_path / "nomic")
    with open_llm(directory) as original:
        for text, output in zip(
            TEXTS, original.encode(list(TEXTS), RAW, pooling_task="token_embed", **QUIET), strict=True
        ):
            ids = torch.tensor([tokenizer().encode(text).ids])
            with torch.inference_mode():
                expected = model(input_ids=ids).last_hidden_state[0].numpy()
            np.testing.assert_allclose(output.outputs.data, expected, atol=3e-5)
        from safetensors.torch import load_file

        stored = plain(load_file(directory / "model.safetensors"), "nomic_bert.")
        config = {**model.config.to_dict(), "rope_theta": 1000.0}
        file = write_encoder(tmp_path / "nomic.gguf", stored, config, tokenizer(), pooling="mean", arch="nomic-bert")
        with open_llm(file) as small:
            same(small, original, TEXTS)


def test_the_first_nomic_configurations_are_read(tmp_path: Path) -> None:
    model = nomic()
    directory = save(model, tmp_path)
    older = {"n_embd": 48, "n_head": 3, "n_layer": 2, "n_inner": 80, "n_positions": 128, "rotary_emb_base": 1000}
    older |= {"layer_norm_epsilon": 1e-12, "activation_function": "swiglu", "vocab_size": len(VOCABULARY)}
    today = json.loads((directory / "config.json").read_text())
    with open_llm(directory) as llm:
        expected = llm.embed(TEXTS[0], **QUIET)[0].outputs
    (directory / "config.json").write_text(json.dumps({**older, "architectures": today["architectures"]}))
    with open_llm(directory) as llm:
        assert llm.embed(TEXTS[0], **QUIET)[0].outputs == expected
    (directory / "config.json").write_text(json.dumps({**older, "architectures": ["NomicBertModel"], "prenorm": True}))
    with pytest.raises(UnsupportedError, match="prenorm"):
        open_llm(directory)


def metadata(**changes: Any) -> dict[str, Any]:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581Panda", "\u2581panda", "s", "\u2581s"]
    found = {"model": "bert", "tokens": pieces, "token_type": [3, 3, 3, 3, 1, 1, 1, 1], "bos_token_id": 2}
    found |= {"seperator_token_id": 3, "unknown_token_id": 1, "padding_token_id": 0, **changes}
    return {f"tokenizer.ggml.{name}": value for name, value in found.items() if value is not None}


def test_capitals_are_kept_where_the_vocabulary_has_them() -> None:
    assert tokenizer_from_metadata(metadata()).encode("Panda pandas s") == [2, 4, 5, 6, 7, 3]
    lower = {"tokenizer.ggml.normalizer.lowercase": True}
    assert tokenizer_from_metadata({**metadata(), **lower}).encode("Panda") == [2, 5, 3]
    assert tokenizer_from_metadata(metadata()).decode([2, 5, 6, 3]) == "pandas"


def test_damaged_vocabularies_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"no '\[SEP\]'"):
        tokenizer_from_metadata(
            metadata(tokens=["[PAD]", "[UNK]", "[CLS]"], token_type=[3, 3, 3], seperator_token_id=None)
        )
    with pytest.raises(CheckpointError, match="no unknown token"):
        tokenizer_from_metadata(metadata(model="t5", scores=[0.0] * 8))
    with pytest.raises(CheckpointError, match="no array of bytes"):
        tokenizer_from_metadata(metadata(model="t5", scores=[0.0] * 8, precompiled_charsmap=["a"]))
    for table in ([255] * 9, [0] * 4, [4, 0, 0, 0, 255, 255, 255, 255, 0]):  # no size; nothing, and a way out, inside
        given = metadata(model="t5", scores=[0.0] * 8, token_type=[3, 2, 3, 3, 1, 1, 1, 1], precompiled_charsmap=table)
        with pytest.raises(CheckpointError, match=r"precompiled_charsmap. is damaged"):
            tokenizer_from_metadata(given)
