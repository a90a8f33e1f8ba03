"""The pooled routes as real clients see them: `octavo serve` as a command, the official client, and bad requests."""

import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from octavo import LLM
from tests.pooling.checkpoints import TEXTS, add_sentence_files, make_encoder, save
from tests.serving.scripted import HTTP, PATIENCE, until

Json = dict[str, Any]


def start(path: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A server, and where it is."""
    command = [sys.executable, "-m", "octavo", "serve", str(path), "--port", "0", "--no-weight-cache", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        url = line.split()[1] if line.startswith("address") else url
        if line.startswith("stop "):
            break
    assert url, "the server did not start"
    return process, url


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save(make_encoder("bert"), tmp_path_factory.mktemp("embed"), matryoshka_dimensions=[8, 16])
    prompts = {"prompts": {"query": "what is ", "document": ""}, "default_prompt_name": None}
    add_sentence_files(directory, {"pooling_mode_mean_tokens": True}, limits={"max_seq_length": 64}, prompts=prompts)
    return directory


@pytest.fixture(scope="module")
def embedder(model: Path) -> Iterator[str]:
    process, url = start(model, "--served-model-name", "tiny", "--api-key", "k")
    yield url
    end(process)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    head = make_encoder("bert", "ForSequenceClassification", num_labels=1)
    process, url = start(save(head, tmp_path_factory.mktemp("rank")), "--served-model-name", "ranker")
    yield url
    end(process)


@pytest.fixture(scope="module")
def offline(model: Path) -> Iterator[LLM]:
    with LLM(str(model), weight_cache=False, enable_metrics=False) as llm:
        yield llm


def post(url: str, path: str, body: Json, status: int = 200) -> Json:
    answer = HTTP.post(url + path, json=body, headers={"Authorization": "Bearer k"})
    assert answer.status_code == status, answer.text
    return answer.json()


def error_of(url: str, path: str, body: Json, status: int = 400) -> str:
    return post(url, path, body, status)["error"]["message"]


def test_the_official_client_gets_the_vectors(embedder: str, offline: LLM) -> None:
    expected = [output.outputs.embedding for output in offline.embed(list(TEXTS[:3]), use_tqdm=False)]
    with openai.OpenAI(base_url=f"{embedder}/v1", api_key="k") as client:
        for encoding in ("float", "base64"):
            answer = client.embeddings.create(model="tiny", input=list(TEXTS[:3]), encoding_format=encoding)
            assert [item.index for item in answer.data] == [0, 1, 2]
            assert answer.model == "tiny"
            assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
            if encoding == "float":
                assert [item.embedding for item in answer.data] == expected
            else:
                found = [np.frombuffer(base64.b64decode(str(item.embedding)), "<f4").tolist() for item in answer.data]
                assert found == expected
        usual = client.embeddings.create(model="tiny", input=TEXTS[0])  # asks for base64 and decodes it
        np.testing.assert_array_equal(np.float32(usual.data[0].embedding), np.float32(expected[0]))
        short = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8).data[0].embedding
        cut = np.float64(expected[0][:8])
        np.testing.assert_allclose(short, cut / np.linalg.norm(cut), rtol=1e-5)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="x")
    with openai.OpenAI(base_url=f"{embedder}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.embeddings.create(model="tiny", input="x")


def test_inputs_may_be_token_ids(embedder: str, offline: LLM) -> None:
    ids = offline.embed(list(TEXTS[:2]), use_tqdm=False)
    listed = [output.prompt_token_ids for output in ids]
    for given, expected in ((listed, ids), (listed[0], ids[:1])):
        found = post(embedder, "/v1/embeddings", {"input": given})["data"]
        assert [item["embedding"] for item in found] == [output.outputs.embedding for output in expected]


def test_vectors_may_come_as_bytes(embedder: str, offline: LLM) -> None:
    expected = np.float32([output.outputs.embedding for output in offline.embed(list(TEXTS[:2]), use_tqdm=False)])
    for kind, dtype, tolerance in (("float32", "<f4", 0), ("float16", ">f2", 1e-3), ("bfloat16", "<u2", 8e-3)):
        order = "big" if dtype[0] == ">" else "little"
        body = {"input": list(TEXTS[:2]), "encoding_format": "bytes", "embed_dtype": kind, "endianness": order}
        answer = HTTP.post(embedder + "/v1/embeddings", json=body, headers={"Authorization": "Bearer k"})
        assert answer.headers["content-type"] == "application/octet-stream"
        assert '"shape":[48]' in answer.headers["metadata"]
        values = np.frombuffer(answer.content, dtype)
        if kind == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(values.astype(np.float32).reshape(2, -1), expected, atol=tolerance)


def test_prompts_go_before_texts(embedder: str) -> None:
    named = post(embedder, "/v1/embeddings", {"input": "a panda?", "prompt_name": "query"})
    plain = post(embedder, "/v1/embeddings", {"input": "what is a panda?"})
    assert named["data"] == plain["data"]
    assert "query" in error_of(embedder, "/v1/embeddings", {"input": "a", "prompt_name": "passage"})


def test_pooling_gives_texts_and_tokens(embedder: str, offline: LLM) -> None:
    (states,) = offline.encode(TEXTS[0], pooling_task="token_embed", use_tqdm=False)
    data = post(embedder, "/pooling", {"input": TEXTS[0], "task": "token_embed"})["data"][0]["data"]
    np.testing.assert_array_equal(np.float32(data), states.outputs.data)
    whole = post(embedder, "/pooling", {"input": TEXTS[0]})
    assert whole["data"][0]["data"] == post(embedder, "/v1/embeddings", {"input": TEXTS[0]})["data"][0]["embedding"]
    raw = post(embedder, "/pooling", {"input": TEXTS[0], "normalize": False})["data"][0]["data"]
    assert abs(np.linalg.norm(raw) - 1) > 0.05


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_vectors_are_cosines(embedder: str, path: str) -> None:
    first, *others = (item["embedding"] for item in post(embedder, "/v1/embeddings", {"input": list(TEXTS)})["data"])
    answer = post(embedder, path, {"text_1": TEXTS[0], "text_2": list(TEXTS[1:])})
    np.testing.assert_allclose(
        [item["score"] for item in answer["data"]], [np.dot(first, o) for o in others], atol=1e-6
    )
    for names in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        same = post(embedder, path, dict(zip(names, (TEXTS[0], list(TEXTS[1:])), strict=True)))
        assert same["data"] == answer["data"]
    each = post(embedder, path, {"text_1": list(TEXTS[:2]), "text_2": list(TEXTS[1:3])})
    assert len(each["data"]) == 2


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked(ranker: str, path: str) -> None:
    documents: list[Any] = [TEXTS[1], {"text": TEXTS[2]}, {"content": [{"type": "text", "text": TEXTS[3]}]}]
    answer = post(ranker, path, {"query": TEXTS[0], "documents": documents})
    scores = [item["score"] for item in post(ranker, "/score", {"text_1": TEXTS[0], "text_2": documents})["data"]]
    order = sorted(range(3), key=lambda index: -scores[index])
    assert [item["index"] for item in answer["results"]] == order
    assert [item["relevance_score"] for item in answer["results"]] == [scores[index] for index in order]
    assert answer["results"][0]["document"]["text"] == TEXTS[1 + order[0]]
    assert answer["usage"]["total_tokens"] > 0
    best = post(ranker, path, {"query": TEXTS[0], "documents": documents, "top_n": 1, "return_documents": False})
    assert best["results"] == [{"index": order[0], "relevance_score": scores[order[0]]}]
    assert all(0 < score < 1 for score in scores)
    assert post(ranker, path, {"query": TEXTS[0], "documents": documents, "top_n": 0})["results"] == answer["results"]


def test_documents_may_be_cut(ranker: str) -> None:
    given = {"query": "what is a panda?", "documents": ["hello world a bear", "the tree"]}
    cut = post(ranker, "/rerank", {**given, "max_tokens_per_doc": 2, "max_tokens_per_query": 3})
    plain = post(ranker, "/rerank", {"query": "what is a", "documents": ["hello world", "the tree"]})
    assert [item["relevance_score"] for item in cut["results"]] == [
        item["relevance_score"] for item in plain["results"]
    ]
    assert {item["document"]["text"] for item in cut["results"]} == set(given["documents"])
    whole = post(ranker, "/rerank", {**given, "max_tokens_per_doc": 0})
    assert whole["usage"]["total_tokens"] > cut["usage"]["total_tokens"] == plain["usage"]["total_tokens"]


def test_coheres_route_gives_the_same_vectors(embedder: str) -> None:
    texts = list(TEXTS[:3])
    expected = [item["embedding"] for item in post(embedder, "/v1/embeddings", {"input": texts})["data"]]
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = post(embedder, "/v2/embed", {"model": "tiny", "texts": texts, "embedding_types": kinds})
    assert answer["texts"] == texts
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    found = answer["embeddings"]
    assert found["float"] == expected
    for number, vector in enumerate(np.float32(expected)):
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(found["base64"][number]), "<f4"), vector)
        bits = np.unpackbits(np.array(found["ubinary"][number], np.uint8))
        np.testing.assert_array_equal(bits, vector > 0)
        assert [value + 128 for value in found["binary"][number]] == found["ubinary"][number]
    query = {"inputs": [{"content": [{"type": "text", "text": "a panda?"}]}], "input_type": "search_query"}
    named = post(embedder, "/v1/embeddings", {"input": "a panda?", "prompt_name": "query"})["data"][0]["embedding"]
    assert post(embedder, "/v2/embed", query)["embeddings"] == {"float": [named]}
    short = post(embedder, "/v2/embed", {"texts": texts, "output_dimension": 8, "max_tokens": 4, "truncate": "START"})
    body = {"input": texts, "dimensions": 8, "truncate_prompt_tokens": 4, "truncation_side": "left"}
    same = [item["embedding"] for item in post(embedder, "/v1/embeddings", body)["data"]]
    assert short["embeddings"]["float"] == same
    cut = post(embedder, "/v2/embed", {"texts": [LONG]})  # texts are cut unless truncate is NONE
    assert cut["meta"]["billed_units"]["input_tokens"] == 64
    plain = {"texts": texts, "softmax": False, "truncate_prompt_tokens": 2, "truncation_side": "left"}
    other = post(embedder, "/v2/embed", plain)
    unscaled = post(embedder, "/v1/embeddings", {"input": texts, "softmax": False})["data"]
    assert other["embeddings"]["float"] == [item["embedding"] for item in unscaled]
    assert [text.split(" ")[0] for text in other["warnings"]] == ["truncate_prompt_tokens", "truncation_side"]


def test_classes_have_names(ranker: str) -> None:
    for path in ("/classify", "/v1/classify"):
        (found,) = post(ranker, path, {"input": TEXTS[0]})["data"]
        assert found["label"] == "LABEL_0"
        assert found["num_classes"] == len(found["probs"]) == 1


def test_the_model_list_says_what_a_model_does(embedder: str, ranker: str) -> None:
    headers = {"Authorization": "Bearer k"}
    assert HTTP.get(embedder + "/v1/models", headers=headers).json()["data"][0]["tasks"] == ["embed", "token_embed"]
    assert HTTP.get(ranker + "/v1/models").json()["data"][0]["tasks"] == ["classify", "score"]


LONG = "panda " * 80


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {}, "input: this field is required"),
        ("/v1/embeddings", {"input": []}, "input is empty"),
        ("/v1/embeddings", {"input": ""}, "text 0 is empty"),
        ("/v1/embeddings", {"input": ["a", ""]}, "text 1 is empty"),
        ("/v1/embeddings", {"input": [[]]}, "text 0 is empty"),
        ("/v1/embeddings", {"input": ["a", [1]]}, "expected a text, a list of texts"),
        ("/v1/embeddings", {"input": 3}, "expected a text, a list of texts"),
        ("/v1/embeddings", {"input": [[10_000]]}, "token id 10000"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "2049 texts; at most 2048"),
        ("/v1/embeddings", {"input": LONG}, "maximum context length is 64 tokens, but the text has 82"),
        ("/v1/embeddings", {"input": "a", "dimensions": 49}, "dimensions may be 8, 16, or 48"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions must be"),
        ("/v1/embeddings", {"input": "a", "dimensions": 12}, "dimensions may be 8, 16, or 48"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 65}, "more than the 64"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 2}, "leaves no room"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "timeout": -1}, "timeout"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}]}, "no chat template"),
        ("/v1/embeddings", {"input": "a", "messages": []}, "either input or messages"),
        ("/v2/embed", {}, "texts: this field is required"),
        ("/v2/embed", {"texts": []}, "texts is empty"),
        ("/v2/embed", {"texts": ["a"], "inputs": []}, "either texts or inputs"),
        ("/v2/embed", {"images": ["x"]}, "images are not supported"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, "maximum context length is 64"),
        ("/v2/embed", {"texts": ["a"], "truncate": "LEFT"}, "truncate may be"),
        ("/v2/embed", {"texts": ["a"], "truncate": "NONE", "max_tokens": 3}, "max_tokens cuts"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types may be"),
        ("/pooling", {"input": "a", "task": "classify"}, "does embed and token_embed"),
        ("/classify", {"input": "a"}, "has no task 'classify'; it does embed and token_embed"),
        ("/score", {"text_1": "a"}, "text_2: this field is required"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "2 texts cannot be scored against 1"),
        ("/score", {"text_1": [], "text_2": ["a"]}, "text_1 is empty"),
        ("/score", {"text_1": "a", "text_2": [{"image": 1}]}, "expected a text"),
        ("/score", {"text_1": "a", "text_2": {"content": [{"type": "image_url"}]}}, "only text is"),
        ("/rerank", {"query": "a", "documents": []}, "documents is empty"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n must be at least 1"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": -1}, "max_tokens_per_doc must be"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2049}, "text_2 has 2049 texts"),
        ("/v1/embeddings", {"input": ["a", LONG]}, "input 1: this model's maximum"),
        ("/v1/embeddings", {"input": [[5], [10_000]]}, "input 1: prompt has token id 10000"),
        ("/pooling", {"input": "a", "returned_token_ids": [0]}, "classes of every token only"),
        ("/rerank", {"query": ["a", "b"], "documents": ["b"]}, "query: expected one text"),
        ("/v1/completions", {"prompt": "a"}, "generates no text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "generates no text"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(embedder: str, path: str, body: Json, says: str) -> None:
    assert says in error_of(embedder, path, body)


def test_long_texts_are_cut_when_asked(embedder: str) -> None:
    for cut, left in ((-1, 64), (10, 10)):
        answer = post(embedder, "/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": cut})
        assert answer["usage"]["prompt_tokens"] == left
    whole = post(embedder, "/v1/embeddings", {"input": "a panda bear", "truncate_prompt_tokens": 4})
    ends = {
        side: post(embedder, "/v1/embeddings", {"input": "a bear panda", **cut})["data"] for side, cut in CUTS.items()
    }
    assert ends["right"] == post(embedder, "/v1/embeddings", {"input": "a bear"})["data"]
    assert ends["left"] == post(embedder, "/v1/embeddings", {"input": "bear panda"})["data"]
    assert whole["data"] == post(embedder, "/v1/embeddings", {"input": "a panda"})["data"]


CUTS = {side: {"truncate_prompt_tokens": 4, "truncation_side": side} for side in ("left", "right")}


def test_what_has_no_effect_is_told(embedder: str) -> None:
    body = {"input": "a", "colour": 1, "priority": 3, "truncation_side": "left", "embed_dtype": "float16"}
    answer = post(embedder, "/v1/embeddings", body)
    told = " ".join(answer["warnings"])
    assert "colour" in told
    assert "priority" in told
    assert "truncation_side" in told
    assert "embed_dtype" in told
    assert "warnings" not in post(embedder, "/v1/embeddings", {"input": "a", "user": "me"})


def test_a_strict_server_refuses_what_has_no_effect(model: Path) -> None:
    process, url = start(model, "--strict-requests")
    try:
        assert "colour" in error_of(url, "/v1/embeddings", {"input": "a", "colour": 1})
        assert post(url, "/v1/embeddings", {"input": "a"})["data"]
        assert reading(url, "octavo_requests_finished_total", '"stop"') == 1
        assert reading(url, "octavo_generation_tokens_total") == 0
    finally:
        end(process)


def reading(url: str, name: str, label: str = "") -> float:
    """The sum of a metric's values."""
    lines = HTTP.get(url + "/metrics", headers={"Authorization": "Bearer k"}).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)


def aborted(url: str) -> float:
    return reading(url, "octavo_requests_finished_total", '"abort"')


def waiting(url: str) -> float:
    return reading(url, "octavo_requests_waiting")


def test_who_leaves_stops_the_work(embedder: str) -> None:
    body = json.dumps({"input": [LONG[:360]] * 2048}).encode()
    lines = (
        "POST /v1/embeddings HTTP/1.1",
        "Host: x",
        "Authorization: Bearer k",
        f"Content-Length: {len(body)}",
        "",
        "",
    )
    host, _, port = embedder.removeprefix("http://").partition(":")

    def left_in_time() -> bool:
        """Leave in the middle of the work; false where it was done already."""
        before, ended = aborted(embedder), reading(embedder, "octavo_requests_finished_total")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall("\r\n".join(lines).encode() + body)
            with until(lambda: waiting(embedder) > 0 or select.select([connection], [], [], 0)[0]):
                pass
        with until(lambda: reading(embedder, "octavo_requests_finished_total") > ended and not waiting(embedder)):
            pass
        return aborted(embedder) > before

    assert any(left_in_time() for _ in range(20))
