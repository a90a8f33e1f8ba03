"""Tools and reasoning over HTTP: choices, parallel calls, streams told as whole answers are, histories, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.outputs.answer.choose import choose_formats
from tests.serving.scripted import HTTP, RunningServer, config_of, run_server
from tests.serving.scripted_engine import END, ScriptedClient, say
from tests.text.walk import first_wrong

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "adds",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"properties": {"city": {"type": "string"}}}}},
]
BOTH = (
    '<tool_call>{"name":"add","arguments":{"a":2,"b":2}}</tool_call>'
    '<tool_call>{"name":"get_time","arguments":{"city":"Šibenik"}}</tool_call>'
)
HISTORY: list[Any] = [{"role": "user", "content": "2+2 and the time?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        running.state.formats = choose_formats("{{ tools }} <tool_call> </think>")
        yield running


@pytest.fixture
def script(server: RunningServer) -> ScriptedClient:
    client = server.client
    assert isinstance(client, ScriptedClient)
    client.tokens_per_step = 1
    return client


@pytest.fixture(scope="module")
def official(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: RunningServer, **body: object) -> Any:
    return HTTP.post(server.url + "/v1/chat/completions", json={"messages": HISTORY, "max_tokens": 400, **body})


def streamed(server: RunningServer, **body: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message that a stream adds up to, with its finish_reason, and its chunks' deltas."""
    lines = post(server, stream=True, **body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    message: dict[str, Any] = {"content": None, "reasoning": None, "tool_calls": []}
    for delta in deltas:
        for name in ("content", "reasoning"):
            if delta.get(name):
                message[name] = (message[name] or "") + delta[name]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(ends) == 1
    assert sum("role" in delta for delta in deltas) == 1
    return {**message, "finish": ends[0]}, deltas


def whole(server: RunningServer, **body: object) -> dict[str, Any]:
    answer = post(server, **body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    message = choice["message"]
    calls = message["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" for call in calls)
    assert message.get("reasoning_content") == message["reasoning"]
    return {
        "content": message["content"] or None,
        "reasoning": message["reasoning"],
        "tool_calls": [call["function"] for call in calls],
        "finish": choice["finish_reason"],
    }


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "reasoning", "names", "finish"),
    [
        (BOTH, None, None, ["add", "get_time"], "tool_calls"),
        ("Sure.\n" + BOTH, "Sure.", None, ["add", "get_time"], "tool_calls"),
        ("<think>Hm.</think>\n\nfinal", "final", "Hm.", [], "stop"),
        ("<think>Hm.</think>" + BOTH, None, "Hm.", ["add", "get_time"], "tool_calls"),
        ("no <tool_call> at all", "no <tool_call> at all", None, [], "stop"),
    ],
)
def test_a_stream_is_the_whole_answer_in_pieces(
    server: RunningServer,
    script: ScriptedClient,
    step: int,
    text: str,
    content: str | None,
    reasoning: str | None,
    names: list[str],
    finish: str,
) -> None:
    script.script, script.tokens_per_step = say(text), step
    answer = whole(server, tools=TOOLS)
    assert (answer["content"], answer["reasoning"], answer["finish"]) == (content, reasoning, finish)
    assert [call["name"] for call in answer["tool_calls"]] == names
    message, deltas = streamed(server, tools=TOOLS, logprobs=True)
    assert message == answer
    for call in message["tool_calls"]:
        json.loads(call["arguments"])
    if step == 1 and names:
        assert sum("tool_calls" in delta for delta in deltas) > 10


def test_one_call_only_when_parallel_calls_are_off(server: RunningServer, script: ScriptedClient) -> None:
    script.script = say(BOTH)
    answer = whole(server, tools=TOOLS, parallel_tool_calls=False)
    assert [call["name"] for call in answer["tool_calls"]] == ["add"]
    assert streamed(server, tools=TOOLS, parallel_tool_calls=False)[0] == answer


def test_without_tools_markup_is_content(server: RunningServer, script: ScriptedClient) -> None:
    script.script = say(BOTH)
    assert whole(server)["content"] == BOTH
    assert whole(server, tools=TOOLS, tool_choice="none") == whole(server)


@pytest.mark.parametrize("stop", [["zzzzzzzzzzzz"], None])
def test_stop_texts_do_not_disturb_reasoning(server: RunningServer, script: ScriptedClient, stop: object) -> None:
    script.script = say("<think>abc</think>final")
    for answer in (whole(server, stop=stop), streamed(server, stop=stop)[0]):
        assert (answer["reasoning"], answer["content"]) == ("abc", "final")


def test_cuts_are_told_alike(server: RunningServer, script: ScriptedClient) -> None:
    script.script = say("<think>abc</think>final")
    for options in ({"max_tokens": 9}, {"stop": ["abc"]}, {"max_tokens": 3}):
        answer = whole(server, **options)
        assert answer == streamed(server, **options)[0]
        assert answer["finish"] == ("stop" if "stop" in options else "length")
    assert whole(server, max_tokens=9)["reasoning"] == "ab"
    assert whole(server, max_tokens=9)["content"] is None
    script.script = say('Sure.<tool_call>{"name":"get_time","arguments":{"city":"Oslo"}}</tool_call>')
    for length in range(1, 70, 4):
        answer = whole(server, tools=TOOLS, max_tokens=length)
        assert answer == streamed(server, tools=TOOLS, max_tokens=length)[0]
        assert answer["finish"] == "length"
        assert not answer["tool_calls"] or answer["content"] == "Sure."


def test_reasoning_can_be_left_out(server: RunningServer, script: ScriptedClient) -> None:
    script.script = say("<think>abc</think>final")
    answer = whole(server, include_reasoning=False)
    assert (answer["reasoning"], answer["content"]) == (None, "final")
    assert streamed(server, include_reasoning=False)[0] == answer


def test_the_official_client_reads_calls(official: openai.OpenAI, script: ScriptedClient) -> None:
    script.script = say(BOTH)
    options: dict[str, Any] = {"model": "tiny", "messages": HISTORY, "tools": TOOLS, "max_tokens": 400}
    message = official.chat.completions.create(**options).choices[0].message
    assert message.content is None
    assert [call.function.name for call in message.tool_calls or ()] == ["add", "get_time"]  # type: ignore[union-attr]
    with official.chat.completions.stream(**options) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert [json.loads(c.function.arguments) for c in final.message.tool_calls or ()] == [
        {"a": 2, "b": 2},
        {"city": "Šibenik"},
    ]
    # What was answered goes back as history.
    script.script = say("4")
    results = [{"role": "tool", "tool_call_id": c.id, "content": "4"} for c in final.message.tool_calls or ()]
    more = [*HISTORY, final.message.model_dump(), *results]
    assert official.chat.completions.create(**{**options, "messages": more}).choices[0].message.content == "4"


def constrained(server: RunningServer, script: ScriptedClient, **body: object) -> str:
    """The grammar that a request is held to."""
    seen: list[str] = []

    def look(request: Any, _index: int) -> list[int]:
        seen.append(request.sampling.grammar)
        return [*b"x", END]

    script.script = look
    assert post(server, **body).status_code == 200
    return seen[0]


NAMED: dict[str, Any] = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        (
            {"tool_choice": "required"},
            '<tool_call>\n{"name": "add", "arguments": {"a":2,"b":2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>',
            "4",
        ),
        ({"tool_choice": NAMED}, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "{}"),
        (
            {"tool_choice": NAMED},
            '<think>I add.</think>\n<tool_call>\n{"name": "add", "arguments": {"a":1,"b":2}}\n</tool_call>',
            '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        ),
        (
            {"tools": None, "response_format": {"type": "json_object"}},
            '<think>a {</think>{"a": 1}',
            "<think>a</think>x",
        ),
        ({"tools": None, "structured_outputs": {"choice": ["yes"]}}, "yes", "no"),
        (
            {"tools": [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]},
            '<think>Hm.</think>Well, <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        ),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "four"),
        (
            {"response_format": {"type": "json_object"}},
            '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>',
            '<tool_call>\n{"name": "get_date", "arguments": {}}\n</tool_call>',
        ),
    ],
)
def test_answers_that_must_have_a_form_are_held_to_it(
    server: RunningServer, script: ScriptedClient, body: dict[str, object], good: str, bad: str
) -> None:
    grammar = constrained(server, script, **{"tools": TOOLS, **body})
    compiler = vars(server.state.inputs)["_grammars"]
    assert first_wrong(compiler, server.state.tokenizer, grammar, good) is None
    assert first_wrong(compiler, server.state.tokenizer, grammar, bad) is not None


def test_a_named_call_ends_with_stop_and_a_required_one_with_tool_calls(
    server: RunningServer, script: ScriptedClient
) -> None:
    script.script = say('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>')
    assert whole(server, tools=TOOLS, tool_choice=NAMED)["finish"] == "stop"
    assert whole(server, tools=TOOLS, tool_choice="required")["finish"] == "tool_calls"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"tool_choice": "required"}, "no tools"),
        ({"tool_choice": NAMED}, "no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "nope"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "form"),
        ({"tools": [{"type": "web_search"}]}, "type"),
        ({"tools": [{"type": "function"}]}, "function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "parameters"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "something"}}}],
                "tool_choice": "required",
            },
            "something",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": {"pattern": "\\d(["}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "unclosed",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_wrong_tools_and_choices_are_refused(server: RunningServer, body: dict[str, object], word: str) -> None:
    answer = post(server, **body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


def test_calls_that_cannot_be_read_are_refused_with_what_to_do() -> None:
    with run_server(config=config_of(enable_auto_tool_choice=False)) as running:
        assert "--enable-auto-tool-choice" in post(running, tools=TOOLS).json()["error"]["message"]
    with run_server() as running:
        assert "--tool-call-parser" in post(running, tools=TOOLS).json()["error"]["message"]
        # What must be called is called in a plain list, and told apart again.
        client = running.client
        assert isinstance(client, ScriptedClient)
        client.script = say('[{"name": "add", "parameters": {"a": 1, "b": 2}}]')
        answer = post(running, tools=TOOLS, tool_choice="required").json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "add",
            "arguments": '{"a": 1, "b": 2}',
        }
        assert "--chat-template" in answer["warnings"][0]


def test_templates_get_the_tools(server: RunningServer) -> None:
    shown = {"messages": HISTORY, "tools": TOOLS}
    assert HTTP.post(server.url + "/tokenize", json=shown).status_code == 200
