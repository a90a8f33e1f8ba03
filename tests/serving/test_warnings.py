"""Nothing is ignored silently: unknown fields inside of objects are told where they are, or refused."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.serving.nested import MESSAGES, unknown_fields
from octavo.text.chat_template import ChatTemplate
from tests.serving.scripted import HTTP, TEMPLATE, RunningServer, config_of, run_server

USER = {"role": "user", "content": "Hi"}
CHAT, TEXT, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x-mine": 1}}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    with run_server(config=config_of(strict_requests=True)) as running:
        yield running


CASES: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": [{**USER, "mood": 1}]}, "messages[0].mood"),
    (
        CHAT,
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]},
        "messages[1].content[0].b",
    ),
    (CHAT, {"messages": [USER], "tools": [{**TOOL, "bar": 1}], "tool_choice": "none"}, "tools[0].bar"),
    (
        CHAT,
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f", "bar": 1}}],
            "tool_choice": "none",
        },
        "tools[0].function.bar",
    ),
    (CHAT, {"messages": [USER], "response_format": {"type": "text", "x": 1}}, "response_format.x"),
    (CHAT, {"messages": [USER], "stream_options": {"y": 1}, "stream": True}, "stream_options.y"),
    (TEXT, {"prompt": "Hi", "response_format": {"type": "text", "x": 1}}, "response_format.x"),
    (RESPONSES, {"input": [{**USER, "mood": 1}]}, "input[0].mood"),
    (RESPONSES, {"input": "Hi", "text": {"format": {"type": "text", "x": 1}}}, "text.format.x"),
    (RESPONSES, {"input": "Hi", "reasoning": {"depth": 1}}, "reasoning.depth"),
    (
        ANTHROPIC,
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]},
        "messages[0].content[0].b",
    ),
    (ANTHROPIC, {"max_tokens": 9, "messages": [USER], "metadata": {"z": 1}}, "metadata.z"),
]


@pytest.mark.parametrize(("path", "body", "place"), CASES, ids=[case[2] for case in CASES])
def test_unknown_fields_inside_are_told(
    server: RunningServer, strict: RunningServer, path: str, body: Any, place: str
) -> None:
    body = {"model": "tiny", **body}
    answer = HTTP.post(server.url + path, json=body)
    assert answer.status_code == 200
    assert f"unknown field '{place}' was ignored" in answer.text
    refused = HTTP.post(strict.url + path, json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert place in error["message"]
    assert error.get("param") == (None if path == ANTHROPIC else re.split(r"\W", place)[0])


def test_known_fields_and_free_ones_are_not_told(strict: RunningServer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"any": 1}'}}
    messages = [
        {"role": "system", "content": "s", "name": "n"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "r", "refusal": None},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]
    body = {"messages": messages, "tools": [TOOL], "tool_choice": "none", "stream_options": {"include_usage": True}}
    schema = {"type": "object", "properties": {"mood": {"type": "string"}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    assert HTTP.post(strict.url + CHAT, json={**body, "stream": True}).status_code == 200
    assert (
        HTTP.post(strict.url + CHAT, json={"messages": [USER], "response_format": form, "max_tokens": 2}).status_code
        == 200
    )


def test_what_the_template_reads_is_not_told() -> None:
    template = ChatTemplate(TEMPLATE.replace("<{{ m.role }}>", "<{{ m.role }} {{ m.mood }}>"))
    assert list(unknown_fields([{**USER, "mood": 1}], MESSAGES, "messages", template.mentions)) == []


def test_a_hostile_body_gets_few_warnings(server: RunningServer) -> None:
    message = {**USER, **{f"x{n}" * 60: 1 for n in range(900)}}
    answer = HTTP.post(server.url + CHAT, json={"messages": [message] * 3}).json()
    assert len(answer["warnings"]) == 16
    assert max(map(len, answer["warnings"])) < 120


def test_log_probabilities_of_responses(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as official:
        options: dict[str, Any] = {"model": "tiny", "input": "Hi", "include": ["message.output_text.logprobs"]}
        for top in (None, 0, 2):
            more: dict[str, Any] = {} if top is None else {"top_logprobs": top}
            whole = official.responses.create(**options, **more)
            (part,) = whole.output[0].content  # type: ignore[union-attr]
            assert "".join(item.token for item in part.logprobs) == whole.output_text == "Hello, world!"  # type: ignore
            assert {len(item.top_logprobs) for item in part.logprobs} == {top or 0}  # type: ignore
            events = list(official.responses.create(**options, **more, stream=True))
            told = [item for event in events if event.type == "response.output_text.delta" for item in event.logprobs]
            assert [item.model_dump(include={"token", "logprob"}) for item in told] == [
                item.model_dump(include={"token", "logprob"})
                for item in part.logprobs  # type: ignore
            ]
            assert whole.top_logprobs == (top or 0)
        plain = official.responses.create(model="tiny", input="Hi")
        assert plain.output[0].content[0].logprobs == []  # type: ignore
        wrong = HTTP.post(server.url + RESPONSES, json={"input": "Hi", "top_logprobs": 99})
        assert wrong.status_code == 400
        assert "top_logprobs" in wrong.json()["error"]["message"]


FORM = {"type": "object", "propertys": {"a": {}}, "properties": {"type": {"Type": "string"}}, "x-mine": 1}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            CHAT,
            {
                "messages": [USER],
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}},
            },
            "response_format",
        ),
        (TEXT, {"prompt": "Hi", "structured_outputs": {"json": FORM}}, "structured_outputs"),
        (TEXT, {"prompt": "Hi", "guided_json": json.dumps(FORM)}, "guided_json"),
        (
            RESPONSES,
            {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": FORM}}},
            "text.format",
        ),
        (
            ANTHROPIC,
            {
                "max_tokens": 9,
                "messages": [USER],
                "output_config": {"format": {"type": "json_schema", "schema": FORM}},
            },
            "output_config.format",
        ),
    ],
)
def test_misspelt_keywords_of_a_schema_are_told(server: RunningServer, path: str, body: Any, told: str) -> None:
    warnings = HTTP.post(server.url + path, json={"model": "tiny", **body}).json()["warnings"]
    assert [text for text in warnings if "JSON Schema" in text] == [
        f"{told}.propertys is no keyword of JSON Schema and has no effect; 'properties' is one",
        f"{told}.properties.type.Type is no keyword of JSON Schema and has no effect; 'type' is one",
    ]


TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": FORM, "end": "</f>"}],
    "triggers": ["<f>"],
}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            CHAT,
            {"tools": [TOOL, {"type": "function", "function": {"name": "g", "parameters": FORM}}]},
            "tools[1].function.parameters",
        ),
        (RESPONSES, {"tools": [{"type": "function", "name": "g", "parameters": FORM}]}, "tools[0].parameters"),
        (ANTHROPIC, {"tools": [{"name": "g", "input_schema": FORM}]}, "tools.0.input_schema"),
        (CHAT, {"response_format": TAGS}, "response_format.tags[0].schema"),
        (CHAT, {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, "structured_outputs.tags[0].schema"),
    ],
)
def test_so_are_those_of_tools_and_tags(server: RunningServer, path: str, body: Any, told: str) -> None:
    talk: dict[str, Any] = {"input": "Hi"} if path == RESPONSES else {"messages": [USER], "max_tokens": 9}
    if "tools" in body:
        talk["tool_choice"] = {"type": "none"} if path == ANTHROPIC else "none"
    answer = HTTP.post(server.url + path, json={"model": "tiny", **talk, **body}).json()
    assert f"{told}.propertys is no keyword of JSON Schema and has no effect; 'properties' is one" in answer["warnings"]


def test_bad_words_and_a_form(server: RunningServer) -> None:
    body = {"prompt": "Hi", "bad_words": ["cat"]}
    answer = HTTP.post(server.url + TEXT, json={**body, "structured_outputs": {"regex": "cat|dog"}})
    assert (
        "bad_words has no effect where the form (structured_outputs) leaves nothing else" in answer.json()["warnings"]
    )
    answer = HTTP.post(server.url + TEXT, json={**body, "guided_choice": ["cat", "dog"]})
    assert not any("bad_words" in text for text in answer.json()["warnings"])
    refused = HTTP.post(server.url + TEXT, json={**body, "structured_outputs": {"choice": ["cat", "cats"]}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "bad_words")
    assert "every choice of structured_outputs has one" in refused.json()["error"]["message"]


def test_warnings_speak_of_the_fields_that_were_sent(server: RunningServer) -> None:
    asked = {"model": "tiny", "input": "Hi", "reasoning": {"effort": "low"}}
    (told,) = HTTP.post(server.url + RESPONSES, json=asked).json()["warnings"]
    assert told.startswith("reasoning.effort has no effect")
    asked = {"model": "tiny", "max_tokens": 9, "messages": [USER], "output_config": {"effort": "low"}}
    (told,) = HTTP.post(server.url + ANTHROPIC, json=asked).json()["warnings"]
    assert told.startswith("output_config.effort has no effect")
