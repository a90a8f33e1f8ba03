"""Decoders that are pooled: last, mean and first states, over chunks and from the prefix cache; converted heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, PoolerConfig, PoolingParams
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from tests.pooling.checkpoints import TEXTS, add_sentence_files, make_decoder, randomized, save, tokenizer

QUIET: dict[str, Any] = {"use_tqdm": False}
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": "8MiB", "kv_cache_dtype": "float32"}


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(str(path), weight_cache=False, enable_metrics=False, **{**SMALL, **options})


def states_of(model: Any, text: str) -> np.ndarray:
    ids = torch.tensor([tokenizer().encode(text).ids])
    with torch.inference_mode():
        return model(input_ids=ids).last_hidden_state[0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def near(found: Any, expected: np.ndarray, tolerance: float = 3e-5) -> None:
    np.testing.assert_allclose(np.array(found), expected, atol=tolerance * max(1.0, float(np.abs(expected).max())))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = make_decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=16)
    return save(model, tmp_path_factory.mktemp("qwen")), model.model


def test_the_last_state_is_the_vector(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    with open_llm(path, task="embed") as llm:
        for text, output in zip(TEXTS, llm.embed(list(TEXTS), **QUIET), strict=True):
            near(output.outputs.embedding, unit(states_of(model, text)[-1]))
        assert llm.llm_engine.engine.source.spec.head is None  # its matrix is not even loaded


@pytest.mark.parametrize("how", ["LAST", "MEAN", "CLS"])
def test_chunks_leave_no_trace(qwen: tuple[Path, Any], how: str) -> None:
    path, model = qwen
    pick = {"LAST": lambda s: s[-1], "MEAN": lambda s: s.mean(axis=0), "CLS": lambda s: s[0]}[how]
    config = {"pooling_type": how, "normalize": False}
    with (
        open_llm(path, runner="pooling", pooler_config=config) as whole,
        open_llm(path, runner="pooling", pooler_config=config, max_num_batched_tokens=7, max_num_seqs=3) as cut,
    ):
        for text, one, other in zip(
            TEXTS, whole.embed(list(TEXTS), **QUIET), cut.embed(list(TEXTS), **QUIET), strict=True
        ):
            near(one.outputs.embedding, pick(states_of(model, text)))
            assert other.outputs.embedding == one.outputs.embedding


def test_every_token_over_chunks(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    with open_llm(path, convert="embed", max_num_batched_tokens=7, max_num_seqs=3) as llm:
        raw = PoolingParams(use_activation=False)
        for text, output in zip(TEXTS, llm.encode(list(TEXTS), raw, pooling_task="token_embed", **QUIET), strict=True):
            near(output.outputs.data, states_of(model, text))


def test_only_last_states_come_from_the_prefix_cache(qwen: tuple[Path, Any]) -> None:
    path, _ = qwen
    text = TEXTS[3]
    with open_llm(path, runner="pooling") as llm:
        first, again = (llm.embed(text, **QUIET)[0] for _ in range(2))
        assert first.num_cached_tokens == 0
        assert again.num_cached_tokens >= 32
        near(again.outputs.embedding, np.array(first.outputs.embedding), 1e-6)
        tokens = llm.encode(text, pooling_task="token_embed", **QUIET)[0]
        assert tokens.num_cached_tokens == 0
        assert len(tokens.outputs.data) == len(tokens.prompt_token_ids)
    with open_llm(path, runner="pooling", pooler_config=PoolerConfig(seq_pooling_type="MEAN")) as llm:
        first, again = (llm.embed(text, **QUIET)[0] for _ in range(2))
        assert again.num_cached_tokens == 0
        assert again.outputs == first.outputs


def test_means_survive_preemption(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    options = {"runner": "pooling", "pooler_config": {"pooling_type": "MEAN"}, "num_gpu_blocks_override": 9}
    options |= {"kv_cache_memory_bytes": None, "max_model_len": 120, "max_num_batched_tokens": 8, "max_num_seqs": 4}
    with open_llm(path, **options) as llm:
        texts = [TEXTS[3], TEXTS[1] + TEXTS[3], TEXTS[3], TEXTS[0]]
        for text, output in zip(texts, llm.embed(texts, **QUIET), strict=True):
            near(output.outputs.embedding, unit(states_of(model, text).mean(axis=0)))
        assert llm.llm_engine.engine.client.stats().used_blocks == 0


@pytest.mark.parametrize(
    ("config_class", "name"), [("Qwen3Config", "Qwen3"), ("LlamaConfig", "Llama"), ("Qwen2Config", "Qwen2")]
)
def test_a_decoder_classifies_by_its_last_state(config_class: str, name: str, tmp_path: Path) -> None:
    model = make_decoder(config_class, f"{name}ForSequenceClassification", head_dim=16, num_labels=3)
    save(model, tmp_path, id2label={"0": "no", "1": "yes", "2": "maybe"})
    with open_llm(tmp_path) as llm:
        for text, output in zip(TEXTS, llm.classify(list(TEXTS), **QUIET), strict=True):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([tokenizer().encode(text).ids])).logits[0]
            near(output.outputs.probs, torch.softmax(logits, 0).numpy())
        with pytest.raises(InvalidRequestError, match="does classify"):
            llm.embed("a", **QUIET)
        with pytest.raises(UnsupportedError, match="no scores"):
            llm.score("a", "b", **QUIET)


def test_a_reward_model_answers_for_tokens_or_steps(tmp_path: Path) -> None:
    model = make_decoder("Qwen2Config", "Qwen2ForTokenClassification", num_labels=2)
    save(model, tmp_path)
    step = tokenizer().token_to_id("a")
    with (
        open_llm(tmp_path) as tokens,
        open_llm(
            tmp_path, pooler_config={"pooling_type": "STEP", "step_tag_id": step, "returned_token_ids": [1]}
        ) as steps,
    ):
        ids = tokenizer().encode(TEXTS[3]).ids
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        raw = PoolingParams(softmax=False)
        near(tokens.reward(TEXTS[3], pooling_params=raw, **QUIET)[0].outputs.data, logits.numpy())
        near(tokens.reward(TEXTS[3], **QUIET)[0].outputs.data, torch.softmax(logits, 1).numpy())
        marked = [position for position, token in enumerate(ids) if token == step]
        assert len(marked) > 3
        found = steps.encode(TEXTS[3], raw, **QUIET)[0].outputs.data
        near(found, logits[marked][:, 1:].numpy())


def test_a_decoder_may_see_both_ways(tmp_path: Path) -> None:
    """EmbeddingGemma's shape: Gemma 3 with attention both ways, windows, mean, a dense layer, and cut vectors."""
    model = make_decoder(
        "Gemma3TextConfig",
        "Gemma3TextModel",
        head_dim=16,
        sliding_window=8,
        query_pre_attn_scalar=16,
        num_hidden_layers=6,
        use_bidirectional_attention=True,
    )
    save(randomized(model), tmp_path, matryoshka_dimensions=[8])
    add_sentence_files(tmp_path, {"pooling_mode_mean_tokens": True}, dense=(48, 24))
    dense = torch.Generator().manual_seed(5)
    weight = (torch.randn(24, 48, generator=dense) / 48**0.5).numpy()
    with open_llm(tmp_path) as llm:
        found = llm.embed(list(TEXTS), **QUIET)
        cut = llm.embed(list(TEXTS), pooling_params=PoolingParams(dimensions=8), **QUIET)
        for text, output, short in zip(TEXTS, found, cut, strict=True):
            vector = np.tanh(weight @ states_of(model, text).mean(axis=0) + 0.1)
            near(output.outputs.embedding, unit(vector))
            near(short.outputs.embedding, unit(vector[:8]))


def test_a_model_becomes_what_its_files_say(qwen: tuple[Path, Any], tmp_path: Path) -> None:
    _, model = qwen
    save(make_decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=16), tmp_path)
    add_sentence_files(tmp_path, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, normalize=False)
    with open_llm(tmp_path) as llm:
        near(llm.embed(TEXTS[1], **QUIET)[0].outputs.embedding, states_of(model, TEXTS[1])[-1])
    with open_llm(tmp_path, runner="generate", max_model_len=64) as llm:  # unless it is to generate
        assert len(llm.generate(TEXTS[0], **QUIET)[0].outputs[0].token_ids) > 0


def test_a_model_with_a_language_models_head_generates(tmp_path: Path) -> None:
    save(make_decoder("GPT2Config", "GPT2LMHeadModel", n_embd=48, n_layer=2, n_head=3, n_positions=128), tmp_path)
    with open_llm(tmp_path, max_model_len=64) as llm:
        assert len(llm.generate(TEXTS[0], **QUIET)[0].outputs[0].token_ids) > 0


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"runner": "pooling", "pooler_config": "MEAN"}, ConfigError, "no JSON"),
        ({"runner": "pooling", "pooler_config": {"pooling_type": "MAX"}}, ConfigError, "CLS, LAST, MEAN"),
        ({"runner": "pooling", "pooler_config": {"poling_type": "MEAN"}}, ConfigError, "poling_type"),
        ({"runner": "pooling", "pooler_config": {"logit_bias": 0.5}}, UnsupportedError, "logit_bias"),
        ({"runner": "pooling", "pooler_config": {"pooling_type": "STEP"}}, ConfigError, "classes of every"),
        ({"runner": "pooling", "pooler_config": {"seq_pooling_type": "ALL"}}, ConfigError, "CLS, LAST, MEAN"),
        ({"runner": "generate", "convert": "embed"}, ConfigError, "generating is asked for"),
        ({"task": "generate", "runner": "pooling"}, ConfigError, "contradict"),
        ({"convert": "classify"}, ConfigError, "no classifier"),
    ],
)
def test_wishes_that_cannot_be(
    qwen: tuple[Path, Any], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        open_llm(qwen[0], **options)


@pytest.mark.parametrize(
    ("pooling", "match"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({}, "0 pooling modes"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "2 pooling modes"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ],
)
def test_modes_of_pooling_that_are_missing(tmp_path: Path, pooling: dict[str, Any], match: str) -> None:
    save(make_decoder("LlamaConfig", "LlamaModel"), tmp_path)
    add_sentence_files(tmp_path, pooling)
    with pytest.raises(UnsupportedError, match=match):
        open_llm(tmp_path)
