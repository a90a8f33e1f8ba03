"""Errors name the field that they are about, as the API that was asked calls it."""

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.inputs.pooling import PoolingProcessor
from octavo.outputs.answer.choose import choose_formats
from octavo.serving.naming import MESSAGES, RESPONSES
from octavo.serving.openai import schema, wishes
from octavo.serving.pooling import job
from octavo.serving.state import warned_field
from octavo.spec.pooling import PoolerSpec
from octavo.text.chat_template import ChatTemplate
from tests.serving.request_fields import TALK, TOOL, USER
from tests.serving.scripted import HTTP, TEMPLATE, RunningServer, config_of, run_server
from tests.serving.scripted_engine import CONTEXT

CHAT, TEXT, ITEMS, TURNS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
LONG = "x" * CONTEXT
BASES: dict[str, dict[str, Any]] = {
    CHAT: TALK,
    TEXT: {"prompt": "Hi"},
    ITEMS: {"input": "Hi"},
    TURNS: {"model": "tiny", "max_tokens": 8, **TALK},
    "/tokenize": TALK,
    "/v1/embeddings": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/v2/embed": {"texts": ["a"]},
    "/rerank": {"query": "a", "documents": ["b"]},
}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
TAGS = {"type": "structural_tag", "format": {"type": "or"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}
# Values that ask for something, where it matters which.
ASKING: dict[str, Any] = {"mirostat": 2, "dry_multiplier": 1.0, "samplers": ["top_k"], "stop": ["o"]}
ASKING |= {"chat_template": "{{ 1 }}", "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5}
ASKING |= {"logit_bias": {"65": 1.0}, "allowed_token_ids": [65], "bad_words": ["oh"], "logits_rules": [{"ban": [65]}]}

Case = tuple[str, dict[str, Any], str]

UNSUPPORTED: list[Case] = [
    *((CHAT, {name: ASKING.get(name, [1])}, name) for name in schema._UNSUPPORTED),  # pyright: ignore[reportPrivateUsage]
    *(
        (TEXT, {"use_beam_search": True, name: ASKING[name]}, name)
        for name in wishes._NOT_WITH_BEAMS  # pyright: ignore[reportPrivateUsage]
    ),
    (TEXT, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_object"}, "use_beam_search": True}, "response_format"),
    (TEXT, {"guided_regex": "a", "use_beam_search": True}, "guided_regex"),
    (CHAT, {"response_format": TAGS}, "response_format"),
    (CHAT, {"structured_outputs": {"structural_tag": TAGS}}, "structured_outputs"),
    (CHAT, {"modalities": ["audio"]}, "modalities"),
    (CHAT, {"thinking_token_budget": 4}, "thinking_token_budget"),
    (CHAT, {"tools": [TOOL]}, "tools"),
    (CHAT, {"tools": [{"type": "custom"}]}, "tools"),
    (CHAT, {"messages": [IMAGE]}, "messages"),
    ("/tokenize", {"chat_template": "{{ 1 }}"}, "chat_template"),
    (ITEMS, {"conversation": "c"}, "conversation"),
    (ITEMS, {"prompt": {"id": "p"}}, "prompt"),
    (ITEMS, {"input": [{"type": "computer_call"}]}, "input"),
    (ITEMS, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    (ITEMS, {"tools": [{"type": "web_search"}]}, "tools"),
    (ITEMS, {"tools": [{"type": "function", "name": "f"}]}, "tools"),
    (ITEMS, {"tool_choice": {"type": "file_search"}}, "tool_choice"),
    (ITEMS, {"text": {"format": {"type": "grammar"}}}, "text"),
    (ITEMS, {"text": {"format": TAGS}}, "text"),
]
POOLED: list[Case] = [
    *(
        (route, {name: "x"}, name)
        for route in ("/v1/embeddings", "/score", "/v2/embed")
        for name in job._UNSUPPORTED  # pyright: ignore[reportPrivateUsage]
    ),
    ("/v2/embed", {"images": ["x"]}, "images"),
    ("/score", {"text_1": {"content": [{"type": "image_url"}]}}, "text_1"),
    ("/v1/embeddings", {"input": LONG + "x"}, "input"),
    ("/v1/embeddings", {"input": [[1 << 20]]}, "input"),
    ("/v1/embeddings", {"input": None, "messages": [{**USER, "content": LONG}]}, "messages"),
    ("/v2/embed", {"texts": [LONG + "x"], "truncate": "NONE"}, "texts"),
    ("/v2/embed", {"texts": None, "inputs": [LONG + "x"], "truncate": "NONE"}, "inputs"),
    ("/v2/embed", {"output_dimension": 3}, "output_dimension"),
    ("/score", {"text_1": LONG + "x"}, "text_1"),
    ("/score", {"text_2": ["a", LONG + "x"]}, "text_2"),
    ("/score", {"text_1": None, "text_2": None, "queries": LONG + "x", "documents": ["a"]}, "queries"),
    ("/score", {"text_1": None, "text_2": None, "data_1": ["a", "b"], "data_2": ["a"]}, "data_1"),
    ("/rerank", {"query": LONG + "x"}, "query"),
    ("/rerank", {"documents": ["a", LONG + "x"]}, "documents"),
]
# What else is named by another field than completions have for it.
OTHERS: list[Case] = [
    (TEXT, {"prompt": LONG}, "prompt"),
    (CHAT, {"messages": [{**USER, "content": LONG}]}, "messages"),
    (CHAT, {"max_tokens": CONTEXT}, "messages"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, "response_format"),
    (CHAT, {"guided_regex": "("}, "guided_regex"),
    (ITEMS, {"input": LONG}, "input"),
    (ITEMS, {"input": LONG, "truncation": "auto"}, "input"),
    (ITEMS, {"max_output_tokens": CONTEXT}, "input"),
    (ITEMS, {"text": {"format": {"type": "json_schema"}}}, "text"),
    (ITEMS, {"text": {"format": {"type": "json_schema", "schema": False}}}, "text"),
    (ITEMS, {"input": [USER, CALL]}, "input"),
    (ITEMS, {"tools": [{"type": "function", "name": "a b"}]}, "tools"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


@pytest.fixture(scope="module")
def pooled() -> Iterator[RunningServer]:
    with run_server() as running:
        inputs, spec = running.state.inputs, PoolerSpec("embed", "mean", 8, matryoshka=(4,))
        running.state.pooling = PoolingProcessor(inputs.tokenizer, inputs.limits, spec, "tiny")
        yield running


def refused(server: RunningServer, case: Case) -> dict[str, Any]:
    route, body, _ = case
    whole = {name: value for name, value in {**BASES[route], **body}.items() if value is not None}
    answer = HTTP.post(server.url + route, json=whole)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("case", [*UNSUPPORTED, *OTHERS], ids=str)
def test_an_error_names_the_field(server: RunningServer, case: Case) -> None:
    assert refused(server, case)["param"] == case[2]


@pytest.mark.parametrize("turned", [False, True])
def test_the_same_wrong_form_is_named_as_each_api_names_it(turned: bool) -> None:
    form = {"type": "json_schema", "name": "a", "schema": False}
    cases: list[Case] = [
        ("/v1/responses", {"text": {"format": form}}, "text"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": form}}, "response_format"),
        ("/v1/responses", {"text": {"format": form}}, "text"),
    ]
    with run_server() as fresh:  # which has not refused it yet, in other words
        for case in cases[turned:]:
            assert refused(fresh, case)["param"] == case[2]


@pytest.mark.parametrize("case", POOLED, ids=str)
def test_an_error_of_a_pooled_route_names_the_field(pooled: RunningServer, case: Case) -> None:
    assert refused(pooled, case)["param"] == case[2]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ((ITEMS, {"input": [USER, CALL]}, ""), "input: a function_call's arguments is not JSON"),
        ((ITEMS, {"input": [USER, CALL]}, ""), "cut off by max_output_tokens?"),
        ((ITEMS, {"text": {"format": {"type": "xml"}}}, ""), "text.format: type 'xml'"),
        ((ITEMS, {"text": {"format": {"type": "json_schema"}}}, ""), "text.format.schema is missing"),
        ((ITEMS, {"tools": [{"type": "function", "name": "a b"}]}, ""), "tools[0].name must be"),
        ((ITEMS, {"tool_choice": "max_tokens"}, ""), '{"type": "function", "name": ...}, got \'max_tokens\''),
        ((TURNS, {"stop_sequences": [""]}, ""), "stop_sequences must hold"),
        ((TURNS, {"tools": [{"name": "a b", "input_schema": {}}]}, ""), "tools.0.name must be"),
        (
            (TURNS, {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, ""),
            "tools.0.input_schema must be of type 'object'",
        ),
    ],
)
def test_an_error_speaks_of_the_fields_that_were_sent(server: RunningServer, case: Case, says: str) -> None:
    assert says in refused(server, case)["message"]


@pytest.mark.parametrize("kind", ["embed", "classify"])
def test_a_text_that_is_too_long_to_be_scored_is_pointed_at(kind: Any) -> None:
    with run_server() as running:
        inputs, spec = running.state.inputs, PoolerSpec(kind, "mean", 8 if kind == "embed" else 1)
        running.state.pooling = PoolingProcessor(inputs.tokenizer, inputs.limits, spec, "tiny")
        error = refused(running, ("/rerank", {"documents": ["a", "b", LONG * 20]}, ""))
        assert error["message"].startswith("documents[2]: this model's maximum context length is")
        error = refused(running, ("/score", {"text_1": LONG + "x"}, ""))
        assert (error["param"], error["message"][:8]) == ("text_1", "text_1: ")


def test_a_budget_of_thinking_is_called_as_it_was_sent() -> None:
    with run_server(config=config_of(strict_requests=True)) as running:
        running.state.inputs.chat_template = ChatTemplate(TEMPLATE + "{{ enable_thinking }}")
        running.state.formats = choose_formats(f"{TEMPLATE} </think>")
        thinking = {"type": "enabled", "budget_tokens": 2000}
        assert refused(running, (TURNS, {"thinking": thinking}, ""))["message"].startswith("thinking.budget_tokens")
        assert refused(running, (ITEMS, {"reasoning": {"effort": "low"}}, ""))["message"].startswith("reasoning.effort")


@pytest.mark.parametrize(
    ("warning", "field"),
    [
        ("unknown field 'colour' was ignored", "colour"),
        ("unknown field 'messages[0].mood' was ignored", "messages"),
        ("unknown field 'my field' was ignored", "my field"),
        (
            "response_format.propertys is no keyword of JSON Schema and has no effect; 'properties' is one",
            "response_format",
        ),
        ("tools[0].function.parameters.x is no keyword", "tools"),
        ("store: the response could not be stored", "store"),
        ("guided_json is an old name: use structured_outputs.json", "guided_json"),
        ("logit_bias of token 5 was brought into the range of +-100", "logit_bias"),
        ("the answer ends where its form ends", None),
        ("numbers are written as text", None),
    ],
)
def test_a_warning_names_a_field_only_where_it_begins_with_one(warning: str, field: str | None) -> None:
    assert warned_field(warning) == field


@pytest.mark.parametrize(
    ("kind", "width", "advice"),
    [
        (
            "embed",
            8,
            "it does embed and token_embed and generates no text; use /v1/embeddings or /score or /rerank or ",
        ),
        ("classify", 3, "it does classify and generates no text; use /classify or /pooling (LLM.classify, LLM.encode)"),
        ("token_classify", 3, "it does token_classify and generates no text; use /pooling (LLM.encode)"),
    ],
)
def test_a_pooled_model_advises_what_it_can(kind: Any, width: int, advice: str) -> None:
    with run_server() as running:
        inputs, spec = running.state.inputs, PoolerSpec(kind, "mean", width)
        running.state.pooling = PoolingProcessor(inputs.tokenizer, inputs.limits, spec, "tiny")
        error = refused(running, ("/v1/chat/completions", {}, ""))
        assert advice in error["message"]
        assert error["param"] == "model"
        wrong = "/v1/embeddings" if kind != "embed" else "/classify"
        assert refused(running, (wrong, {}, ""))["param"] == "model"


def test_what_is_quoted_or_only_alike_stays() -> None:
    for names in (RESPONSES, MESSAGES):
        for text in ("'max_tokens' and response_formats", "the prompt has 9 tokens", "messages_of", "to stop early"):
            assert names.message(text) == text
