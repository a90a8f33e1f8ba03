"""Receipts: the same bits from the same request, also elsewhere; what cannot be the same is told before it runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.serving.responses.kept import Responses
from tests.serving.scripted import HTTP, RunningServer, run_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1.3, "n": 2}),
    (TEXT, {"prompt": ["a", "b"], "max_tokens": 9, "user": "me"}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        running.state.fingerprint = {"model": "m" * 40, "kernels": "k" * 40}
        yield running


def post(server: RunningServer, path: str, body: Any) -> Any:
    return HTTP.post(server.url + path, json=body)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_receipt_is_given_and_taken(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    plain = post(server, path, body).json()
    assert "receipt" not in plain
    receipt = post(server, path, {**body, "deterministic": True}).json()["receipt"]
    assert receipt["fingerprint"] == {"model": "m" * 40, "kernels": "k" * 40}
    assert (receipt["path"], receipt["replayed"]) == (path, None)
    assert isinstance(receipt["request"]["seed"], int)
    again = post(server, path, {**body, "receipt": receipt}).json()["receipt"]
    assert (again["replayed"], again["tokens"], again["request"]) == (True, receipt["tokens"], receipt["request"])
    lines = post(server, path, {**body, "stream": True, "receipt": receipt}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [chunk["receipt"] for chunk in chunks if "receipt" in chunk]
    assert [item["replayed"] for item in told] == [True]
    assert "receipt" in chunks[-1]
    other = post(server, path, {**body, "receipt": {**receipt, "tokens": "0" * 64}}).json()["receipt"]
    assert other["replayed"] is False


OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/responses", {"input": "Hi", "temperature": 1.3, "instructions": "Be short."}, CHAT),
    ("/v1/messages", {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "Hi"}]}, CHAT),
    ("/generate", {"prompt": "Hi", "n": 2, "max_tokens": 9}, TEXT),
]


@pytest.mark.parametrize(("path", "body", "told_path"), OTHERS)
def test_other_apis_give_receipts_of_the_request_that_they_become(
    server: RunningServer, path: str, body: dict[str, Any], told_path: str
) -> None:
    assert "receipt" not in post(server, path, body).json()
    receipt = post(server, path, {**body, "deterministic": True}).json()["receipt"]
    assert (receipt["path"], receipt["replayed"]) == (told_path, None)
    again = post(server, path, {**body, "receipt": receipt}).json()["receipt"]
    assert (again["replayed"], again["tokens"]) == (True, receipt["tokens"])
    lines = post(server, path, {**body, "stream": True, "receipt": receipt}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    told = [found for event in events if (found := event.get("response", event).get("receipt")) is not None]
    assert [item["replayed"] for item in told] == [True]
    elsewhere = post(server, told_path, {**receipt["request"], "receipt": receipt}).json()["receipt"]
    assert elsewhere["replayed"] is True
    changed = {name: "No" if name == "prompt" else value for name, value in body.items()} | {"temperature": 0.7}
    refused = post(server, path, {**changed, "receipt": receipt})
    assert refused.status_code == 400
    assert "receipt" in refused.text


def test_a_stored_conversation_is_in_the_receipt() -> None:
    with run_server() as server:
        server.state.responses = Responses("memory", 1 << 20)
        first = post(server, "/v1/responses", {"input": "Hi"}).json()
        asked = {"input": "And?", "previous_response_id": first["id"], "deterministic": True}
        second = post(server, "/v1/responses", asked).json()
        assert [message["role"] for message in second["receipt"]["request"]["messages"]] == [
            "user",
            "assistant",
            "user",
        ]
        kept = HTTP.get(f"{server.url}/v1/responses/{second['id']}").json()
        assert kept["receipt"] == second["receipt"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fingerprint": {"model": "x", "kernels": "k" * 40}}, "model (x then, mmmmmmmmmmmmmmmm here)"),
        ({"fingerprint": {"model": "m" * 40}}, "kernels (none then"),
        ({"fingerprint": {"settings": "s" * 40}}, "--linear-compute and --max-model-len: give the same flags"),
        ({"path": "/v1/chat/completions"}, "/v1/chat"),
        ({"tokens": 3}, "receipt"),
        ({"request": {"prompt": "b", "seed": 1}}, "another prompt"),
        ({"request": {"prompt": "a", "seed": 1, "top_p": 0.5}}, "another top_p"),
    ],
)
def test_what_cannot_be_the_same_is_refused(server: RunningServer, change: dict[str, Any], told: str) -> None:
    body = {"prompt": "a", "seed": 1}
    receipt = post(server, TEXT, {**body, "deterministic": True}).json()["receipt"]
    answer = post(server, TEXT, {**body, "receipt": {**receipt, **change}})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_a_receipt_replays_offline(demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, file = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "answer.json"
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.0, "deterministic": True, "n": 2}
    source.write_text(json.dumps({"custom_id": "a", "url": TEXT, "body": body}))
    flags = ["--log-level", "error", str(demo_model)]
    assert main(["run-batch", "-i", str(source), "-o", str(out), *flags]) == 0
    answer = json.loads(out.read_text())["response"]["body"]
    file.write_text(json.dumps(answer))
    capsys.readouterr()
    assert main(["replay", "-r", str(file), "--max-num-seqs", "1", "--threads", "1", *flags]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [choice["text"] for choice in again["choices"]] == [choice["text"] for choice in answer["choices"]]
    assert main(["replay", "-r", str(file), "--isa", "scalar", *flags]) == 1
    assert "kernels (" in capsys.readouterr().err
    answer["receipt"]["tokens"] = "0"
    file.write_text(json.dumps(answer["receipt"]))
    assert main(["replay", "-r", str(file), *flags]) == 1
    assert main(["replay", "-r", str(source)]) == 1
