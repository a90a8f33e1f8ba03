"""Models that compare texts token by token: vectors and scores are those of transformers' states and one product."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo import LLM
from octavo.errors import CheckpointError, InvalidRequestError
from tests.pooling.checkpoints import TEXTS, make_encoder, save
from tests.pooling.test_encoders import near, states_of
from tests.pooling.test_routes import end, start
from tests.serving.scripted import HTTP

QUIET: dict[str, Any] = {"use_tqdm": False}
WIDTH = 16


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(str(path), weight_cache=False, enable_metrics=False, **options)


def projection(hidden: int) -> torch.Tensor:
    return torch.randn(WIDTH, hidden, generator=torch.Generator().manual_seed(5)) / hidden**0.5


def colbert(directory: Path, model: Any) -> Path:
    """As ColBERT's own files are: the encoder under "bert.", and one more matrix."""
    save(model, directory, architectures=["HF_ColBERT"], dim=WIDTH)
    state = {f"bert.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file({**state, "linear.weight": projection(48)}, directory / "model.safetensors")
    return directory


def pylate(directory: Path, model: Any) -> Path:
    """As PyLate's files are: a dense layer and no pooling."""
    save(model, directory)
    place = directory / "1_Dense"
    place.mkdir()
    save_file({"linear.weight": projection(48)}, place / "model.safetensors")
    dense = {"in_features": 48, "out_features": WIDTH, "bias": False}
    dense["activation_function"] = "torch.nn.modules.linear.Identity"
    (place / "config.json").write_text(json.dumps(dense))
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    (directory / "modules.json").write_text(json.dumps(listed))
    return directory


def vectors_of(model: Any, text: str) -> np.ndarray:
    """[tokens, WIDTH], each of length 1."""
    found = states_of(model, text) @ projection(48).numpy().T
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def score_of(model: Any, query: str, document: str) -> float:
    return float((vectors_of(model, query) @ vectors_of(model, document).T).max(axis=1).sum())


@pytest.mark.parametrize(("name", "write"), [("bert", colbert), ("bert", pylate), ("modernbert", pylate)])
def test_vectors_of_tokens_and_their_scores(name: str, write: Any, tmp_path: Path) -> None:
    model = make_encoder(name)
    query, documents = TEXTS[0], list(TEXTS[1:])
    with open_llm(write(tmp_path, model)) as llm:
        for output, text in zip(llm.encode(list(TEXTS), pooling_task="token_embed", **QUIET), TEXTS, strict=True):
            near(output.outputs.data, vectors_of(model, text))
        found = [output.outputs.score for output in llm.score(query, documents, **QUIET)]
        near(np.array(found), np.array([score_of(model, query, document) for document in documents]))
        each = llm.score(documents[:2], [query, documents[2]], **QUIET)
        near(np.array(each[1].outputs.score), np.array(score_of(model, documents[1], documents[2])))
        with pytest.raises(InvalidRequestError, match=r"has no task 'embed'; it does token_embed"):
            llm.embed([query], **QUIET)


def test_over_http(tmp_path: Path) -> None:
    model = make_encoder("bert")
    process, url = start(colbert(tmp_path, model), "--served-model-name", "tiny")
    try:
        query, documents = TEXTS[0], list(TEXTS[1:])
        expected = [score_of(model, query, document) for document in documents]
        scores = HTTP.post(url + "/score", json={"text_1": query, "text_2": documents}).json()["data"]
        near(np.array([item["score"] for item in scores]), np.array(expected))
        ranked = HTTP.post(url + "/rerank", json={"query": query, "documents": documents}).json()["results"]
        assert [item["index"] for item in ranked] == sorted(range(4), key=lambda number: -expected[number])
        near(np.array([item["relevance_score"] for item in ranked]), np.array(sorted(expected, reverse=True)))
        pooled = HTTP.post(url + "/pooling", json={"input": query}).json()["data"]
        near(np.array(pooled[0]["data"]), vectors_of(model, query))
        assert HTTP.post(url + "/v1/embeddings", json={"input": query}).status_code == 400
        assert HTTP.get(url + "/v1/models").json()["data"][0]["tasks"] == ["token_embed"]
    finally:
        end(process)


def test_a_colbert_without_its_matrix_is_told(tmp_path: Path) -> None:
    model = make_encoder("bert")
    save(model, tmp_path, architectures=["HF_ColBERT"])
    with pytest.raises(CheckpointError, match=r"no matrix linear\.weight"):
        open_llm(tmp_path)
