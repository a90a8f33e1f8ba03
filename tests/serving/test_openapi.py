"""The API's document: complete, and true of what the server really does, as schemathesis tries to disprove."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from octavo.serving.app import CONTROL_ROUTES, DOCUMENT_ROUTES, ROUTES
from octavo.serving.openapi import OPERATIONS
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, run_server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(config=config_of(file_store=str(tmp_path_factory.mktemp("files")))) as running:
        yield running


def test_every_route_is_described() -> None:
    served = {
        (str(method).lower(), route.path.replace(":path}", "}"))
        for route in (*ROUTES, *CONTROL_ROUTES, *DOCUMENT_ROUTES)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(operation.method, operation.path) for operation in OPERATIONS} == served


def test_the_document_follows_the_configuration(server: RunningServer) -> None:
    plain = HTTP.get(server.url + "/openapi.json").json()
    assert plain["openapi"].startswith("3.1")
    assert plain["info"] == {"title": "Octavo", "version": "1.2.3"}
    assert "/pause" not in plain["paths"]
    assert "401" not in plain["paths"]["/v1/models"]["get"]["responses"]
    body = plain["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    chat = plain["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert chat["required"] == ["messages"]
    assert "temperature" in chat["properties"]
    config = config_of(api_key=("k",), root_path="/api")
    with run_server(config=config, dev_mode=True) as guarded:
        told = HTTP.get(guarded.url + "/openapi.json").json()
        assert told["servers"] == [{"url": "/api"}]
        assert "/pause" in told["paths"]
        assert {"401", "429"} <= set(told["paths"]["/v1/models"]["get"]["responses"])
        assert told["security"] == [{"key": []}]


def test_the_page_lists_every_path_and_loads_nothing(server: RunningServer) -> None:
    page = HTTP.get(server.url + "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page.text
    assert "http" not in page.text.replace("https", "http").replace("http_", "")
    for path in HTTP.get(server.url + "/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page.text


def test_the_document_can_be_switched_off() -> None:
    with run_server(config=config_of(disable_fastapi_docs=True)) as server:
        for path in ("/openapi.json", "/docs"):
            assert HTTP.get(server.url + path).status_code == 404


PATHS = sorted({operation.path for operation in OPERATIONS} - {route.path for route in CONTROL_ROUTES})


POSITIVE, NEGATIVE = GenerationMode("positive"), GenerationMode("negative")

# Fields and values of which the server refuses no combination: so that most answers are answers.
MILD: dict[str, dict[str, Any]] = {
    "model": {"enum": ["tiny", None]},
    "stream": {"enum": [True, False]},
    "n": {"enum": [1, 2]},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "seed": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    "stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 9},
    "return_token_ids": {"type": "boolean"},
    "user": {"type": ["string", "null"]},
    "echo": {"type": "boolean"},
}


def operations_of(document: dict[str, Any], server: RunningServer, path: str) -> list[Any]:
    api: Any = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=server.url)
    operations = [found.ok() for found in api.include(path=path).get_all_operations()]
    assert operations
    return operations


def try_out(operation: Any, mode: GenerationMode, examples: int) -> list[int]:
    """Send what the document allows, or what it forbids, and check every answer; returns the statuses."""
    statuses: list[int] = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[check for check in HealthCheck if isinstance(check, HealthCheck)],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case: Any) -> None:
        answer = case.call(timeout=PATIENCE)
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    tried()
    return statuses


@pytest.mark.parametrize("path", PATHS)
def test_the_document_is_true(server: RunningServer, path: str) -> None:
    for operation in operations_of(HTTP.get(server.url + "/openapi.json").json(), server, path):
        if operation.body:
            try_out(operation, POSITIVE, 20)
            assert 200 not in try_out(operation, NEGATIVE, 30)
        else:
            assert set(try_out(operation, POSITIVE, 3)) <= {200, 404}


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest")]
)
def test_answers_are_as_the_document_says(server: RunningServer, path: str, name: str) -> None:
    document = HTTP.get(server.url + "/openapi.json").json()
    schema = document["components"]["schemas"][name]
    kept = {field: schema["properties"][field] for field in schema["required"]}
    if "prompt" in kept:
        kept["prompt"] = {"type": "string", "minLength": 1, "maxLength": 20}  # ids may be out of the vocabulary
    schema["properties"] = kept | MILD
    schema["additionalProperties"] = False
    for operation in operations_of(document, server, path):
        statuses = try_out(operation, POSITIVE, 40)
        assert statuses.count(200) >= 20
