"""Anthropic's API by its official client: whole and streamed alike, tools, thinking, system, stop sequences, errors."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from octavo.flow.request import GenerationRequest
from octavo.outputs.answer.choose import AnswerFormats, choose_formats
from octavo.serving.anthropic.partial import object_of
from octavo.text.chat_template import ChatTemplate
from octavo.text.grammar import GrammarCompiler
from tests.serving.scripted import HTTP, RunningServer, config_of, run_server
from tests.serving.scripted_engine import VOCAB, ScriptedClient, say
from tests.text.walk import first_wrong

TOOLS: list[Any] = [
    {
        "name": "add",
        "description": "adds",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
    {"name": "now", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
]
ASK: list[Any] = [{"role": "user", "content": "Hi"}]
BOTH = (
    "<think>Two of them.</think>\n\nSure.<tool_call>"
    '{"name":"add","arguments":{"a":2,"b":2}}</tool_call><tool_call>{"name":"now","arguments":{"city":"Šibenik"}}'
    "</tool_call>"
)
FORMATS = choose_formats("{{ tools }} <tool_call> </think>")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


@pytest.fixture
def script(server: RunningServer) -> Iterator[ScriptedClient]:
    client = server.client
    assert isinstance(client, ScriptedClient)
    server.state.formats = FORMATS
    client.tokens_per_step = 3
    yield client
    client.tokens_per_step, client.fail_at = 1, None
    client.script = say("Hello, world!")
    server.state.formats = AnswerFormats()


@pytest.fixture(scope="module")
def official(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def post(server: RunningServer, path: str = "/v1/messages", **body: object) -> Any:
    return HTTP.post(server.url + path, json={"model": "tiny", "messages": ASK, "max_tokens": 50, **body})


def told(message: Any) -> dict[str, Any]:
    """What a message says, without the ids, which are new each time."""
    found: dict[str, Any] = message.model_dump(exclude={"id"}, exclude_none=True)
    for block in found["content"]:
        block.pop("id", None)
    return found


def ask(official: anthropic.Anthropic, **more: Any) -> Any:
    """The whole message; that the stream adds up to the same is checked."""
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 400, "messages": ASK, **more}
    whole = official.messages.create(**options)
    with official.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert told(streamed) == told(whole)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(whole.content)
    return whole


def test_a_text(official: anthropic.Anthropic) -> None:
    message = ask(official)
    assert message.id.startswith("msg_")
    assert (message.role, message.model, message.type) == ("assistant", "tiny", "message")
    assert [block.text for block in message.content] == ["Hello, world!"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    prompt = len("<user>Hi<assistant>")
    assert message.usage.input_tokens == prompt - 3
    assert message.usage.cache_read_input_tokens == 3
    assert message.usage.output_tokens == 14


def test_the_events_as_they_are_sent(server: RunningServer) -> None:
    lines = post(server, stream=True, max_tokens=2).text.split("\n\n")
    assert lines.pop() == ""
    events = [(line.splitlines()[0], json.loads(line.splitlines()[1].removeprefix("data: "))) for line in lines]
    assert all(name == f"event: {data['type']}" for name, data in events)
    assert [data["type"] for _, data in events] == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert events[0][1]["message"]["content"] == []
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}


def test_ends(official: anthropic.Anthropic) -> None:
    assert ask(official, max_tokens=5).stop_reason == "max_tokens"
    stopped = ask(official, stop_sequences=["zzz", ", w"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", w")
    assert stopped.content[0].text == "Hello"
    assert ask(official, stop_sequences=["H"]).content == []


def test_async(server: RunningServer) -> None:
    async def both() -> tuple[Any, Any]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            whole = client.messages.create(model="tiny", max_tokens=20, messages=ASK)
            async with client.messages.stream(model="tiny", max_tokens=20, messages=ASK) as stream:
                return await whole, "".join([text async for text in stream.text_stream])

    whole, text = asyncio.run(both())
    assert whole.content[0].text == text == "Hello, world!"


@pytest.mark.parametrize("step", [1, 2, 7, 400])
def test_thinking_text_and_parallel_calls(official: anthropic.Anthropic, script: ScriptedClient, step: int) -> None:
    script.script, script.tokens_per_step = say(BOTH), step
    message = ask(official, tools=TOOLS)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "Two of them."
    assert message.content[1].text == "Sure."
    assert [(call.name, call.input) for call in message.content[2:]] == [
        ("add", {"a": 2, "b": 2}),
        ("now", {"city": "Šibenik"}),
    ]
    assert message.stop_reason == "tool_use"
    assert len({call.id for call in message.content[2:]}) == 2
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(official, tools=TOOLS, tool_choice=one).content) == 3


@pytest.mark.parametrize("cut", [95, 99, 104, 110])
def test_a_call_that_was_cut_off(official: anthropic.Anthropic, script: ScriptedClient, cut: int) -> None:
    script.script = say(BOTH)
    message = ask(official, tools=TOOLS, max_tokens=cut)
    assert message.stop_reason == "max_tokens"
    assert message.content[2].input in ({}, {"a": 2}, {"a": 2, "b": 2})


def test_choices_of_tools(server: RunningServer, official: anthropic.Anthropic, script: ScriptedClient) -> None:
    seen: list[GenerationRequest] = []

    def obedient(request: GenerationRequest, _index: int) -> list[int]:
        seen.append(request)
        return [*b'<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', 256]

    script.script = obedient
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
        message = ask(official, tools=TOOLS, tool_choice=choice)
        assert message.stop_reason == "tool_use"
        assert message.content[0].input == {"a": 1, "b": 2}
        grammar = seen[-1].sampling.grammar
        assert grammar is not None
        compiler = GrammarCompiler(lambda: server.state.tokenizer, VOCAB)
        text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        assert first_wrong(compiler, server.state.tokenizer, grammar, text) is None
        assert first_wrong(compiler, server.state.tokenizer, grammar, "Hello") is not None
    assert ask(official, tools=TOOLS, tool_choice={"type": "none"}).content[0].type == "text"


def test_what_the_template_sees(server: RunningServer, script: ScriptedClient, official: anthropic.Anthropic) -> None:
    seen: list[str] = []

    def note(request: GenerationRequest, _index: int) -> list[int]:
        seen.append(bytes(request.prompt_token_ids).decode())
        return [256]

    script.script = note
    before = server.state.inputs.chat_template
    server.state.inputs.chat_template = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}|{{ m.content }}|"
        "{% for c in m.tool_calls %}{{ c.id }}{{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}"
        "{{ m.tool_call_id }}{{ m.name }}{% endfor %}{{ enable_thinking }}"
    )
    history: list[Any] = [
        {"role": "user", "content": "2+2"},
        {"role": "user", "content": [{"type": "text", "text": "quick", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "4"}],
                    "is_error": True,
                },
            ],
        },
    ]
    system: list[Any] = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    try:
        message = official.messages.create(
            model="tiny", max_tokens=9, messages=history, system=system, thinking={"type": "disabled"}
        )
    finally:
        server.state.inputs.chat_template = before
    assert seen == ["<system>|be\nbrief|<user>|2+2\nquick|<assistant>hm|so|t1add2<tool>|4|t1add<user>|and|False"]
    assert message.model_extra is not None
    assert message.model_extra["warnings"][0].startswith("messages: is_error has no effect")


def test_an_answer_that_was_begun(server: RunningServer, script: ScriptedClient, official: anthropic.Anthropic) -> None:
    seen: list[GenerationRequest] = []

    def note(request: GenerationRequest, _index: int) -> list[int]:
        seen.append(request)
        return [*b" is", 256]

    script.script = note
    official.messages.create(model="tiny", max_tokens=9, messages=[*ASK, {"role": "assistant", "content": "It"}])
    assert bytes(seen[-1].prompt_token_ids).decode() == "<user>Hi<assistant>It"
    official.messages.create(
        model="tiny", max_tokens=9, messages=ASK, metadata={"user_id": "ann"}, extra_body={"top_k": 7}
    )
    assert seen[-1].tenant == "ann"
    assert seen[-1].sampling.top_k == 7


def test_structured_output(official: anthropic.Anthropic, script: ScriptedClient) -> None:
    script.script = say('{"a":1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    assert json.loads(ask(official, output_config=form).content[0].text) == {"a": 1}


def test_tokens_are_counted(official: anthropic.Anthropic) -> None:
    count = official.messages.count_tokens(model="tiny", messages=ASK, system="Be brief")
    assert count.input_tokens == len("<system>Be brief<user>Hi<assistant>")


@pytest.mark.parametrize(
    ("change", "status", "kind", "said"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "at least 1"),
        ({"messages": []}, 400, "invalid_request_error", "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "content.0"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "invalid_request_error", "messages.0.content"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "invalid_request_error", "tools.0.type"),
        ({"tools": [{"name": "w"}]}, 400, "invalid_request_error", "tools.0.input_schema"),
        ({"tool_choice": {"type": "some"}}, 400, "invalid_request_error", "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "no tools"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "budget_tokens"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "MCP"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"system": "x" * 600}, 400, "invalid_request_error", "512 tokens"),
        ({"system": "x" * (1 << 21)}, 413, "request_too_large", "larger"),
    ],
)
def test_refusals(server: RunningServer, change: dict[str, Any], status: int, kind: str, said: str) -> None:
    answer = post(server, **change)
    assert answer.status_code == status
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert said in body["error"]["message"]


def test_what_has_no_effect_is_told(server: RunningServer) -> None:
    change = {"service_tier": "gold", "metadata": {"x": 1}, "surprise": 1, "thinking": {"type": "adaptive"}}
    warnings = " ".join(post(server, **change).json()["warnings"])
    for name in ("service_tier", "metadata.x", "surprise", "thinking"):
        assert f"{name}" in warnings


def test_other_refusals_have_the_shape_too(server: RunningServer) -> None:
    wrong = HTTP.get(server.url + "/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    config = config_of(api_key=("secret",))
    with run_server(config=config) as guarded:
        bad = anthropic.Anthropic(base_url=guarded.url, api_key="wrong", max_retries=0)
        with bad, pytest.raises(anthropic.AuthenticationError) as refused:
            bad.messages.create(model="tiny", max_tokens=9, messages=ASK)
        body: Any = refused.value.body
        assert body["error"]["type"] == "authentication_error"
        with anthropic.Anthropic(base_url=guarded.url, api_key="secret", max_retries=0) as good:
            assert good.messages.create(model="tiny", max_tokens=99, messages=ASK).stop_reason == "end_turn"
        with anthropic.Anthropic(base_url=guarded.url, auth_token="secret", max_retries=0) as bearer:
            assert bearer.messages.create(model="tiny", max_tokens=99, messages=ASK).stop_reason == "end_turn"


def test_a_failure_ends_in_an_error_event(server: RunningServer, script: ScriptedClient) -> None:
    script.fail_at = 3
    text = post(server, stream=True).text
    assert text.rstrip().split("\n\n")[-1].startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')
    assert "message_stop" not in text
    assert "[DONE]" not in text
    assert post(server).status_code == 500
    script.fail_at = 0
    assert post(server, stream=True).status_code == 500


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 999) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: {"x": value}),
    st.integers(1, 200),
)
def test_what_is_complete_of_an_object_is_what_clients_read(value: dict[str, Any], cut: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert object_of(text) == value
    assert object_of(text[:cut]) == from_json(text[:cut].encode(), partial_mode=True)
