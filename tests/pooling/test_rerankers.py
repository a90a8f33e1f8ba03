"""Decoders that score pairs: by the logits of tokens, by a head of two layers, and in the words of a template."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, PoolingParams
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from tests.pooling.checkpoints import TEXTS, make_decoder, make_encoder, randomized, save, tokenizer

QUIET: dict[str, Any] = {"use_tqdm": False}
RAW = PoolingParams(use_activation=False)
TEMPLATE = (
    "is {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} "
    "of {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }} ?"
)


def open_llm(path: Path, **options: Any) -> LLM:
    exact = {"kv_cache_memory_bytes": "8MiB", "kv_cache_dtype": "float32"}
    return LLM(str(path), weight_cache=False, enable_metrics=False, **{**exact, **options})


def overrides(**more: Any) -> dict[str, Any]:
    """What vLLM's users give for a reranker that answers in tokens."""
    return {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["the", "panda"],
        **more,
    }


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = make_decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=16, tie_word_embeddings=request.param)
    return save(model, tmp_path_factory.mktemp("qwen")), model


def answers(model: Any, text: str) -> np.ndarray:
    """Logits of "the" and "panda" behind a text."""
    encoded = tokenizer().encode(text)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([encoded.ids])).logits[0, -1]
    ids = [tokenizer().token_to_id(word) for word in ("the", "panda")]
    return logits[ids].double().numpy()


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_the_softmax_of_two_tokens_is_a_score(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    query, documents = TEXTS[0], list(TEXTS[1:])
    for more in ({"is_original_qwen3_reranker": True}, {"method": "from_2_way_softmax"}):
        with open_llm(path, hf_overrides=overrides(**more)) as llm:
            found = llm.score(query, documents, **QUIET)
            for document, output in zip(documents, found, strict=True):
                no, yes = answers(model, query + document)
                expected = np.exp(yes) / (np.exp(no) + np.exp(yes))
                np.testing.assert_allclose(output.outputs.score, expected, atol=1e-5)
                assert output.prompt_token_ids == tokenizer().encode(query + document).ids


def test_each_token_may_be_a_class(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    with open_llm(path, hf_overrides=overrides()) as llm:
        for text, output in zip(TEXTS, llm.classify(list(TEXTS), pooling_params=RAW, **QUIET), strict=True):
            np.testing.assert_allclose(output.outputs.probs, answers(model, text), atol=3e-5)
        assert llm.llm_engine.engine.source.pooler is not None
        assert llm.llm_engine.engine.source.pooler.labels == ("the", "panda")
    one = overrides(classifier_from_token=["panda"], method="no_post_processing")
    with open_llm(path, hf_overrides=one) as llm:
        score = llm.score("hello", "world", **QUIET)[0].outputs.score
        np.testing.assert_allclose(score, sigmoid(answers(model, "helloworld")[1]), atol=1e-5)


def test_a_template_writes_the_pair(qwen: tuple[Path, Any]) -> None:
    path, model = qwen
    expected = np.diff(answers(model, "is a panda of hello world ?"))[0]
    options = overrides(is_original_qwen3_reranker=True)
    with open_llm(path, hf_overrides=options) as llm:
        given = llm.score("a panda", "hello world", chat_template=TEMPLATE, pooling_params=RAW, **QUIET)
        np.testing.assert_allclose(given[0].outputs.score, expected, atol=3e-5)
        with pytest.raises(InvalidRequestError, match="chat template"):
            llm.score("a", "b", chat_template="{{ nothing.there }}", **QUIET)
    with open_llm(path, hf_overrides=options, chat_template=TEMPLATE) as llm:
        usual = llm.score("a panda", "hello world", pooling_params=RAW, **QUIET)
        assert usual[0].outputs == given[0].outputs


def test_a_template_is_for_cross_encoders_too(tmp_path: Path) -> None:
    model = make_encoder("bert", "ForSequenceClassification", num_labels=1)
    save(model, tmp_path)
    with LLM(str(tmp_path), weight_cache=False, enable_metrics=False) as llm:
        (found,) = llm.score("a panda", "hello world", chat_template=TEMPLATE, pooling_params=RAW, **QUIET)
        assert found.prompt_token_ids == tokenizer().encode("is a panda of hello world ?").ids
        ids = torch.tensor([found.prompt_token_ids])
        with torch.inference_mode():
            expected = model(input_ids=ids, token_type_ids=torch.zeros_like(ids)).logits[0, 0]
        np.testing.assert_allclose(found.outputs.score, float(expected), atol=3e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (overrides(classifier_from_token=["the", "zebra"]), "no token 'zebra'"),
        (overrides(classifier_from_token="panda"), "list of tokens"),
        (overrides(classifier_from_token=[]), "list of tokens"),
        (overrides(method="softmax"), "method must be"),
        (overrides(classifier_from_token=["a"], method="from_2_way_softmax"), "needs two tokens"),
        ("[1]", "must be a JSON object"),
        ("{", "no JSON"),
    ],
)
def test_wrong_overrides_are_named(qwen: tuple[Path, Any], given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_llm(qwen[0], hf_overrides=given)


def test_a_model_without_classes_is_told_how_to_get_some(qwen: tuple[Path, Any], tmp_path: Path) -> None:
    for options in ({"convert": "classify"}, {"task": "reward"}):
        with pytest.raises(ConfigError, match=r"has no classifier .*classifier_from_token"):
            open_llm(qwen[0], **options)
    save(make_encoder("bert"), tmp_path)
    with pytest.raises(UnsupportedError, match="predicts no tokens"):
        open_llm(tmp_path, convert="classify", hf_overrides={"classifier_from_token": ["the"]})


def test_overrides_change_any_value(qwen: tuple[Path, Any]) -> None:
    with open_llm(qwen[0], hf_overrides={"max_position_embeddings": 64}) as llm:
        assert llm.engine_info.max_model_len == 64


def test_a_reward_model_may_have_two_layers(tmp_path: Path) -> None:
    base = make_decoder("Qwen2Config", "Qwen2Model")
    head = randomized(torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 2)))

    class Process(torch.nn.Module):
        """As Qwen2ForProcessRewardModel stores its parts."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self.score = base, head

    from safetensors.torch import save_file

    save(base, tmp_path, architectures=["Qwen2ForProcessRewardModel"])
    save_file(Process().state_dict(), tmp_path / "model.safetensors")
    with open_llm(tmp_path) as llm:
        for text, output in zip(TEXTS, llm.encode(list(TEXTS), RAW, **QUIET), strict=True):
            with torch.inference_mode():
                states = base(input_ids=torch.tensor([tokenizer().encode(text).ids])).last_hidden_state[0]
                expected = head(states).numpy()
            np.testing.assert_allclose(output.outputs.data, expected, atol=5e-5)
