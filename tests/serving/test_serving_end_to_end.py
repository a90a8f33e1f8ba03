"""The real thing: `octavo serve` as a command, the demo model, the engine in its process, the official client."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import psutil
import pydantic
import pytest

from tests.serving.scripted import HTTP, PATIENCE, until

QUESTION = [{"role": "user", "content": "Name the capital of France."}]
PLAIN = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
OPTIONS = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64MiB", "--served-model-name", "smol")
# No connection that the client keeps is closed just when it comes back to it.
KEPT = ("--keep-alive-timeout", "600")


@dataclass
class Command:
    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    def engine(self) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children() if "octavo.engine.process" in p.cmdline())


def start(*arguments: str) -> Command:
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", "--port", "0", *OPTIONS, *KEPT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("stop "):
            break
    url = next(line.split()[1] for line in lines if line.startswith("address"))
    return Command(process, url, lines)


@pytest.fixture(scope="module")
def command() -> Iterator[Command]:
    running = start()
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def client(command: Command) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=command.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_start_is_quiet(command: Command) -> None:
    assert len(command.lines) <= 10
    assert "Application startup complete." in command.lines


def test_a_signal_to_read_files_again_does_not_end_it(command: Command) -> None:
    command.process.send_signal(signal.SIGHUP)
    assert HTTP.get(command.url + "/ready").json() == {"ready": True, "reason": None}
    assert command.process.poll() is None


def test_it_answers_a_question(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=24, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == answer.choices[0].message.content


def test_seeded_answers_repeat(client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model="smol", prompt="Once upon a time", n=3, seed=7, temperature=1.0, max_tokens=12, logprobs=2
        )
        assert all(len(choice.logprobs.tokens) == 12 for choice in answer.choices if choice.logprobs)
        return [choice.text for choice in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    capital: bool


def test_answers_in_a_form_are_parsed_by_the_client(client: openai.OpenAI) -> None:
    options = {"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 100, "response_format": City}
    parsed = client.chat.completions.parse(**options).choices[0].message.parsed  # type: ignore[arg-type]
    assert isinstance(parsed, City)
    with client.chat.completions.stream(**options) as stream:  # type: ignore[arg-type]
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    old = {"guided_choice": ["Paris", "London"], "guided_decoding_backend": "xgrammar"}
    answer = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, extra_body=old)
    assert answer.choices[0].message.content in ("Paris", "London")
    warnings = " ".join(answer.model_extra["warnings"])  # type: ignore[index]
    assert "guided_choice" in warnings
    assert "guided_decoding_backend" in warnings
    plain = client.completions.create(
        model="smol", prompt="1 +", extra_body={"structured_outputs": {"regex": "[0-9]{3}"}}
    )
    assert plain.choices[0].text.isdigit()
    assert plain.choices[0].finish_reason == "stop"


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
ADD = {
    "type": "object",
    "properties": {"a": DIGIT, "b": DIGIT},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def test_a_required_tool_is_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
    options: dict[str, Any] = {"model": "smol", "messages": QUESTION, "tools": tools, "temperature": 0}
    options |= {"max_tokens": 80, "parallel_tool_calls": False}
    choice = client.chat.completions.create(**options, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    (call, *_) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "b"}
    with client.chat.completions.stream(**options, tool_choice="required") as stream:
        assert stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == (  # type: ignore[index]
            call.function.arguments
        )
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
        client.chat.completions.create(**options)


HOSTILE_FORMS: list[dict[str, object]] = [
    {"regex": "foo**"},
    {"regex": "(?<=x)a"},
    {"regex": "[a-"},
    {"json": {"pattern": "^+[a-z]$"}},
    {"json": "not json"},
    {"json": {"enum": []}},
    {"regex": "(((a{100}){100}){100}){100}"},
    {"regex": "(" * 60_000 + "a" + ")" * 60_000},
    {"json": {"type": "strin"}},
    {"json": {"$ref": "#/nope"}},
    {"json": {"type": "array", "minItems": 10**9}},
    {"json": {"enum": [f"value {i}" for i in range(60_000)]}},
    {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
]


def test_hostile_forms_are_refused_and_disturb_nobody(client: openai.OpenAI, command: Command) -> None:
    before = HTTP.post(command.url + "/v1/completions", json=PLAIN).json()["choices"]
    options = {"model": "smol", "messages": QUESTION, "max_tokens": 400, "stream": True}
    options["extra_body"] = {"ignore_eos": True}
    with client.chat.completions.create(**options) as stream:  # type: ignore[call-overload]
        for form in HOSTILE_FORMS:
            assert next(iter(stream)).choices[0].finish_reason is None
            began = time.monotonic()
            answer = HTTP.post(command.url + "/v1/completions", json={**PLAIN, "structured_outputs": form})
            assert answer.status_code == 400, form
            assert answer.json()["error"]["message"]
            assert time.monotonic() - began < 60
            assert HTTP.get(command.url + "/health").status_code == 200
    assert HTTP.post(command.url + "/v1/completions", json=PLAIN).json()["choices"] == before


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_echoed_tokens_join_to_the_text(command: Command, max_tokens: int) -> None:
    prompt = "\n1. Ada has 20 caf\u00e9s"
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "temperature": 0}
    answer = HTTP.post(command.url + "/v1/completions", json=body).json()
    (choice,) = answer["choices"]
    lists = choice["logprobs"]
    assert choice["text"].startswith(prompt)
    assert (choice["text"] == prompt) == (max_tokens == 0)
    assert "".join(lists["tokens"]) == choice["text"]
    offsets = [len("".join(lists["tokens"][:place])) for place in range(len(lists["tokens"]))]
    assert lists["text_offset"] == offsets
    assert lists["token_logprobs"][0] is None
    assert all(value <= 0 for value in lists["token_logprobs"][1:])
    assert len(lists["tokens"]) == answer["usage"]["prompt_tokens"] + max_tokens
    assert answer["usage"]["completion_tokens"] == max_tokens
    chat = HTTP.post(command.url + "/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 0})
    assert chat.status_code == 400


def test_logprobs_of_a_stream_are_those_of_the_whole(command: Command) -> None:
    for path, body, top in (
        ("/v1/completions", PLAIN | {"logprobs": 0}, 1),
        ("/v1/chat/completions", {"messages": QUESTION, "temperature": 2, "seed": 4, "logprobs": True}, 0),
        ("/v1/chat/completions", {"messages": QUESTION, "seed": 4, "logprobs": True, "top_logprobs": 2}, 2),
    ):
        body = {**body, "max_tokens": 4}
        whole = HTTP.post(command.url + path, json=body).json()
        lines = HTTP.post(command.url + path, json=body | {"stream": True}).text.splitlines()
        parts = [json.loads(line[6:])["choices"][0]["logprobs"] for line in lines if line.startswith("data: {")]
        name = "token_logprobs" if "logprobs" in body and body["logprobs"] == 0 and "prompt" in body else "content"
        streamed = [entry for part in parts if part for entry in part[name]]
        assert streamed == whole["choices"][0]["logprobs"][name]
        assert len(streamed) == whole["usage"]["completion_tokens"] == 4
        if name == "content":
            assert all(len(entry["top_logprobs"]) == top for entry in streamed)


# Bodies beside PLAIN, and what each choice's end has to be: (finish_reason, stop_reason).
CORNERS: list[tuple[dict[str, Any], tuple[str, int | str | None]]] = [
    ({"stop": ["is a"]}, ("length", None)),
    ({"stop": ["s."], "max_tokens": 20}, ("stop", "s.")),
    ({"stop": ["ri"], "include_stop_str_in_output": True}, ("stop", "ri")),
    ({"stop": ["a"], "min_tokens": 5, "max_tokens": 20, "ignore_eos": True}, ("stop", "a")),
    (
        {"temperature": 1, "seed": 3, "allowed_token_ids": [242, 218, 10813, 187, 81], "max_tokens": 11},
        ("length", None),
    ),
    ({"logit_bias": {"2": 100}}, ("stop", None)),
    ({"logit_bias": {"2": 100}, "min_tokens": 3}, ("stop", None)),
    ({"logit_bias": {"2": 100}, "ignore_eos": True}, ("length", None)),
    ({"logit_bias": {"2": 100}, "ignore_eos": True, "skip_special_tokens": False}, ("length", None)),
    ({"logit_bias": {"1": 100}, "stop": ["<|im_start|>"]}, ("stop", "<|im_start|>")),
    ({"logit_bias": {"28": 100}, "stop_token_ids": [28], "include_stop_str_in_output": True}, ("stop", 28)),
    ({"allowed_token_ids": [2], "ignore_eos": True}, ("length", None)),
    ({"structured_outputs": {"choice": ["yes"]}, "min_tokens": 10, "max_tokens": 20}, ("stop", None)),
    ({"structured_outputs": {"choice": ["yes", "no"]}, "logit_bias": {"2": -100}, "n": 2}, ("stop", None)),
    ({"structured_outputs": {"regex": "[a-z]{50}"}, "ignore_eos": True}, ("length", None)),
    ({"structured_outputs": {"regex": '"[a-z]+" : 1'}, "stop": ['" '], "max_tokens": 200}, ("stop", '" ')),
    ({"n": 3, "seed": (1 << 64) - 1, "temperature": 1, "echo": True}, ("length", None)),
    ({"echo": True, "max_tokens": 0, "n": 2}, ("length", None)),
]


@pytest.mark.parametrize(("body", "end"), CORNERS)
def test_a_stream_is_the_whole_in_every_corner(command: Command, body: dict[str, Any], end: object) -> None:
    body = PLAIN | {"logprobs": 1, "return_token_ids": True} | body
    url = command.url + "/v1/completions"
    whole = HTTP.post(url, json=body).json()
    lines = HTTP.post(url, json=body | {"stream": True, "stream_options": {"include_usage": True}}).text.splitlines()
    *chunks, last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {**last["usage"], "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        ends = [(part["finish_reason"], part["stop_reason"]) for part in parts if part["finish_reason"]]
        assert ends == [(choice["finish_reason"], choice["stop_reason"])] == [end]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert bool(choice["token_ids"]) == bool(body["max_tokens"])
        for name, values in choice["logprobs"].items():
            assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values
        if isinstance(end, tuple) and isinstance(end[1], str) and not body.get("include_stop_str_in_output"):
            assert end[1] not in choice["text"] or body.get("min_tokens")


def test_nothing_but_http_listens(command: Command) -> None:
    server = psutil.Process(command.process.pid)
    found = [
        connection.laddr
        for process in (server, *server.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [address.port for address in found] == [int(command.url.rpartition(":")[2])]


def test_over_long_prompts_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
        client.completions.create(model="smol", prompt="word " * 600)


def test_leaving_gives_everything_back(command: Command) -> None:
    body = {"messages": QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 400}
    with HTTP.stream("POST", command.url + "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())

    def free() -> bool:
        text = HTTP.get(command.url + "/metrics").text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return all(
            float(value) == 0
            for name, value in values.items()
            if name.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))
        )

    with until(free):
        pass


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
        {"top_p": 0.9, "dry_multiplier": 0.8, "dry_allowed_length": 1, "presence_penalty": 0.3},
    ],
)
def test_an_answer_outlives_a_killed_engine_with_the_same_tokens(command: Command, sampling: dict[str, Any]) -> None:
    body = {"prompt": "Once upon a time", "seed": 7, "ignore_eos": True, "max_tokens": 200} | sampling
    whole = HTTP.post(command.url + "/v1/completions", json=body).json()["choices"][0]["text"]
    came = ""
    with HTTP.stream("POST", command.url + "/v1/completions", json=body | {"stream": True}) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        while len(came) < 100:
            came += json.loads(next(lines))["choices"][0]["text"]
        command.engine().kill()
        *rest, end = lines
    assert end == "[DONE]"
    assert came + "".join(json.loads(line)["choices"][0]["text"] for line in rest) == whole
    assert HTTP.get(command.url + "/health").status_code == 200


def test_a_missing_model_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "serve", "/no/such/model", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "/no/such/model" in done.stderr


def test_an_address_in_use_is_told_before_the_model_is_looked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "octavo", "serve", "/no/such/model", "--host", "127.0.0.1", "--port", port],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode != 0
    assert f"cannot listen at 127.0.0.1:{port}" in done.stderr
    assert "/no/such/model" not in done.stderr


def test_servers_that_start_at_once_end_with_status_0_and_an_answer_for_everyone() -> None:
    """Two presses of a key, 50 ms apart, are one; what runs is finished within the time, or told that it is not."""
    with ThreadPoolExecutor(8) as pool:
        patient, hasty = pool.map(lambda seconds: start("--shutdown-timeout", seconds), ("120", "0"))
        assert patient.url != hasty.url
        begun = {running.url: threading.Barrier(4) for running in (patient, hasty)}

        def read(running: Command, tokens: int) -> list[str]:
            body = {**PLAIN, "stream": True, "ignore_eos": True, "max_tokens": tokens}
            with HTTP.stream("POST", running.url + "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                first = next(lines)
                begun[running.url].wait(PATIENCE)
                return [line for line in (first, *lines) if line]

        streams = [pool.submit(read, patient, 60) for _ in range(3)]
        begun[patient.url].wait(PATIENCE)
        streams += [pool.submit(read, hasty, 500) for _ in range(3)]
        begun[hasty.url].wait(PATIENCE)
        for running in (hasty, patient):
            running.process.send_signal(signal.SIGTERM)
        pressed = time.monotonic()
        time.sleep(0.05)
        for running in (hasty, patient):
            # Where this thread was held up, a second signal would be a second press.
            if running.process.poll() is None and time.monotonic() - pressed < 0.25:
                running.process.send_signal(signal.SIGTERM)
        found = [stream.result(PATIENCE) for stream in streams]
    for number, lines in enumerate(found):
        assert lines[-1] == "data: [DONE]"
        assert ('"error"' in lines[-2]) == (number >= 3), lines[-2]
    assert [patient.process.wait(PATIENCE), hasty.process.wait(PATIENCE)] == [0, 0]
