"""The API's document is true of servers that pool, too; and no field of a pooled route is passed over."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pooling.checkpoints import add_sentence_files, make_encoder, save
from tests.pooling.test_routes import end, start
from tests.serving.request_fields import CLASSIFYING, EMBEDDING, LONG, Field
from tests.serving.scripted import HTTP
from tests.serving.test_openapi import NEGATIVE, POSITIVE, operations_of, try_out
from tests.serving.test_request_fields import plain, told_of

EMBEDS = ["/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"]
CLASSIFIES = ["/classify", "/v1/classify", "/pooling", "/score", "/rerank"]
OTHERS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/generate", "/v1/models"]

# Values that are always taken, so that most answers are answers; others may be anything of the schema's.
MILD: dict[str, dict[str, Any]] = {
    "model": {"enum": [None]},
    "input": {"enum": ["a", LONG, ["a", "b c"], [5, 6], [[5, 6], [7]]]},
    "text_1": {"enum": ["a", LONG]},
    "text_2": {"enum": ["b", ["a", LONG]]},
    "query": {"enum": ["a", LONG]},
    "documents": {"enum": [["a", LONG], [{"text": "a"}]]},
    "encoding_format": {"enum": ["float", "base64", None]},
    "truncate_prompt_tokens": {"enum": [-1, 4, 60]},
    "truncation_side": {"enum": ["left", "right", None]},
    "use_activation": {"type": ["boolean", "null"]},
    "user": {"type": ["string", "null"]},
    "top_n": {"type": "integer", "minimum": 0, "maximum": 5},
}
REQUIRED = {"/score": ["text_1", "text_2"], "/rerank": ["query", "documents"]}


@dataclass
class Pooled:
    """A server: where it is, and where a strict one of the same model is."""

    url: str
    strict: str


def serve(path: Path) -> Iterator[Pooled]:
    one, url = start(path, "--served-model-name", "tiny")
    two, strict = start(path, "--served-model-name", "tiny", "--strict-requests")
    yield Pooled(url, strict)
    end(one)
    end(two)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooled]:
    directory = save(make_encoder("bert"), tmp_path_factory.mktemp("embed"), matryoshka_dimensions=[8, 16])
    add_sentence_files(directory, {"pooling_mode_mean_tokens": True}, limits={"max_seq_length": 64})
    yield from serve(directory)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooled]:
    head = make_encoder("bert", "ForSequenceClassification", num_labels=1)
    yield from serve(save(head, tmp_path_factory.mktemp("rank")))


def check(server: Any, path: str) -> None:
    """Bodies that the document allows and forbids; then such as are answered: what comes is as it says."""
    document = HTTP.get(server.url + "/openapi.json").json()
    for operation in operations_of(document, server, path):
        if not operation.body:
            assert set(try_out(operation, POSITIVE, 3)) <= {200, 404}
            continue
        try_out(operation, POSITIVE, 8)
        assert 200 not in try_out(operation, NEGATIVE, 10)


def check_answers(server: Any, path: str) -> None:
    document = HTTP.get(server.url + "/openapi.json").json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][body.rpartition("/")[2]]
    needed = next((names for end, names in REQUIRED.items() if path.endswith(end)), ["input"])
    known = {name: value for name, value in MILD.items() if name in schema["properties"]}
    others = {name for names in [*REQUIRED.values(), ["input"]] for name in names} - set(needed)
    schema["properties"] = {name: value for name, value in known.items() if name not in others}
    schema |= {"required": needed, "additionalProperties": False}
    for operation in operations_of(document, server, path):
        statuses = try_out(operation, POSITIVE, 20)
        assert statuses.count(200) >= 15, statuses


@pytest.mark.parametrize("path", [*EMBEDS, *OTHERS])
def test_the_document_is_true_of_embeddings(embedder: Pooled, path: str) -> None:
    check(embedder, path)


@pytest.mark.parametrize("path", CLASSIFIES)
def test_the_document_is_true_of_classes_and_scores(classifier: Pooled, path: str) -> None:
    check(classifier, path)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/score", "/rerank"])
def test_answers_of_embeddings_are_as_the_document_says(embedder: Pooled, path: str) -> None:
    check_answers(embedder, path)


@pytest.mark.parametrize("path", ["/classify", "/pooling", "/score", "/rerank"])
def test_answers_of_classes_and_scores_are_as_the_document_says(classifier: Pooled, path: str) -> None:
    check_answers(classifier, path)


# --- fields ----------------------------------------------------------------------------------------------------------

# What a single answer does not show.
ELSEWHERE = {"user": "the tenant", "cache_salt": "who shares cached blocks"}

Fields = dict[str, tuple[dict[str, Any], dict[str, Field]]]


def outcome(server: Pooled, fields: Fields, route: str, name: str) -> str:
    """What becomes of a field."""
    base, given = fields[route]
    body = {key: value for key, value in {**base, **given[name].beside}.items() if value is not None}
    asked = {**body, name: given[name].value}
    answer, strict = HTTP.post(server.url + route, json=asked), HTTP.post(server.strict + route, json=asked)
    if answer.status_code != 200:
        assert answer.status_code == strict.status_code == 400
        assert told_of(route, name, [json.dumps(answer.json()["error"])]), answer.text
        return "refused"
    if told_of(route, name, answer.json().get("warnings", [])):
        assert strict.status_code == 400
        assert told_of(route, name, [strict.json()["error"]["message"]]), strict.text
        return "told"
    assert strict.status_code == 200, strict.text
    usual = HTTP.post(server.url + route, json=body)
    same = usual.status_code == 200 and plain(usual.json()) == plain(answer.json())
    return "ignored" if same and name not in ELSEWHERE else "used"


@pytest.mark.parametrize(
    ("route", "name"), [(route, name) for route, (_, given) in EMBEDDING.items() for name in given]
)
def test_no_field_of_an_embedding_server_is_passed_over(embedder: Pooled, route: str, name: str) -> None:
    assert outcome(embedder, EMBEDDING, route, name) != "ignored"


@pytest.mark.parametrize(
    ("route", "name"), [(route, name) for route, (_, given) in CLASSIFYING.items() for name in given]
)
def test_no_field_of_a_classifying_server_is_passed_over(classifier: Pooled, route: str, name: str) -> None:
    assert outcome(classifier, CLASSIFYING, route, name) != "ignored"


def test_a_field_that_is_passed_over_would_be_found(embedder: Pooled) -> None:
    usual: Fields = {"/v1/embeddings": ({"input": LONG}, {"add_special_tokens": Field(True)})}
    assert outcome(embedder, usual, "/v1/embeddings", "add_special_tokens") == "ignored"
