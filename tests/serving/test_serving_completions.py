"""POST /v1/completions: prompts of every kind, echo, log-probabilities, several answers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.serving.scripted import HTTP, RunningServer, config_of, run_server
from tests.serving.scripted_engine import ScriptedClient, endless


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


def post(server: RunningServer, prompt: Any = "Hi", **body: object) -> httpx.Response:
    return HTTP.post(server.url + "/v1/completions", json={"prompt": prompt, **body})


def events(server: RunningServer, prompt: Any = "Hi", **body: object) -> list[dict]:
    lines = [line for line in post(server, prompt, stream=True, **body).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_shape(server: RunningServer) -> None:
    answer = post(server).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hello, world!",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
    ]


def test_default_length_is_16() -> None:
    with run_server(ScriptedClient(endless)) as server:
        assert post(server).json()["usage"]["completion_tokens"] == 16


def test_lists_of_prompts_times_n(server: RunningServer) -> None:
    answer = post(server, ["A", "BC"], n=2).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 6
    chunks = events(server, [[65], [66, 67]], n=2, stream_options={"include_usage": True})
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert set(texts.values()) == {"Hello, world!"}
    assert chunks[-1]["usage"] == answer["usage"]


def test_token_ids_as_prompt(server: RunningServer) -> None:
    answer = post(server, [72, 105], return_token_ids=True).json()
    assert answer["choices"][0]["prompt_token_ids"] == [72, 105]
    assert answer["choices"][0]["token_ids"][:5] == list(b"Hello")
    chunks = events(server, [[72, 105], [65]], n=2, return_token_ids=True)
    told = [c["choices"][0] for c in chunks if "prompt_token_ids" in c["choices"][0]]
    ids = {choice["index"]: choice["prompt_token_ids"] for choice in told}
    assert ids == {0: [72, 105], 1: [72, 105], 2: [65], 3: [65]}
    assert len(told) == 4  # with the first event of each


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_echo_with_logprobs(server: RunningServer, max_tokens: int) -> None:
    answer = post(server, "\n1. Ada", echo=True, max_tokens=max_tokens, logprobs=1).json()
    choice = answer["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == "\n1. Ada" + "Hel"[:max_tokens]
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == list(range(len(choice["text"])))
    assert lists["token_logprobs"][0] is None
    assert lists["token_logprobs"][1:] == [-1.5] * (len(choice["text"]) - 1)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert choice["finish_reason"] == "length"
    parts = [c["choices"][0] for c in events(server, "\n1. Ada", echo=True, max_tokens=max_tokens, logprobs=1)]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert [t for part in parts if part["logprobs"] for t in part["logprobs"]["text_offset"]] == lists["text_offset"]


@pytest.mark.parametrize("top", [0, 1, 2])
def test_logprobs_count_and_sampled_token(server: RunningServer, top: int) -> None:
    lists = post(server, logprobs=top, max_tokens=4).json()["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == 4
    for token, named in zip(lists["tokens"], lists["top_logprobs"], strict=True):
        assert token in named
        assert len(named) == max(1, {0: 1, 1: 2, 2: 2}[top])


def test_client_reads_stream(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="Hi", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello, world!"


def test_token_ids_instead_of_text(server: RunningServer) -> None:
    lists = post(server, logprobs=0, max_tokens=1, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"]
    assert lists["tokens"] == ["token_id:72"]


@pytest.mark.parametrize(
    ("prompt", "body", "word"),
    [
        ("", {}, "empty"),
        ([""], {}, "empty"),
        (["ok", ""], {}, "empty"),
        ([], {}, "empty"),
        ([[]], {}, "empty"),
        (None, {}, "required"),
        (["A", [81]], {}, "prompt"),
        ([1.5], {}, "prompt"),
        ([True], {}, "prompt"),
        ({"a": 1}, {}, "prompt"),
        ([257], {}, "257"),
        ([-1], {}, "-1"),
        (["a"] * 2000, {}, "1024"),
        ("Hi", {"suffix": "x"}, "suffix"),
        ("Hi", {"logprobs": 21}, "logprobs"),
        ("Hi", {"logprobs": -1}, "logprobs"),
        ("Hi", {"max_tokens": 0}, "max_tokens"),
        ("Hi", {"n": 2, "best_of": 1}, "best_of"),
        ("Hi", {"best_of": 2, "stream": True}, "best_of"),
        ("Hi", {"best_of": 129}, "128"),
        ([65] * 512, {}, "512"),
        ([65] * 8000, {"max_tokens": 1}, "8000"),
        ("a" * 600_000, {}, "512"),
    ],
)
def test_bad_prompts(server: RunningServer, prompt: Any, body: dict, word: str) -> None:
    answer = post(server, prompt, **body)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]["message"]


def test_exactly_fitting_prompt(server: RunningServer) -> None:
    answer = post(server, [65] * 511, max_tokens=1).json()
    assert answer["usage"] == {
        "prompt_tokens": 511,
        "total_tokens": 512,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"bad_words": ["a"] * 1025}, "bad_words may hold at most 1024"),
        ({"prompt": ["a"] * 1024, "n": 9}, "more than 8192 answers"),
        ({"prompt": ["a"] * 1024, "allowed_token_ids": [1] * 1025}, "allowed_token_ids has 1025 entries for each"),
        ({"prompt": ["a"] * 1024, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias has 1025 entries"),
        ({"prompt": ["a"] * 1024, "stop_token_ids": [1] * 1025}, "stop_token_ids has 1025 entries"),
    ],
)
def test_a_small_body_cannot_ask_for_very_much(server: RunningServer, body: dict, words: str) -> None:
    answer = post(server, **body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", [1 << 64, -(1 << 64), 10**30])
def test_a_priority_beyond_64_bits_is_400(server: RunningServer, value: int) -> None:
    answer = post(server, priority=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"


def test_logprobs_without_a_limit() -> None:
    with run_server(config=config_of(max_logprobs=-1)) as unlimited:
        answer = post(unlimited, logprobs=30)
        assert answer.status_code == 200
        assert post(unlimited, logprobs=10**6).status_code == 400


def test_every_sampler_can_be_asked_for(server: RunningServer) -> None:
    wanted = {
        "typical_p": 0.5,
        "top_n_sigma": 1.0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dynatemp_range": 0.5,
        "dynatemp_exponent": 2.0,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["."],
        "samplers": ["dry", "typ_p", "top_n_sigma", "xtc", "temperature"],
    }
    surprising = {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "samplers": "edt"}
    for body in (wanted, surprising):
        answer = HTTP.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 3, **body})
        assert answer.status_code == 200
        assert "warnings" not in answer.json()
    for name in wanted | surprising:
        refused = HTTP.post(server.url + "/v1/completions", json={"prompt": "a", name: -5})
        assert refused.status_code == 400
        assert name in refused.json()["error"]["message"]
