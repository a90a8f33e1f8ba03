"""What a client asks of the cache and of beam search, and what it is told."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, RunningServer, run_server
from tests.serving.scripted_engine import CONTEXT, VOCAB

STORY = "Once upon a time there was a book that nobody had read."  # 55 bytes: three blocks


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    cache = CacheManager((FULL,), CacheOptions(64, 16, pin_budget=0.1))
    scheduler = Scheduler(cache, SchedulerLimits(8, 256, CONTEXT))
    loop = EngineLoop(scheduler, FakeExecutor((FULL,), 64, 16, vocab=128), time.monotonic)
    info = EngineInfo(CONTEXT, 64, 16, 8, 256, VOCAB, 0.0, cache.pin_tokens)
    with run_server(LocalClient(info, loop), dev_mode=True) as running:
        yield running


@pytest.fixture(autouse=True)
def empty_cache(server: RunningServer) -> None:
    assert HTTP.post(server.url + "/reset_prefix_cache").status_code == 200


def complete(server: RunningServer, prompt: object = STORY, **body: object) -> httpx.Response:
    return HTTP.post(server.url + "/v1/completions", json={"prompt": prompt, "max_tokens": 3, "seed": 1, **body})


def chat(server: RunningServer, content: object, **body: object) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    return HTTP.post(
        server.url + "/v1/chat/completions", json={"messages": messages, "max_tokens": 3, "seed": 1, **body}
    )


def metric(server: RunningServer, name: str, **labels: str) -> float:
    for line in HTTP.get(server.url + "/metrics").text.splitlines():
        if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(name)


def test_why_a_prompt_was_not_found(server: RunningServer) -> None:
    complete(server)
    answer = complete(server, STORY.replace("book", "cook"), explain_cache=True).json()
    (report,) = answer["cache_report"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert report["hit_tokens"] == 16
    assert report["hit_blocks"] == {"device": 1}
    miss = report["miss"]
    assert (miss["cause"], miss["position"], miss["tokens"]) == ("diverged", 29, 32)
    assert (miss["text_before"], miss["text"], miss["cached_text"]) == ("e was a ", "cook tha", "boo")
    assert (chr(miss["token_id"]), chr(miss["cached_token_id"])) == ("c", "b")
    assert metric(server, "octavo_prefix_cache_misses_total", cause="diverged") == 32


def test_reports_come_once_for_every_prompt_and_only_when_asked_for(server: RunningServer) -> None:
    assert "cache_report" not in complete(server).json()
    answer = complete(server, [STORY, "another one of at least a block or two"], explain_cache=True, n=2).json()
    assert [report["miss"] and report["miss"]["cause"] for report in answer["cache_report"]] == [None, "new"]
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = {"prompt": STORY} if path == "/v1/completions" else {"messages": [{"role": "user", "content": STORY}]}
        text = HTTP.post(
            server.url + path, json={**body, "seed": 1, "stream": True, "explain_cache": True, "n": 2}
        ).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert sum("cache_report" in item for item in events) == 1
    assert chat(server, STORY, explain_cache=True).json()["cache_report"][0]["miss"] is None


def test_salts_are_told_apart_and_may_be_long(server: RunningServer) -> None:
    long = "s" * 60_000
    assert complete(server, cache_salt=long).status_code == 200
    cached = []
    for salt in (long, long[:-1] + "t", "", long):
        answer = complete(server, cache_salt=salt or None, explain_cache=True).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        cause = (answer["cache_report"][0]["miss"] or {}).get("cause")
        assert cause == (None if cached[-1] else "salt" if salt else "new")
    assert cached == [48, 0, 0, 48]


def test_tenants_hit_their_own_prefixes_alone(server: RunningServer) -> None:
    prompt = list(range(1, 66))  # four blocks, and one token that is always computed
    salts = ("t1", "t1", "t2", None, "t2", "t", "1")
    usages = [complete(server, prompt, cache_salt=salt).json()["usage"] for salt in salts]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 64, 0, 0, 64, 0, 0]


def test_reset_forgets(server: RunningServer) -> None:
    complete(server)
    assert complete(server).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    assert HTTP.post(server.url + "/reset_prefix_cache").status_code == 200
    assert complete(server).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "prompt_cache_key": "mine"},
        {"prompt_cache_retention": "24h"},
    ],
)
def test_pins_within_the_budget(server: RunningServer, asked: dict[str, object]) -> None:
    answer = complete(server, **asked).json()
    assert "warnings" not in answer
    assert metric(server, "octavo_cache_pinned_blocks") == 3
    answer = complete(server, STORY * 3, **asked).json()
    assert answer["warnings"] == [
        f"{next(iter(asked))}: only the first 96 of 165 prompt tokens can be kept in the cache for the time asked for: "
        "--cache-pin-budget"
    ]
    assert metric(server, "octavo_cache_pinned_blocks") == 6
    assert metric(server, "octavo_cache_pins_refused_total") > 0


def test_a_mark_on_a_message_pins_the_prompt(server: RunningServer) -> None:
    chat(server, STORY)
    assert metric(server, "octavo_cache_pinned_blocks") == 0
    message = {"role": "user", "content": STORY, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    answer = HTTP.post(server.url + "/v1/chat/completions", json={"messages": [message], "seed": 1, "max_tokens": 2})
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert metric(server, "octavo_cache_pinned_blocks") == 4  # what was cached already is pinned as well


def test_hints_without_a_time_pin_nothing(server: RunningServer) -> None:
    for asked in ({"prompt_cache_key": "k"}, {"prompt_cache_retention": "in_memory"}, {"user": "u"}):
        assert "warnings" not in complete(server, **asked).json()
    assert metric(server, "octavo_cache_pinned_blocks") == 0


def test_beam_search_gives_its_best_answers_in_order(server: RunningServer) -> None:
    client = OpenAI(base_url=server.url + "/v1", api_key="none", http_client=HTTP)
    answer = client.completions.create(
        model="", prompt=STORY, max_tokens=5, seed=1, n=3, logprobs=2, extra_body={"use_beam_search": True}
    )
    sums = [sum(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert len({choice.text for choice in answer.choices}) == 3
    assert sums == sorted(sums, reverse=True)
    assert all(len(choice.logprobs.tokens) == 5 for choice in answer.choices)
    assert answer.usage.completion_tokens == 15
    # A search of as many beams for one answer finds the same best one; a greedy answer is no better.
    best = complete(server, max_tokens=5, best_of=3, use_beam_search=True, logprobs=0).json()["choices"]
    assert [choice["text"] for choice in best] == [answer.choices[0].text]
    greedy = complete(server, max_tokens=5, temperature=0, logprobs=0).json()["choices"][0]
    assert sum(greedy["logprobs"]["token_logprobs"]) <= sums[0]


def test_every_beam_tells_the_scores_of_the_prompt(server: RunningServer) -> None:
    body = {"max_tokens": 2, "n": 3, "use_beam_search": True, "echo": True, "logprobs": 1}
    whole = complete(server, STORY, **body, prompt_logprobs=0).json()["choices"]
    lines = complete(server, STORY, **body, stream=True).text.splitlines()
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    for choice in whole:
        assert len(choice["prompt_logprobs"]) == len(STORY)
        assert choice["prompt_logprobs"] == whole[0]["prompt_logprobs"]
        assert len(choice["logprobs"]["tokens"]) == len(STORY) + 2
        mine = [part for part in parts if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        told = [token for part in mine if part["logprobs"] for token in part["logprobs"]["tokens"]]
        assert told == choice["logprobs"]["tokens"]


def test_beam_search_in_a_chat_and_streamed(server: RunningServer) -> None:
    body = {"n": 2, "use_beam_search": True, "length_penalty": 0.5, "early_stopping": True}
    whole = chat(server, STORY, **body).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 2
    events = chat(server, STORY, stream=True, **body).text.splitlines()
    streamed = ["", ""]
    for line in events:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 1e999}, "length_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"best_of": 1, "n": 2}, "best_of"),
    ],
)
def test_what_does_not_go_with_beams(server: RunningServer, body: dict[str, object], word: str) -> None:
    content = json.dumps({"prompt": STORY, "seed": 1, "use_beam_search": True, **body}).replace("Infinity", "1e999")
    answer = HTTP.post(server.url + "/v1/completions", content=content)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]
