"""Models that compare texts token by token: vectors and scores are those of transformers' states and one product."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo import LLM
from octavo.errors import CheckpointError, InvalidRequestError
from tests.pooling.checkpoints import TEXTS, VOCABULARY, make_encoder, save, tokenizer
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


MARKS = ("[Q] ", "[D] ")
SETTINGS: dict[str, Any] = {
    "query_prefix": MARKS[0],
    "document_prefix": MARKS[1],
    "query_length": 12,
    "document_length": 20,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": True,
    "skiplist_words": [".", "?", "panda"],
}


def marking_tokenizer() -> Any:
    own = tokenizer()
    own.add_tokens(list(MARKS))
    return own


def marked(directory: Path, model: Any, settings: dict[str, Any]) -> Path:
    """PyLate's files with its settings; the tokenizer has the two marks."""
    pylate(directory, model)
    marking_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}, **settings}))
    return directory


def expected_side(model: Any, text: str, query: bool, settings: dict[str, Any]) -> np.ndarray:
    """PyLate's rule: cut to a length less one, the mark behind the first token, queries filled up with [MASK], and of
    documents no vectors of skipped words."""
    name = "query" if query else "document"
    length, mark = (
        settings.get(f"{name}_length", 32 if query else 180),
        settings.get(f"{name}_prefix", MARKS[not query]),
    )
    ids = tokenizer().encode(text).ids
    room = length - bool(mark)
    ids = ids if len(ids) <= room else [*ids[: room - 1], ids[-1]]
    ids = [*ids[:1], *([marking_tokenizer().token_to_id(mark)] if mark else []), *ids[1:]]
    if query and settings.get("do_query_expansion", True) and settings.get("attend_to_expansion_tokens", False):
        ids += [VOCABULARY.index("[MASK]")] * (length - len(ids))
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    words = settings.get("skiplist_words", list(string.punctuation))
    # Words that are no tokens count as the unknown one.
    skipped = {VOCABULARY.index(word if word in VOCABULARY else "[UNK]") for word in words}
    kept = [query or token not in skipped for token in ids]
    found = (states @ projection(48).numpy().T)[kept]
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        {**SETTINGS, "query_prefix": "", "do_query_expansion": False, "skiplist_words": []},
        {"query_length": 9},  # the rest is PyLate's default
    ],
    ids=["marked and filled up", "unmarked", "defaults"],
)
def test_queries_and_documents_are_read_as_pylate_reads_them(settings: dict[str, Any], tmp_path: Path) -> None:
    model = make_encoder("bert", vocab_size=len(VOCABULARY) + len(MARKS))
    query, documents = "what is a panda of the world? " * 2, [*TEXTS, "un§known. panda?"]
    expected = [expected_side(model, text, False, settings) for text in documents]
    asked = expected_side(model, query, True, settings)
    with open_llm(marked(tmp_path, model, settings)) as llm:
        for name, texts, vectors in (("query", [query], [asked]), ("document", documents, expected)):
            found = llm.encode(texts, pooling_task="token_embed", prompt_name=name, **QUIET)
            for output, vector in zip(found, vectors, strict=True):
                near(np.asarray(output.outputs.data), vector)
        found = [output.outputs.score for output in llm.score(query, documents, **QUIET)]
        near(np.array(found), np.array([float((asked @ vector.T).max(axis=1).sum()) for vector in expected]))
        plain = llm.encode(TEXTS[0], pooling_task="token_embed", **QUIET)[0]  # neither of the two: as it is
        assert plain.prompt_token_ids == tokenizer().encode(TEXTS[0]).ids


_FRAMED = {
    "query": "[CLS] un the panda [SEP] [MASK] [MASK] [MASK]",
    "document": "[CLS] over the panda eats [SEP]",
}


def test_colberts_own_settings_and_a_limit_of_the_request(tmp_path: Path) -> None:
    model = make_encoder("bert")
    colbert(tmp_path, model)
    metadata = {"query_token_id": "un", "doc_token_id": "over", "query_maxlen": 8, "attend_to_mask_tokens": True}
    (tmp_path / "artifact.metadata").write_text(json.dumps({**metadata, "doc_maxlen": 6, "nbits": 2}))
    framed = {name: [VOCABULARY.index(word) for word in words.split()] for name, words in _FRAMED.items()}
    with open_llm(tmp_path) as llm:
        for name, cut in (("query", None), ("document", None), ("query", 5)):
            options: dict[str, Any] = {} if cut is None else {"truncate_prompt_tokens": cut}
            text = "the panda eats a leaf in the tree" if name == "document" else "the panda"
            output = llm.encode(text, pooling_task="token_embed", prompt_name=name, **options, **QUIET)[0]
            assert output.prompt_token_ids == framed[name][:cut]
            assert len(output.outputs.data) == len(output.prompt_token_ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_prefix": "[X] "}, r"query_prefix '\[X\] ' is no token of the model's tokenizer"),
        ({"document_length": 3}, r"document_length is 3, which leaves no room for a text"),
        ({"skiplist_words": "."}, r"skiplist_words is '\.', not a list of strings"),
    ],
)
def test_settings_that_cannot_be_right_are_told(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = make_encoder("bert", vocab_size=len(VOCABULARY) + len(MARKS))
    with pytest.raises(CheckpointError, match=message):
        open_llm(marked(tmp_path, model, settings)).score("a", "b", **QUIET)


def test_over_http_sides_are_marked_and_a_rank_is_theirs(tmp_path: Path) -> None:
    model = make_encoder("bert", vocab_size=len(VOCABULARY) + len(MARKS))
    process, url = start(marked(tmp_path, model, SETTINGS), "--served-model-name", "tiny")
    try:
        query, documents = TEXTS[0], list(TEXTS[1:])
        asked = expected_side(model, query, True, SETTINGS)
        vectors = [expected_side(model, text, False, SETTINGS) for text in documents]
        ranked = HTTP.post(url + "/rerank", json={"query": query, "documents": documents}).json()["results"]
        scores = sorted((float((asked @ vector.T).max(axis=1).sum()) for vector in vectors), reverse=True)
        near(np.array([item["relevance_score"] for item in ranked]), np.array(scores))
        pooled = HTTP.post(url + "/pooling", json={"input": documents, "prompt_name": "document"}).json()["data"]
        for item, vector in zip(pooled, vectors, strict=True):
            near(np.array(item["data"]), vector)
        refused = HTTP.post(url + "/pooling", json={"input": query, "prompt_name": "title"})
        assert refused.status_code == 400
        assert "the model's prompts are document, query" in refused.json()["error"]["message"]
    finally:
        end(process)
