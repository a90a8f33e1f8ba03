"""Ways in which other servers were seen to fail, one kind after another: each is refused or answered, and nothing else
notices.

The names of the tests say what was reported; `docs/reports.md` lists where every other reported kind is tested.
"""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, exchange, run_server, until
from tests.serving.scripted_engine import CONTEXT, VOCAB, ScriptedClient

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
PLAIN = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}


def scheduled(blocks: int = 64, slots: int = 8, context: int = CONTEXT) -> RunningServer:
    """A server over the real scheduler and cache, with an executor that draws what follows from the tokens so far."""
    cache = CacheManager((FULL,), CacheOptions(blocks, 16))
    scheduler = Scheduler(cache, SchedulerLimits(slots, 256, context))
    loop = EngineLoop(scheduler, FakeExecutor((FULL,), blocks, 16, vocab=128), time.monotonic)
    return run_server(LocalClient(EngineInfo(context, blocks, 16, slots, 256, VOCAB, 0.0), loop))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with scheduled() as running:
        yield running


def post(server: RunningServer, path: str, body: object) -> httpx.Response:
    return HTTP.post(server.url + path, json=body)


def answer_of(server: RunningServer) -> object:
    return post(server, TEXT, PLAIN).json()["choices"]


def check_up(server: RunningServer, before: object) -> None:
    """Nothing runs, waits or holds a block, /health answers, and a greedy answer is what it was."""
    assert HTTP.get(server.url + "/health").status_code == 200
    with until(lambda: server.state.engine.live == 0):
        pass
    stats = server.client.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
    assert answer_of(server) == before


@pytest.fixture(autouse=True)
def still_up(server: RunningServer) -> Iterator[None]:
    before = answer_of(server)
    yield
    check_up(server, before)


# --- ids that the vocabulary does not have --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [VOCAB]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1 << 40]),
        ("logit_bias", {str(VOCAB): 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 1}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [VOCAB]),
        ("allowed_token_ids", [-1]),
    ],
)
def test_ids_of_another_model_are_refused_by_field_and_id_and_no_neighbour_changes(
    server: RunningServer, field: str, value: object
) -> None:
    neighbour = {"prompt": "beside it", "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    alone = post(server, TEXT, neighbour).json()["choices"]
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(post, server, TEXT, neighbour)
        refused = post(server, CHAT, HI | {"min_tokens": 1, "max_tokens": 4, field: value})
        assert beside.result().json()["choices"] == alone
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400
    assert field in message
    for part in value if isinstance(value, (list, dict)) else ():
        assert str(part) in message


def test_a_bias_beyond_the_range_is_brought_into_it_and_told(server: RunningServer) -> None:
    wide, most = (
        post(server, CHAT, HI | {"temperature": 0, "logit_bias": {"81": value}}).json() for value in (1e9, 100)
    )
    assert wide["choices"] == most["choices"]
    assert "logit_bias of token 81" in wide["warnings"][0]


# --- prompts against the context ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [None, 1, 2, 100])
@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, 8000])
def test_at_the_edge_of_the_context(server: RunningServer, length: int, asked: int | None, stream: bool) -> None:
    body = {"prompt": [65] * length, "ignore_eos": True, "stream": stream} | ({"max_tokens": asked} if asked else {})
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    answer = post(server, TEXT, body)
    left = CONTEXT - length
    if left < (asked or 1):
        message = answer.json()["error"]["message"]  # a status and an object, also of a stream
        assert answer.status_code == 400
        assert f"maximum context length is {CONTEXT}" in message
        assert f"{length} tokens" in message
        assert f"and {asked or 1} more" in message
        return
    assert answer.status_code == 200
    usage = answer.json()["usage"] if not stream else json.loads(answer.text.split("\n\n")[-3][6:])["usage"]
    assert usage["completion_tokens"] == (asked or min(16, left))


# --- several prompts ------------------------------------------------------------------------------------------------


def test_choices_of_several_prompts_are_numbered_and_usage_counts_each_prompt_once(server: RunningServer) -> None:
    for prompts in (["A", "B"], [[80, 81], [82]]):
        whole = post(server, TEXT, {"prompt": prompts, "n": 2, "seed": 3, "max_tokens": 6}).json()
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
        assert whole["usage"]["prompt_tokens"] == sum(map(len, prompts))
        body = {"prompt": prompts, "n": 2, "seed": 3, "max_tokens": 6, "stream": True}
        lines = post(server, TEXT, body | {"stream_options": {"include_usage": True}}).text.split("\n\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        texts = dict.fromkeys(range(4), "")
        for chunk in chunks[:-1]:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        assert list(texts.values()) == [choice["text"] for choice in whole["choices"]]
        assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


# --- fields of the API ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXT, PLAIN)])
def test_usage_comes_in_one_last_chunk_and_only_when_asked_for(
    server: RunningServer, path: str, body: dict[str, object], n: int
) -> None:
    body = body | {"n": n, "seed": 1, "temperature": 1}
    whole = post(server, path, body).json()["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": True}):
        lines = post(server, path, body | {"stream": True, "stream_options": options}).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(line[6:]) for line in lines[:-2]]
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        told = [chunk for chunk in chunks if chunk.get("usage") is not None]
        if options != {"include_usage": True}:
            assert told == []
            continue
        assert told == chunks[-1:]
        assert told[0]["choices"] == []
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [told[0]["usage"][name] for name in counts] == [whole[name] for name in counts]
    refused = post(server, path, body | {"stream": False, "stream_options": {"include_usage": True}})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ({"max_completion_tokens": 9, "max_tokens": 3}, 9),
    ],
)
def test_the_newer_name_of_the_limit_counts(server: RunningServer, limits: dict[str, int], tokens: int) -> None:
    body = {"messages": HI["messages"], "ignore_eos": True, **limits}
    answer = post(server, CHAT, body).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (tokens, "length")
    for wrong in (0, -1, "3"):
        assert post(server, CHAT, body | {"max_completion_tokens": wrong}).status_code == 400


@pytest.mark.parametrize(
    ("field", "fine", "wrong"),
    [
        ("top_k", (0, -1, 999_999, 1), (-2, 1.5)),
        ("top_p", (1e-9, 1), (0, 1.0001, -0.1)),
        ("min_p", (0, 1), (1.1, -0.1)),
        ("temperature", (5e-324, 1e-12, 0), (-1, float("nan"), float("inf"))),
    ],
)
def test_edges_of_sampling_parameters(
    server: RunningServer, field: str, fine: tuple[float, ...], wrong: tuple[float, ...]
) -> None:
    for value in fine:
        assert post(server, TEXT, PLAIN | {"temperature": 1, "seed": 1, field: value}).status_code == 200, value
    for value in wrong:
        refused = HTTP.post(server.url + TEXT, content=json.dumps(PLAIN | {field: value}))
        assert refused.status_code == 400, value


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny",x}',
        b"",
        b"[]",
        b'"s"',
        b"[" * 1_000_000,
        b'{"prompt":"\xff\xfe"}',
        b'{"temperature":NaN}',
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08\x00{}",
    ],
)
def test_bodies_that_are_none_get_an_error_object(server: RunningServer, path: str, body: bytes) -> None:
    answer = HTTP.post(server.url + path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"]
    assert b"\xff" not in answer.content


def test_a_key_that_is_there_twice_counts_once_and_disturbs_nobody(server: RunningServer) -> None:
    body = b'{"prompt":"a","prompt":"The capital of France is","temperature":0,"max_tokens":4}'
    answer = HTTP.post(server.url + TEXT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert answer.json()["choices"] == answer_of(server)


NAMES = ["nope", "../../etc/passwd", "/etc/passwd", "tiny/../tiny", "tiny\u0000", "x" * 5000, "TINY", " tiny", "\ud7ff"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_only_looked_up_among_those_served(server: RunningServer, name: str) -> None:
    for path, body in ((CHAT, HI), (TEXT, PLAIN), ("/v1/messages", HI), ("/v1/responses", {"input": "x"})):
        answer = post(server, path, body | {"model": name})
        assert answer.status_code == 404, (path, answer.text)
        assert answer.json()["error"]["message"]
        assert len(answer.text) < 1000


# --- much for little ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (TEXT, {"prompt": "a " * 13_500_000}, 413),
        (TEXT, {"prompt": "a" * 200_000}, 400),
        (TEXT, {"prompt": ["a"] * 200_000}, 400),
        (TEXT, {"prompt": "a", "n": 1_000_000_000}, 400),
        (TEXT, {"prompt": "a", "best_of": 1_000_000_000}, 400),
        (TEXT, {"prompt": "a", "stop": ["x"] * 100_000}, 400),
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 20_000}, 400),
    ],
    ids=["27 MB", "one word", "prompts", "n", "best_of", "stops", "messages"],
)
def test_a_cheap_request_is_refused_cheaply(
    server: RunningServer, path: str, body: dict[str, object], status: int
) -> None:
    content = json.dumps(body).encode()
    done = threading.Event()
    before = server.client.stats().prompt_tokens

    def watch() -> None:
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            while not done.is_set():
                assert client.get(server.url + "/health").status_code == 200

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = HTTP.post(server.url + path, content=content, headers={"content-type": "application/json"})
    except httpx.TransportError:  # hung up on after the refusal, while it still sent
        assert status == 413
        return
    finally:
        done.set()
        watcher.join()
    assert answer.status_code == status, answer.text
    assert server.client.stats().prompt_tokens == before  # the engine never saw it


def test_a_head_of_64_megabytes_is_431(server: RunningServer) -> None:
    try:
        answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (1 << 26) + b"\r\n\r\n")
    except ConnectionError:  # hung up on in the middle
        return
    assert answer.startswith(b"HTTP/1.1 431") or answer == b""


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_at", [0, 1, 3])
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXT, PLAIN)])
def test_a_failure_is_never_a_clean_end(path: str, body: dict[str, object], fail_at: int) -> None:
    with run_server(ScriptedClient(fail_at=fail_at)) as failing:
        whole = HTTP.post(failing.url + path, json=body | {"max_tokens": 9})
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, 500)
        streamed = HTTP.post(failing.url + path, json=body | {"max_tokens": 9, "stream": True})
        if fail_at == 0:
            assert (streamed.status_code, streamed.json()["error"]["code"]) == (500, 500)
            return
        assert streamed.status_code == 200
        *chunks, error, done, rest = streamed.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        assert json.loads(error[6:])["error"]["code"] == 500
        ends = [json.loads(chunk[6:])["choices"][0].get("finish_reason") for chunk in chunks]
        assert set(ends) <= {None}


def test_a_stream_that_is_refused_is_a_status_and_its_connection_is_free(server: RunningServer) -> None:
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        for _ in range(2):
            assert client.post(server.url + CHAT, json=HI | {"n": 0, "stream": True}).status_code == 400
        assert client.post(server.url + CHAT, json=HI).status_code == 200


# --- a pool that is too small ---------------------------------------------------------------------------------------


def test_a_request_larger_than_the_pool_blocks_nobody() -> None:
    with scheduled(blocks=9, context=512) as small:  # one block is nobody's

        def asked(length: int, tokens: int) -> httpx.Response:
            return post(small, TEXT, {"prompt": [65] * length, "max_tokens": tokens, "ignore_eos": True})

        refused = asked(200, 8)
        assert refused.status_code in (400, 503), refused.text
        assert "200" in refused.json()["error"]["message"]
        assert asked(8, 8).json()["usage"]["completion_tokens"] == 8
        grown = asked(100, 400)  # alone, and it outgrows the pool
        if grown.status_code == 200:
            assert grown.json()["choices"][0]["finish_reason"] == "length"
        else:
            assert "400" in grown.json()["error"]["message"]
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(asked, 60, 60) for _ in range(2)]
            assert [one.result().json()["usage"]["completion_tokens"] for one in both] == [60, 60]
        check_up(small, answer_of(small))


# --- many at once, and for long -------------------------------------------------------------------------------------


def test_threads_that_tokenize_in_every_way_get_what_they_get_alone(server: RunningServer) -> None:
    calls = [
        (CHAT, HI | {"temperature": 0}),
        (TEXT, PLAIN | {"bad_words": ["foo"]}),
        (TEXT, PLAIN | {"stop": ["zz"]}),
        ("/tokenize", {"prompt": "some text"}),
        ("/tokenize", HI),
        ("/detokenize", {"tokens": [72, 105]}),
    ]
    kept = ("choices", "tokens", "prompt")

    def ask(number: int) -> tuple[int, dict[str, object]]:
        answer = post(server, *calls[number % len(calls)])
        return answer.status_code, {k: v for k, v in answer.json().items() if k in kept}

    alone = [ask(number) for number in range(len(calls))]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(240))) == alone * 40


def test_what_is_kept_of_requests_that_are_over_is_bounded(server: RunningServer) -> None:
    def sizes() -> list[int]:
        engine = server.state.engine
        found = [vars(engine), vars(engine._outputs), vars(server.state.inputs)]
        return [len(value) for part in found for value in part.values() if isinstance(value, (dict, list, set))]

    def flood(first: int) -> None:
        for number in range(first, first + 60):
            prompt = [(number * 7 + i * i) % 120 + 3 for i in range(40)]
            assert post(server, TEXT, {"prompt": prompt, "max_tokens": 1, "user": f"u{number}"}).status_code == 200
            with HTTP.stream("POST", server.url + TEXT, json=PLAIN | {"stream": True, "max_tokens": 300}) as stream:
                next(stream.iter_lines())
        with until(lambda: server.state.engine.live == 0):
            pass

    def kept_after(first: int) -> tuple[list[int], int]:
        flood(first)
        return sizes(), HTTP.get(server.url + "/metrics").text.count("\n")

    # A cause that has not occurred before (an eviction, an answer that ended before its client left) adds a series
    # once; what is kept for each request or each user would grow with every flood.
    HTTP.get(server.url + "/metrics")  # counts itself, too
    found = [kept_after(0)]
    while len(found) < 5:
        found.append(kept_after(60 * len(found)))
        if found[-1] == found[-2]:
            return
    raise AssertionError(f"every flood left something behind: {found}")
