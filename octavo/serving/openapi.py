"""The OpenAPI document of the server, made of the types that bodies are read into and answers written from."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.serving.anthropic.answers import Message, MessageEvent, MessagesError, TokenCount
from octavo.serving.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.serving.batches.schema import BatchList, BatchObject, BatchRequest
from octavo.serving.errors import of_messages
from octavo.serving.files.schema import PURPOSES, UPLOADED, FileDeleted, FileList, FileObject
from octavo.serving.openai.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Detokenized,
    ErrorAnswer,
    Generated,
    ModelCard,
    ModelList,
    Tokenized,
)
from octavo.serving.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from octavo.serving.pooling.answers import Classes, CohereEmbeddings, Embeddings, PoolingAnswer, Reranked, Scores
from octavo.serving.pooling.schema import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from octavo.serving.responses.schema import Deleted, InputItems, ResponseEvent, ResponseObject, ResponsesRequest
from octavo.serving.state import state_of

_JSON = "application/json"
_GENERATION = (400, 404, 408, 413, 415, 429, 431, 500, 503, 504)
_TEXT_WORK = (400, 404, 408, 413, 415, 431, 500, 503)
_KEPT = (400, 404, 408, 431, 500, 503)
_PROBE = (408, 431, 503)
_CONTROL = (400, 408, 431, 500, 503)
_BEFORE = (408, 431)  # from below HTTP's routes


class Version(msgspec.Struct):
    """Octavo's version."""

    version: str


class Load(msgspec.Struct):
    """Requests under way."""

    server_load: int


class Readiness(msgspec.Struct):
    """Whether requests are taken, else why not."""

    ready: bool
    reason: str | None


class Status(msgspec.Struct):
    """What an operator asked for is done."""

    status: str


class Paused(msgspec.Struct):
    """Whether the engine is paused."""

    is_paused: bool


class Sleeping(msgspec.Struct):
    """Whether the engine sleeps."""

    is_sleeping: bool


class Profiled(msgspec.Struct):
    """What was recorded of the engine, and the files it was written to."""

    status: str
    files: list[str]
    steps: int


class ServerInfo(msgspec.Struct):
    """What the server runs with."""

    version: str
    engine: dict[str, Any]
    config: dict[str, Any]


class Unauthorized(msgspec.Struct):
    """The answer without a valid key: vLLM's, where the error is a text."""

    error: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    answer: type of a JSON answer, a media type, or None for an answer without a body. errors: statuses of error
    objects. streams: type of the JSON in each server-sent event, when the answer may come in such; with `done` the last
    event is [DONE]. query: names of query parameters and their JSON Schemas. form: schema of a multipart body.
    raw: the answer may come as bytes.
    """

    method: str
    path: str
    summary: str
    answer: Any = None
    body: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = _PROBE
    streams: Any = None
    query: tuple[tuple[str, dict[str, Any]], ...] = ()
    done: bool = True
    form: dict[str, Any] | None = None
    raw: bool = False

    @property
    def failure(self) -> type[msgspec.Struct]:
        """Type of its error objects."""
        return MessagesError if of_messages(self.path) else ErrorAnswer


_TEXT_PART = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["text", "input_text", "output_text"]},
                "text": {"type": "string"},
            },
            "required": ["type", "text"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
            "required": ["type", "refusal"],
        },
    ]
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]},
        },
        "required": ["role"],
    },
}
_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        _IDS,
        {"type": "array", "minItems": 1, "items": _IDS},
    ]
}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
}
_DOCUMENT = {
    "anyOf": [
        _TEXT,
        {"type": "object", "properties": {"text": _TEXT}, "required": ["text"], "additionalProperties": False},
        {
            "type": "object",
            "properties": {"content": {"type": "array", "minItems": 1, "items": _PART}},
            "required": ["content"],
            "additionalProperties": False,
        },
    ]
}
_DOCUMENTS = {"anyOf": [_DOCUMENT, {"type": "array", "minItems": 1, "items": _DOCUMENT}]}
# What is checked after a body has been read, where its type alone says too little: by type and field.
_NARROWED: dict[str, dict[str, dict[str, Any]]] = {
    "ChatRequest": {"messages": _MESSAGES},
    "CompletionRequest": {"prompt": _PROMPT},
    "GenerateRequest": {"prompt": {"type": "string", "minLength": 1}},
    "EmbeddingRequest": {"input": _PROMPT},
    "PoolingRequest": {"input": _PROMPT},
    "ClassifyRequest": {"input": _PROMPT},
    "ScoreRequest": {"text_1": _DOCUMENTS, "text_2": _DOCUMENTS},
    "RerankRequest": {
        "query": _DOCUMENT,
        "documents": _DOCUMENTS,
        "top_n": {"type": ["integer", "null"], "minimum": 0},
    },
    "DetokenizeRequest": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
}

_UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(UPLOADED)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "required": ["file", "purpose"],
}
_FILES = (400, 404, 408, 413, 415, 431, 500, 503)
_ORDER = ("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"})
_AFTER = ("after", {"type": "string"})


def _limit(default: int, most: int) -> tuple[str, dict[str, Any]]:
    return "limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}


# Of these, narrowed fields that may be left out.
_NOT_REQUIRED = {"RerankRequest": {"top_n"}}
_LEVEL = {"type": "string", "enum": ["1", "2"], "default": "1"}
_ABORT_OR_WAIT = {"type": "string", "enum": ["abort", "wait"], "default": "abort"}
_PAUSE_MODES = {"type": "string", "enum": ["abort", "wait", "keep"], "default": "abort"}
_TAGS = {"type": "array", "items": {"type": "string", "enum": ["weights", "kv_cache"]}}

OPERATIONS: tuple[Operation, ...] = (
    Operation("post", "/v1/chat/completions", "Answer messages", ChatCompletion, ChatRequest, _GENERATION, ChatChunk),
    Operation("post", "/v1/completions", "Continue text", Completion, CompletionRequest, _GENERATION, CompletionChunk),
    Operation(
        *("post", "/v1/messages", "Answer messages, as Anthropic's API", Message, MessagesRequest, _GENERATION),
        streams=MessageEvent,
        done=False,
    ),
    Operation(*("post", "/v1/messages/count_tokens", "Tokens of messages", TokenCount, CountTokensRequest, _TEXT_WORK)),
    Operation(
        *("post", "/v1/responses", "Answer items", ResponseObject, ResponsesRequest, _GENERATION),
        streams=ResponseEvent,
        done=False,
    ),
    Operation(
        *("get", "/v1/responses/{response_id}", "A response that was stored, or its events", ResponseObject, None),
        errors=_KEPT,
        streams=ResponseEvent,
        query=(("stream", {"type": "boolean"}), ("starting_after", {"type": "integer", "minimum": 0})),
        done=False,
    ),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response", Deleted, errors=_KEPT),
    Operation("post", "/v1/responses/{response_id}/cancel", "End a response", ResponseObject, errors=_KEPT),
    Operation(
        *("get", "/v1/responses/{response_id}/input_items", "What a response was made of", InputItems, None, _KEPT),
        query=(
            _limit(20, 100),
            _ORDER,
            _AFTER,
        ),
    ),
    Operation("post", "/v1/files", "Keep a file", FileObject, errors=_FILES, form=_UPLOAD),
    Operation(
        *("get", "/v1/files", "The files kept", FileList, None, _KEPT),
        query=(_limit(10_000, 10_000), _ORDER, _AFTER, ("purpose", {"type": "string", "enum": list(PURPOSES)})),
    ),
    Operation("get", "/v1/files/{file_id}", "One of them", FileObject, errors=_KEPT),
    Operation("delete", "/v1/files/{file_id}", "Forget a file", FileDeleted, errors=_KEPT),
    Operation("get", "/v1/files/{file_id}/content", "Its content", "application/octet-stream", errors=_KEPT),
    Operation("post", "/v1/batches", "Run the requests of a file", BatchObject, BatchRequest, _FILES),
    Operation(
        *("get", "/v1/batches", "The batches there are", BatchList, None, _KEPT),
        query=(_limit(20, 100), _ORDER, _AFTER),
    ),
    Operation("get", "/v1/batches/{batch_id}", "One of them", BatchObject, errors=_KEPT),
    Operation("post", "/v1/batches/{batch_id}/cancel", "End a batch", BatchObject, errors=_KEPT),
    Operation(*("post", "/v1/embeddings", "Vectors of texts", Embeddings, EmbeddingRequest, _GENERATION), raw=True),
    Operation(
        "post", "/v2/embed", "Vectors of texts, as Cohere has it", CohereEmbeddings, CohereEmbedRequest, _GENERATION
    ),
    Operation(*("post", "/pooling", "Vectors or classes", PoolingAnswer, PoolingRequest, _GENERATION), raw=True),
    Operation("post", "/classify", "Classes of texts", Classes, ClassifyRequest, _GENERATION),
    Operation("post", "/v1/classify", "As /classify", Classes, ClassifyRequest, _GENERATION),
    Operation("post", "/score", "How alike texts are", Scores, ScoreRequest, _GENERATION),
    Operation("post", "/v1/score", "As /score", Scores, ScoreRequest, _GENERATION),
    Operation("post", "/rerank", "Documents by their score for a query", Reranked, RerankRequest, _GENERATION),
    Operation("post", "/v1/rerank", "As /rerank", Reranked, RerankRequest, _GENERATION),
    Operation("post", "/v2/rerank", "As /rerank", Reranked, RerankRequest, _GENERATION),
    Operation("get", "/v1/models", "The models served", ModelList),
    Operation("get", "/v1/models/{name}", "One of them", ModelCard, errors=(404, *_PROBE)),
    Operation(
        *("post", "/generate", "Continue text: a bare route", Generated, GenerateRequest, _GENERATION),
        streams=Generated,
        done=False,
    ),
    Operation("post", "/tokenize", "Text or a conversation to token ids", Tokenized, TokenizeRequest, _TEXT_WORK),
    Operation("post", "/detokenize", "Token ids to text", Detokenized, DetokenizeRequest, _TEXT_WORK),
    Operation("get", "/health", "Whether the engine takes requests"),
    Operation("get", "/ping", "As /health"),
    Operation("post", "/ping", "As /health"),
    Operation("get", "/live", "503 when only a new start of the server helps"),
    Operation("get", "/ready", "Whether requests are taken, and why not", Readiness),
    Operation("get", "/version", "Octavo's version", Version),
    Operation("get", "/load", "How many requests are under way", Load),
    Operation("get", "/metrics", "Metrics in Prometheus' text format", "text/plain", errors=(404, *_PROBE)),
    Operation("get", "/openapi.json", "This document", dict[str, Any]),
    Operation("get", "/docs", "This document for people", "text/html"),
    # Of the development mode.
    Operation("get", "/server_info", "Version, engine and every option", ServerInfo),
    Operation("post", "/pause", "Start no new requests", Status, errors=_CONTROL, query=(("mode", _PAUSE_MODES),)),
    Operation("post", "/resume", "Go on", Status, errors=_CONTROL),
    Operation("get", "/is_paused", "Whether the engine is paused", Paused),
    Operation("post", "/reset_prefix_cache", "Forget what is cached", errors=_CONTROL),
    Operation(
        *("post", "/sleep", "Release memory"), errors=_CONTROL, query=(("level", _LEVEL), ("mode", _ABORT_OR_WAIT))
    ),
    Operation("post", "/wake_up", "Take memory again", errors=_CONTROL, query=(("tags", _TAGS),)),
    Operation("post", "/start_profile", "Record what the engine's steps do", Status, errors=_CONTROL),
    Operation("post", "/stop_profile", "Write what was recorded", Profiled, errors=_CONTROL),
    Operation("get", "/is_sleeping", "Whether the engine sleeps", Sleeping),
)


def build_document(paths: Iterable[str], version: str, root_path: str, with_keys: bool) -> dict[str, Any]:
    """The document (OpenAPI 3.1).

    Args:
        paths: those that are served, as the document spells them; operations of others are left out.
        with_keys: requests need one.
    """
    served = frozenset(paths)
    operations = [operation for operation in OPERATIONS if operation.path in served]
    types: list[Any] = [kind for operation in operations for kind in _types(operation)]
    types += [ErrorAnswer, MessagesError, Unauthorized]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    # The same type may stand there several times; its schema is the same.
    named = dict(zip(map(str, types), schemas, strict=True))
    for name, narrowed in _NARROWED.items():
        if name in components:
            components[name]["properties"] |= narrowed
            components[name]["required"] = sorted(
                {*components[name].get("required", ()), *narrowed} - _NOT_REQUIRED.get(name, set())
            )
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version},
        "servers": [{"url": root_path or "/"}],
        "paths": {},
        "components": {"schemas": components},
    }
    for operation in operations:
        document["paths"].setdefault(operation.path, {})[operation.method] = _described(operation, named, with_keys)
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _types(operation: Operation) -> Iterator[Any]:
    if operation.body is not None:
        yield operation.body
    if operation.streams is not None:
        yield operation.streams
    if operation.answer is not None and not isinstance(operation.answer, str):
        yield operation.answer


def _described(operation: Operation, schemas: Mapping[str, dict[str, Any]], with_keys: bool) -> dict[str, Any]:
    failure = schemas[str(operation.failure)]
    content = _content(operation, schemas, failure)
    described: dict[str, Any] = {"summary": operation.summary, "responses": {"200": _answer("Done", content)}}
    # A probe's 503 has no error object.
    bare = {503} if operation.body is None and operation.errors is _PROBE else set[int]()
    if operation.answer is Readiness:
        described["responses"]["503"] = _answer("Not ready", content)
        bare.add(503)
    for status in operation.errors:
        # What never became a request has one form whoever asked.
        form = schemas[str(ErrorAnswer)] if status in _BEFORE else failure
        shown = {} if status in bare and operation.answer is None else {_JSON: {"schema": form}}
        described["responses"].setdefault(str(status), _answer("Refused or failed", shown))
    if with_keys:
        refused = failure if operation.failure is MessagesError else schemas[str(Unauthorized)]
        described["responses"]["401"] = _answer("No valid key", {_JSON: {"schema": refused}})
        described["responses"].setdefault("429", _answer("A limit of the key", {_JSON: {"schema": failure}}))
    if operation.body is not None:
        body = {_JSON: {"schema": schemas[str(operation.body)]}}
        described["requestBody"] = {"required": True, "content": body}
    if operation.form is not None:
        described["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": operation.form}}}
    if parameters := [*_path_parameters(operation), *_query_parameters(operation)]:
        described["parameters"] = parameters
    return described


def _content(operation: Operation, schemas: Mapping[str, dict[str, Any]], failure: dict[str, Any]) -> dict[str, Any]:
    """An answer by its media type."""
    content: dict[str, Any] = {}
    if isinstance(operation.answer, str):
        content[operation.answer] = {"schema": {"type": "string"}}
    elif operation.answer is not None:
        content[_JSON] = {"schema": schemas[str(operation.answer)]}
    if operation.raw:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    if operation.streams:
        told = {"anyOf": [schemas[str(operation.streams)], failure]}
        data = [{"const": "[DONE]"}] if operation.done else []
        data += [{"type": "string", "contentMediaType": _JSON, "contentSchema": told}]
        event = {"type": "object", "properties": {"data": {"anyOf": data}}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    return content


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content} if content else {"description": description}


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name, schema in operation.query:
        yield {"name": name, "in": "query", "required": False, "schema": schema}


async def document(request: Request) -> Response:
    """GET /openapi.json."""
    return JSONResponse(_document_of(request))


async def page(request: Request) -> Response:
    """GET /docs: the document as a page without scripts, which loads nothing from elsewhere."""
    described = _document_of(request)
    rows = "".join(
        f"<tr><td>{method.upper()}<td><code>{escape(path)}</code><td>{escape(operation['summary'])}"
        f"<td>{', '.join(operation['responses'])}"
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )
    types = "".join(
        f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(schema.get('description', ''))}</p>"
        f"<p><code>{escape(', '.join(schema.get('properties', {})))}</code></p>"
        for name, schema in sorted(described["components"]["schemas"].items())
    )
    title = f"Octavo {escape(described['info']['version'])}"
    html = (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>body{{font:16px/1.4 "
        f"sans-serif;margin:2em auto;max-width:60em}}td{{padding:.2em 1em .2em 0}}</style><h1>{title}</h1>"
        f"<p>For programs: <a href='openapi.json'>openapi.json</a></p><table>{rows}</table><h2>Types</h2>{types}</html>"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(html, media_type="text/html", headers={"Content-Security-Policy": policy})


def _document_of(request: Request) -> dict[str, Any]:
    state = state_of(request)
    if state.document is None:
        config = state.config
        paths = (str(getattr(route, "path", "")).replace(":path}", "}") for route in request.app.routes)
        with_keys = bool(config.api_key or config.api_key_file)
        state.document = build_document(paths, state.version, config.root_path.rstrip("/"), with_keys)
    return state.document
