"""Corners of the APIs that clients reach sooner or later: streamed as whole, refused with the reason, never half."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from octavo.flow.generation_config import defaults_from
from octavo.outputs.answer.choose import choose_formats
from octavo.serving.server import greeting
from octavo.text.chat_template import ChatTemplate, TemplateLimits
from tests.serving.scripted import HTTP, RunningServer, config_of, run_server
from tests.serving.scripted_engine import END, ScriptedClient, say
from tests.serving.test_reports import scheduled

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        running.state.formats = choose_formats("{{ tools }} <tool_call> </think>")
        yield running


@pytest.fixture
def script(server: RunningServer) -> ScriptedClient:
    assert isinstance(server.client, ScriptedClient)
    return server.client


def post(server: RunningServer, path: str, body: object) -> httpx.Response:
    return HTTP.post(server.url + path, json=body)


def text_choice(server: RunningServer, body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """A choice of a completion, which its stream has to be, too."""
    whole = post(server, TEXT, body).json()["choices"][index]
    lines = post(server, TEXT, body | {"stream": True}).text.split("\n\n")
    found = [json.loads(line[6:])["choices"] for line in lines if line.startswith("data: {")]
    parts = [choice for (choice,) in found if choice["index"] == index]
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [whole["finish_reason"]]
    for name, values in (whole["logprobs"] or {}).items():
        assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values, name
    return whole


# --- half characters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "text", "finish"),
    [
        ([72, 0xF0, 0x9F], 3, "H\ufffd", "length"),
        ([72, 0xF0, END], 9, "H\ufffd", "stop"),
        ([0xC4, 72, END], 9, "\ufffdH", "stop"),
        ([*"ď😀 世".encode(), END], 50, "ď😀 世", "stop"),
    ],
)
@pytest.mark.parametrize("step", [1, 3])
def test_an_answer_that_ends_in_a_character_is_the_same_streamed(
    server: RunningServer, script: ScriptedClient, tokens: list[int], max_tokens: int, text: str, finish: str, step: int
) -> None:
    script.script, script.tokens_per_step = (lambda _request, _index: tokens), step
    choice = text_choice(server, {"prompt": "a", "max_tokens": max_tokens, "return_token_ids": True, "logprobs": 0})
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == (text, finish, tokens)
    body = {"messages": HI, "max_tokens": max_tokens}
    answer = post(server, CHAT, body).json()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens"] == len(tokens)
    lines = post(server, CHAT, body | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("content", "") for delta in deltas) == text


def test_offsets_point_into_the_text_where_tokens_are_parts_of_characters(
    server: RunningServer, script: ScriptedClient
) -> None:
    script.script, script.tokens_per_step = say("é!"), 1
    prompt = "aé😀b"
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 9}
    choice = text_choice(server, body)
    assert choice["text"] == prompt + "é!"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5, 6]
    as_ids = text_choice(server, body | {"return_tokens_as_token_ids": True})
    assert as_ids["logprobs"]["text_offset"] == choice["logprobs"]["text_offset"]
    script.script = lambda _request, _index: [END, 0xF0, 72, END]  # left out, cut short by another, the end
    unfinished = text_choice(server, body | {"prompt": "a", "ignore_eos": True, "max_tokens": 4})
    assert unfinished["text"] == "a\ufffdH"
    assert unfinished["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]
    shown = text_choice(
        server, body | {"prompt": "a", "ignore_eos": True, "max_tokens": 4, "skip_special_tokens": False}
    )
    assert shown["text"] == "a<end>\ufffdH<end>"
    assert shown["logprobs"]["text_offset"] == [0, 1, 6, 7, 8]


@pytest.mark.parametrize("n", [1, 2])
def test_a_streamed_echo_tells_all_of_a_prompt_that_is_scored_in_chunks(n: int) -> None:
    with scheduled() as chunked:  # 256 tokens a step
        body = {"prompt": "0123456789" * 40, "echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0, "n": n}
        for index in range(n):
            lists = text_choice(chunked, body, index)["logprobs"]
            assert len(lists["tokens"]) == 403
            assert lists["token_logprobs"][0] is None
            assert None not in lists["token_logprobs"][1:]
        assert len(text_choice(chunked, body | {"max_tokens": 0})["logprobs"]["tokens"]) == 400


@pytest.mark.parametrize(("top", "prompt"), [(2, 0), (1, 3), (0, 2), (2, None), (None, 2)])
def test_an_echo_and_prompt_logprobs_each_have_as_many_as_they_ask_for(
    server: RunningServer, script: ScriptedClient, top: int | None, prompt: int | None
) -> None:
    script.script, script.tokens_per_step = say("x"), 1
    body = {"prompt": "abcd", "echo": True, "logprobs": top, "prompt_logprobs": prompt, "max_tokens": 1}
    (choice,) = post(server, TEXT, body).json()["choices"]
    if top is None:
        assert choice["logprobs"] is None
    else:  # the drawn token is the second likeliest
        counts = {len(named) for named in choice["logprobs"]["top_logprobs"][1:]}
        assert counts == {{0: 1, 1: 2, 2: 2}[top]}
    if prompt is None:
        assert choice["prompt_logprobs"] is None
    else:
        assert {len(named) for named in choice["prompt_logprobs"][1:]} == {{0: 1, 2: 2, 3: 3}[prompt]}


# --- calls that must be made ------------------------------------------------------------------------------------------

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("length", [1, 8, 11, 14, 20, 26, 30, 44])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_required_call_that_is_cut_off_leaves_no_markup(
    server: RunningServer, script: ScriptedClient, choice: object, length: int
) -> None:
    script.script, script.tokens_per_step = say('<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'), 1
    body = {"messages": HI, "tools": [TOOL], "tool_choice": choice, "max_tokens": length}
    (whole,) = post(server, CHAT, body).json()["choices"]
    assert whole["finish_reason"] == "length"
    assert not whole["message"]["content"]
    lines = post(server, CHAT, body | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert not any(delta.get("content") for delta in deltas)
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call.get("arguments", "") for call in calls) == "".join(
        call["function"]["arguments"] for call in whole["message"]["tool_calls"]
    )


@pytest.mark.parametrize("kind", ["string", "array", None, 5, ["null", "string"]])
def test_arguments_are_an_object(server: RunningServer, kind: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}
    refused = post(server, CHAT, {"messages": HI, "tools": [tool], "tool_choice": "required"})
    assert refused.status_code == 400
    assert "tools[0].function.parameters must be of type 'object'" in refused.json()["error"]["message"]
    tool["function"]["parameters"]["type"] = ["object", "null"]  # type: ignore[index]
    assert post(server, CHAT, {"messages": HI, "tools": [tool]}).status_code == 200


# --- defaults and conversations --------------------------------------------------------------------------------------


def test_defaults_of_the_model_are_told_and_give_way_to_what_a_request_says(script: ScriptedClient) -> None:
    seen: list[Any] = []

    def look(request: Any, _index: int) -> list[int]:
        seen.append(request.sampling)
        return [END]

    defaults = defaults_from({"top_k": 0, "repetition_penalty": 1.3, "temperature": 0.1})
    with run_server(ScriptedClient(look)) as running:
        running.state.sampling_defaults = defaults
        for body in ({}, {"repetition_penalty": 1.0, "temperature": 1.0}, {"temperature": None}):
            assert post(running, CHAT, {"messages": HI, **body}).status_code == 200
            assert post(running, TEXT, {"prompt": "a", **body}).status_code == 200
        told = list(greeting(config_of(), running.state, running.url, 1.0))
    found = [(sampling.repetition_penalty, sampling.temperature) for sampling in seen]
    assert found == [(1.3, 0.1)] * 2 + [(1.0, 1.0)] * 2 + [(1.3, 0.1)] * 2
    values = "repetition_penalty 1.3, temperature 0.1, top_k 0"
    assert f"sampling {values}, the model's own (--generation-config vllm: without)" in told
    assert len(told) <= 10


CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city":"Oslo"}'}}


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize(
    ("arguments", "status"), [('{"city":"Oslo"}', 200), ("null", 200), ("", 200), ("{", 400), ("[]", 400)]
)
def test_a_history_with_calls(
    server: RunningServer, script: ScriptedClient, arguments: str, status: int, absent: bool
) -> None:
    script.script = say("ok")
    call = {**CALL, "function": {"name": "get_time", "arguments": arguments}}
    asked: dict[str, Any] = {"role": "assistant", "tool_calls": [call]} | ({} if absent else {"content": None})
    messages = [*HI, asked, {"role": "tool", "content": "12:00"}, {"role": "user", "content": "so?"}]
    answer = post(server, CHAT, {"messages": messages, "return_token_ids": True})
    assert answer.status_code == status, answer.text
    if status == 200:
        prompt = bytes(answer.json()["prompt_token_ids"]).decode()
        assert prompt == "<user>Hi<assistant><tool>12:00<user>so?<assistant>"


def test_contents_may_be_empty_and_prompts_may_not(server: RunningServer, script: ScriptedClient) -> None:
    script.script = say("ok")
    assert post(server, CHAT, {"messages": [{"role": "user", "content": ""}]}).status_code == 200
    for body in ({}, {"prompt": None}, {"prompt": ""}, {"prompt": [""]}, {"prompt": ["ok", ""]}, {"prompt": [[]]}):
        for stream in (False, True):
            assert post(server, TEXT, {"stream": stream, **body}).status_code == 400, body


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "words"),
    [
        (ALTERNATING, "roles must alternate"),
        ("{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}", "chat template"),
        ("{{ messages[7].content.nothing }}", "chat template"),
        (None, "no chat template"),
    ],
)
def test_a_template_that_refuses_is_400_and_completions_go_on(template: str | None, words: str, stream: bool) -> None:
    with run_server() as running:
        limits = TemplateLimits(seconds=0.5)
        running.state.inputs.chat_template = ChatTemplate(template, limits=limits) if template else None
        for roles in (("user", "user"), ("system", "user")):
            messages = [{"role": role, "content": "x"} for role in roles]
            refused = post(running, CHAT, {"messages": messages, "stream": stream})
            assert refused.status_code == 400, refused.text
            assert words in refused.json()["error"]["message"]
        assert post(running, TEXT, {"prompt": "a"}).status_code == 200
        if template == ALTERNATING:
            assert post(running, CHAT, {"messages": HI}).status_code == 200


# --- bodies and fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/messages", "/v1/responses", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP, deflate", "x" * 500])
def test_a_body_that_is_said_to_be_compressed_is_415(server: RunningServer, path: str, coding: str) -> None:
    plain = json.dumps({"messages": HI, "prompt": "a", "tokens": [65], "input": "a", "max_tokens": 2}).encode()
    for body in (plain, gzip.compress(plain)):
        headers = {"content-type": "application/json", "content-encoding": coding}
        refused = HTTP.post(server.url + path, content=body, headers=headers)
        assert refused.status_code == 415
        assert "send the body uncompressed" in refused.json()["error"]["message"]
        assert len(refused.content) < 500
    headers["content-encoding"] = "identity"
    assert "uncompressed" not in HTTP.post(server.url + path, content=plain, headers=headers).text


@pytest.mark.parametrize("key", ["\uff15", "1_0", " 5", "5 ", "+5", "-0", "", "5.0", "0x5", "1" * 5000])
def test_keys_of_a_bias_are_plain_numbers(server: RunningServer, key: str) -> None:
    refused = post(server, TEXT, {"prompt": "a", "logit_bias": {key: 1}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logit_bias"
    assert len(refused.content) < 500


@pytest.mark.parametrize("field", ["seed", "max_tokens", "n", "top_k", "priority", "logprobs", "min_tokens", "xx"])
@pytest.mark.parametrize("digits", [30, 4000, 5000])
def test_numbers_of_any_length(server: RunningServer, script: ScriptedClient, field: str, digits: int) -> None:
    script.script = say("a")
    for number in ("9" * digits, "-" + "9" * digits):
        body = f'{{"prompt":"a","max_tokens":1,"{field}":{number}}}'
        answer = HTTP.post(server.url + TEXT, content=body, headers={"content-type": "application/json"})
        wide = field == "xx" or (field == "top_k" and digits < 5000 and number[0] == "9")
        assert answer.status_code == (200 if wide else 400), answer.text[:200]
        assert len(answer.content) < 2500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs are not told in a stream"),
        ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs are not told in a stream"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 3}, "at most max_tokens (0), got 3"),
        ({"stop": ["x" * 2000] * 3}, "got 3 of 6000"),
        ({"prompt": "a" * 400, "max_tokens": 200}, "400 tokens and 200 more"),
        ({"prompt": "a" * 600_000, "max_tokens": 200}, "more than 512 tokens and 200 more"),
        ({"structured_outputs": {"regex": "[^\\s\\S]"}}, "no text at all has this form"),
    ],
)
def test_refusals_say_what_was_asked_for(server: RunningServer, body: dict[str, object], words: str) -> None:
    refused = post(server, TEXT, {"prompt": "a", **body})
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


def test_a_long_text_in_few_tokens_is_no_contradiction(server: RunningServer, script: ScriptedClient) -> None:
    """A token may stand for many characters: only what no tokens can hold is refused."""
    script.script = say('"abcdef"')
    form = {"json": {"type": "string", "minLength": 6}}
    assert post(server, TEXT, {"prompt": "a", "structured_outputs": form, "max_tokens": 5}).status_code == 200
    form["json"]["minLength"] = 10**6
    assert post(server, TEXT, {"prompt": "a", "structured_outputs": form, "max_tokens": 5}).status_code == 400


def test_a_default_length_gives_way(server: RunningServer, script: ScriptedClient) -> None:
    script.script = lambda _request, _index: [120] * 500
    for body, tokens in (({"min_tokens": 30}, 30), ({"prompt": "a" * 505}, 7), ({}, 16)):
        usage = post(server, TEXT, {"prompt": "a", "ignore_eos": True, **body}).json()["usage"]
        assert usage["completion_tokens"] == tokens
