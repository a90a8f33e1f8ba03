"""The official client and plain HTTP against POST /v1/chat/completions."""

import json
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.serving.scripted import HTTP, RunningServer, config_of, run_server
from tests.serving.scripted_engine import ScriptedClient, say

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: RunningServer, **body: object) -> httpx.Response:
    return HTTP.post(server.url + "/v1/chat/completions", json={"messages": MESSAGES, **body})


def events(server: RunningServer, **body: object) -> list[dict]:
    lines = [line for line in post(server, stream=True, **body).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_whole_answer_has_vllms_shape(server: RunningServer) -> None:
    answer = post(server, model="tiny").json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello, world!",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": [],
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 19,
            "total_tokens": 33,
            "completion_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "service_tier": None,
        "system_fingerprint": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }


def test_client_reads_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=5)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_stream_equals_whole_answer(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world!"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 33
    assert len({(c.id, c.created) for c in chunks}) == 1


def test_usage_comes_only_when_asked_for(server: RunningServer) -> None:
    assert all("usage" not in chunk for chunk in events(server))
    assert all("usage" not in chunk for chunk in events(server, stream_options={"include_usage": False}))
    asked = events(server, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    every = events(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in every]
    assert counts == sorted(counts)
    assert counts[-1] == 14


def test_n_answers_each_end(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 42
    ends = [
        (chunk.choices[0].index, chunk.choices[0].finish_reason)
        for chunk in client.chat.completions.create(model="tiny", messages=MESSAGES, n=3, stream=True)
        if chunk.choices and chunk.choices[0].finish_reason
    ]
    assert sorted(ends) == [(0, "stop"), (1, "stop"), (2, "stop")]


def test_stop_text_ends_the_answer(server: RunningServer) -> None:
    answer = post(server, stop=["wor"]).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"], answer["stop_reason"]) == ("Hello, ", "stop", "wor")
    chunks = events(server, stop=["wor"])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello, "
    assert chunks[-1]["choices"][0]["stop_reason"] == "wor"


def test_stop_token_id(server: RunningServer) -> None:
    choice = post(server, stop_token_ids=[ord("w")]).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("w"))


def test_logprobs(server: RunningServer, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 14
    assert (content[0].token, content[0].logprob, content[0].bytes) == ("H", -1.5, [72])
    assert [(top.token, top.bytes) for top in content[0].top_logprobs] == [("I", [73]), ("H", [72])]
    streamed = [c["choices"][0]["logprobs"] for c in events(server, logprobs=True, top_logprobs=2)]
    joined = [entry for part in streamed if part for entry in part["content"]]
    assert joined == post(server, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("body", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 0}])
def test_logprobs_without_alternatives(server: RunningServer, body: dict) -> None:
    content = post(server, **body).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 14
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_prompt_logprobs(server: RunningServer) -> None:
    rows = post(server, prompt_logprobs=1).json()["prompt_logprobs"]
    assert rows[0] is None
    assert len(rows) == 19
    assert rows[1][str(ord("u"))] == {"logprob": -1.5, "rank": 2, "decoded_token": "u"}


def test_characters_are_never_split(client: openai.OpenAI) -> None:
    text = "ď😀 世"
    for per_step in (1, 3):
        with run_server(ScriptedClient(say(text), tokens_per_step=per_step)) as server:
            assert post(server).json()["choices"][0]["message"]["content"] == text
            pieces = [c["choices"][0]["delta"].get("content", "") for c in events(server)]
            assert "".join(pieces) == text
            assert not any("�" in piece for piece in pieces)


def test_unknown_fields_are_ignored_and_named(server: RunningServer) -> None:
    assert post(server, foo=1, user="u", metadata={}, store=False, stop=None, tools=None, logit_bias=None).json()[
        "warnings"
    ] == ["unknown field 'foo' was ignored"]
    assert events(server, foo=1)[0]["warnings"] == ["unknown field 'foo' was ignored"]


def test_tools_pass_when_none_may_be_called(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert post(server, tools=tools, tool_choice="none").status_code == 200
    refused = post(server, tools=tools)
    assert refused.status_code == 400
    assert "tools" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "exclude"),
        ({"guided_json": {"type": "objec"}}, "objec"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "exactly one"),
        ({"structured_outputs": {"regex": "foo**"}}, "nothing to repeat"),
        ({"structured_outputs": {"regex": "a"}, "use_beam_search": True}, "use_beam_search"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"use_beam_search": True, "stop": ["x"]}, "use_beam_search"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"cache_control": {"type": "persistent"}}, "cache_control"),
        ({"cache_control": {"type": "ephemeral", "ttl": "2y"}}, "ttl"),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention"),
        ({"prompt_cache_key": "k" * 2000}, "prompt_cache_key"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 1_000_000_000}, "n"),
        ({"stop": ["x"] * 100_000}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "maximum context length is 512"),
        ({"max_tokens": 510}, "maximum context length is 512"),
    ],
)
def test_bad_requests_name_what_is_wrong(server: RunningServer, body: dict, word: str) -> None:
    for stream in (False, True):
        answer = post(server, **({"stream": stream} | body))
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == 400
        assert error["type"] == "BadRequestError"
        assert word in error["message"]
    assert post(server).json()["choices"][0]["message"]["content"] == "Hello, world!"


def test_contents_as_parts_and_null(server: RunningServer) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert post(server, messages=parts).json()["usage"]["prompt_tokens"] == 19
    assert post(server, messages=[{"role": "assistant", "content": None}]).status_code == 200


def test_continuing_needs_one_flag_only(server: RunningServer) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "I am"}]
    plain = HTTP.post(server.url + "/tokenize", json={"messages": messages, "continue_final_message": True}).json()
    assert bytes(plain["tokens"]).decode() == "<user>Hi<assistant>I am"


def test_request_id_is_adopted(server: RunningServer) -> None:
    answer = HTTP.post(
        server.url + "/v1/chat/completions", json={"messages": MESSAGES}, headers={"x-request-id": "abc"}
    )
    assert answer.json()["id"] == "chatcmpl-abc"


@pytest.mark.parametrize("name", ["messages", "self", "add_generation_prompt", "continue_final_message", "tools", ""])
@pytest.mark.parametrize("value", [True, False, None])
def test_template_variables_of_any_name(server: RunningServer, name: str, value: object) -> None:
    answer = post(server, chat_template_kwargs={name: value})
    contradiction = name == "continue_final_message" and value
    assert answer.status_code == (400 if contradiction else 200), answer.text


def test_flags_among_the_template_variables(server: RunningServer) -> None:
    asked = {"return_token_ids": True}
    whole = post(server, **asked).json()["prompt_token_ids"]
    short = post(server, chat_template_kwargs={"add_generation_prompt": False}, **asked).json()["prompt_token_ids"]
    assert bytes(whole) == bytes(short) + b"<assistant>"
    answer = post(server, chat_template_kwargs={"add_generation_prompt": "no"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"


def test_a_long_conversation_is_written_beside_the_event_loop(server: RunningServer) -> None:
    loop_thread = server.thread.ident
    seen: list[int | None] = []
    render = server.state.inputs.render

    def noting(*arguments: object, **options: object) -> str:
        seen.append(threading.get_ident())
        return render(*arguments, **options)  # type: ignore[arg-type]

    server.state.inputs.render = noting  # type: ignore[method-assign]
    try:
        post(server, max_tokens=1)
        post(server, messages=[{"role": "user", "content": "a"}] * 2000, max_tokens=1)
    finally:
        del server.state.inputs.render
    assert seen[0] == loop_thread
    assert seen[1] != loop_thread


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"foo": 1}, "unknown field 'foo'"),
        ({"temperature": 0, "top_p": 0.5}, "top_p"),
        ({"temperature": 0, "top_k": 4}, "top_k"),
        ({"logit_bias": {"81": 1e9}}, "logit_bias"),
        ({"max_tokens": 9, "max_completion_tokens": 3}, "max_tokens"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"include_reasoning": True}, "include_reasoning"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"function_call": "auto"}, "function_call"),
        ({"priority": 3}, "priority"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "ignore_eos"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"samplers": ["top_p", "temperature"], "top_k": 4}, "top_k"),
        ({"samplers": "edmt", "top_k": 4}, "top_k"),
        ({"temperature": 0, "mirostat": 2}, "mirostat"),
        ({"mirostat": 1, "top_p": 0.5}, "mirostat takes its place"),
        ({"mirostat_tau": 3.0}, "mirostat is off"),
    ],
)
def test_what_has_no_effect_is_told_and_a_strict_server_refuses_it(
    server: RunningServer, strict: RunningServer, body: dict[str, object], word: str
) -> None:
    (told,) = post(server, **body).json()["warnings"]
    assert word in told
    refused = post(strict, **body)
    assert refused.status_code == 400
    assert word in refused.json()["error"]["message"]


def test_a_strict_server_answers_what_it_does_as_told(strict: RunningServer) -> None:
    plain = {"temperature": 0, "top_p": 1, "store": False, "metadata": {}, "service_tier": "auto", "tools": None}
    assert "warnings" not in post(strict, **plain).json()


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    with run_server(config=config_of(strict_requests=True)) as running:
        yield running
