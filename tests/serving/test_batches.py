"""OpenAI's files and batches by its official client: the whole way, wrong inputs, and turns."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from octavo.errors import ConfigError
from octavo.flow.request import GenerationRequest
from octavo.inputs.pooling import PoolingProcessor
from octavo.serving.batches.lane import room_beside
from octavo.serving.files.store import FileStore, StoredBatch
from octavo.serving.paging import Page
from octavo.spec.pooling import PoolerSpec
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, run_server, until
from tests.serving.scripted_engine import END, ScriptedClient, endless

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def echo(request: GenerationRequest, _index: int) -> Sequence[int]:
    """Says the last letters of its prompt."""
    return [*request.prompt_token_ids[-3:], END]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with run_server(ScriptedClient(echo), config_of(file_store=str(root))) as running:
        yield running


@pytest.fixture
def official(server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def client_of(server: RunningServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def line(number: object, url: str = TEXT, **body: Any) -> str:
    given = {"prompt": f"say {number}", "max_tokens": 9, **body} if url == TEXT else body
    return json.dumps({"custom_id": f"c{number}", "method": "POST", "url": url, "body": {"model": "tiny", **given}})


def upload(official: openai.OpenAI, lines: Sequence[str] | bytes, purpose: Any = "batch") -> str:
    data = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
    return official.files.create(file=("in.jsonl", data), purpose=purpose).id


def start(
    official: openai.OpenAI, lines: Sequence[str] | bytes, url: Any = TEXT, window: Any = "24h", **more: Any
) -> Any:
    return official.batches.create(
        input_file_id=upload(official, lines), endpoint=url, completion_window=window, **more
    )


def wait(official: openai.OpenAI, number: str, until: Callable[[Any], bool] | None = None) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        batch = official.batches.retrieve(number)
        if until(batch) if until else batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)


def read(official: openai.OpenAI, number: str | None) -> list[Any]:
    assert number is not None
    return [json.loads(text) for text in official.files.content(number).text.splitlines()]


def refused(call: Callable[[], object], status: int) -> str:
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    assert caught.value.status_code == status
    return str(caught.value)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was(official: openai.OpenAI, root: Path) -> None:
    data = bytes(range(256)) * 9000
    made = official.files.create(file=("../../a\n/b\\näme.bin", data), purpose="user_data")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(data), "näme.bin", "user_data")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert official.files.retrieve(made.id) == made
    content = official.files.content(made.id)
    assert content.content == data
    assert "filename*=UTF-8''n%C3%A4me.bin" in content.response.headers["content-disposition"]
    assert sorted(path.name for path in root.iterdir() if path.name.startswith("file-")) == [made.id]
    assert (root / made.id).stat().st_mode & 0o077 == 0
    assert official.files.delete(made.id).deleted
    assert not (root / made.id).exists()
    for call in (official.files.retrieve, official.files.content, official.files.delete):
        refused(lambda call=call: call(made.id), 404)


def test_lists_come_in_pages(official: openai.OpenAI) -> None:
    made = [official.files.create(file=(f"{n}", b"x"), purpose="batch").id for n in range(5)]
    official.files.create(file=("other", b"x"), purpose="user_data")
    page = official.files.list(limit=2, order="asc", purpose="batch")
    assert ([file.id for file in page.data], page.has_more) == (made[:2], True)
    assert [file.id for file in page] == made  # the client turns the pages
    assert [file.id for file in official.files.list(purpose="batch")] == made[::-1]
    assert len(official.files.list().data) == 6


@pytest.mark.parametrize(
    ("form", "status", "told"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, 400, "file"),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": ("a", b"x")}}, 400, "purpose"),
        ({"data": {}, "files": {"file": ("a", b"x")}}, 400, "purpose"),
        ({"data": {"purpose": "batch", "foo": "1"}, "files": {"file": ("a", b"x")}}, 400, "foo"),
        ({"data": {"purpose": "batch", "expires_after[seconds]": "1"}, "files": {"file": ("a", b"x")}}, 400, "3600"),
        ({"data": {"purpose": "b" * 9000}, "files": {"file": ("a", b"x")}}, 400, "form"),
        ({"json": {"purpose": "batch"}}, 415, "multipart"),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"--x\r\n\0\r\n", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, "form"),
    ],
)
def test_a_wrong_upload_is_refused(server: RunningServer, form: dict[str, Any], status: int, told: str) -> None:
    answer = HTTP.post(server.url + "/v1/files", **form)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_sizes_are_bounded(root: Path) -> None:
    with run_server(config=config_of(file_store=str(root), max_file_size="64KiB", file_store_size="100KiB")) as server:
        official = client_of(server)
        large = b"x" * (200 << 10)
        assert "65536" in refused(lambda: official.files.create(file=("a", large), purpose="batch"), 413)
        opening = b'--y\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        chunks = iter([opening, *[b"x" * 1000] * 300])
        kind = {"content-type": "multipart/form-data; boundary=y"}
        assert HTTP.post(server.url + "/v1/files", content=chunks, headers=kind).status_code == 413
        kept = official.files.create(file=("a", large[: 60 << 10]), purpose="batch").id
        assert "room" in refused(lambda: official.files.create(file=("b", large[: 60 << 10]), purpose="batch"), 413)
        official.files.delete(kept)
        official.files.create(file=("b", large[: 60 << 10]), purpose="batch")
        assert [path.suffix for path in root.glob("file-*")] == [""]


def test_nothing_is_kept_where_that_is_switched_off() -> None:
    with run_server(config=config_of()) as server:
        official = client_of(server)
        assert "--file-store" in refused(lambda: upload(official, ["x"]), 400)
        assert "--file-store" in refused(lambda: official.batches.list(), 400)


def test_keys_see_their_own(root: Path) -> None:
    with run_server(config=config_of(file_store=str(root), api_key=("k1", "k2"))) as server:
        mine, other = client_of(server, "k1"), client_of(server, "k2")
        batch = wait(mine, start(mine, [line(1)]).id)
        for number in (batch.input_file_id, batch.output_file_id):
            refused(lambda number=number: other.files.content(number), 404)
        refused(lambda: other.batches.retrieve(batch.id), 404)
        refused(lambda: other.batches.cancel(batch.id), 404)
        given: Any = {"input_file_id": batch.input_file_id, "endpoint": TEXT, "completion_window": "24h"}
        refused(lambda: other.batches.create(**given), 404)
        assert (other.files.list().data, other.batches.list().data) == ([], [])
        assert len(mine.files.list().data) == 2


def test_what_is_too_old_goes(root: Path) -> None:
    now = [1e9]
    store = FileStore(root, 1 << 20, lambda: now[0])
    with (root.parent / "source").open("wb+") as source:
        made = store.add_file("t", "a", "batch", source, 3600)
        read_by_a_batch = store.add_file("t", "b", "batch", source, 3600)
        store.put_batch(StoredBatch("batch_1", "t", now[0], True, read_by_a_batch.id, b"{}"), "m")
        now[0] += 3601
        assert store.files("t", None, Page(9)) == []
        store.add_file("t", "c", "batch", source, 3600)
    assert not store.path(made.id).exists()
    assert store.path(read_by_a_batch.id).exists()
    store.close()


def test_a_store_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file_store"):
        FileStore(tmp_path / "file", 1)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_answers_every_line_in_order(official: openai.OpenAI) -> None:
    lines = [line(n) for n in range(40)]
    lines[7] = line(7, temperature=-1)
    lines[9] = line(9, model="nope")
    lines[11] = line(11, stream=True)
    batch = start(official, "\r\n\n".join(lines).encode() + b"\n", metadata={"a": "b"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", TEXT)
    assert batch.expires_at == batch.created_at + 86_400
    done = wait(official, batch.id)
    assert (done.status, done.metadata) == ("completed", {"a": "b"})
    assert done.request_counts.model_dump() == {"total": 40, "completed": 37, "failed": 3}
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    output = read(official, done.output_file_id)
    assert [item["custom_id"] for item in output] == [f"c{n}" for n in range(40) if n not in (7, 9, 11)]
    for item in output:
        assert item["response"]["status_code"] == 200
        assert item["error"] is None
        assert item["response"]["body"]["choices"][0]["text"] == f"say {item['custom_id'][1:]}"[-3:]
    assert len({item["id"] for item in output} | {item["response"]["request_id"] for item in output}) == 74
    errors = read(official, done.error_file_id)
    assert [(item["custom_id"], item["response"]["status_code"]) for item in errors] == [
        ("c7", 400),
        ("c9", 404),
        ("c11", 400),
    ]
    assert "temperature" in errors[0]["response"]["body"]["error"]["message"]
    assert errors[2]["response"]["body"]["error"]["param"] == "stream"
    file = official.files.retrieve(done.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert official.batches.list().data == [done]
    assert official.batches.cancel(batch.id) == done  # it has ended


@pytest.mark.parametrize(
    ("url", "body", "read_text"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Hi!"}]}, lambda b: b["choices"][0]["message"]["content"]),
        ("/v1/responses", {"input": "Hi!"}, lambda b: b["output"][0]["content"][0]["text"]),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 9},
            lambda b: b["content"][0]["text"],
        ),
    ],
)
def test_every_endpoint_of_answers(official: openai.OpenAI, url: str, body: Any, read_text: Any) -> None:
    done = wait(official, start(official, [line(1, url, **body), line(2, url, foo=1)], url).id)
    (item,) = read(official, done.output_file_id)
    assert read_text(item["response"]["body"]) == "nt>"
    (error,) = read(official, done.error_file_id)
    assert error["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([line(1), line(2), line(1)], "duplicate_custom_id", 3),
        ([line(1), "{"], "invalid_json_line", 2),
        ([line(1), "[" * 3000], "invalid_json_line", 2),
        ([line(1, CHAT)], "mismatched_endpoint", 1),
        (['{"custom_id":"a","url":"/v1/completions","method":"GET","body":{}}'], "invalid_method", 1),
        (['{"custom_id":"","url":"/v1/completions","body":{}}'], "invalid_custom_id", 1),
        (['{"url":"/v1/completions","body":{}}'], "invalid_line", 1),
        (['{"custom_id":3,"url":"/v1/completions","body":{}}'], "invalid_line", 1),
        (['{"custom_id":"a","url":"/v1/completions","body":[]}'], "invalid_line", 1),
        (["", "  "], "empty_file", None),
        ([line(1, prompt="x" * (1 << 20))], "line_too_long", 1),
    ],
)
def test_a_wrong_input_fails_before_anything_runs(
    server: RunningServer, official: openai.OpenAI, lines: list[str], code: str, number: int | None
) -> None:
    done = wait(official, start(official, lines).id)
    assert done.status == "failed"
    assert done.failed_at
    assert [(error.code, error.line) for error in done.errors.data] == [(code, number)]
    assert done.output_file_id is None
    assert isinstance(server.client, ScriptedClient)
    assert server.client.steps == 0


def test_a_byte_order_mark_before_the_first_line_is_none_of_it(official: openai.OpenAI) -> None:
    done = wait(official, start(official, ["\ufeff" + line(1), line(2)]).id)
    assert [item["custom_id"] for item in read(official, done.output_file_id)] == ["c1", "c2"]


def test_too_many_lines_fail(official: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.serving.batches.lines.LineChecker.__init__.__defaults__", (3,))
    done = wait(official, start(official, [line(n) for n in range(4)]).id)
    assert done.errors.data[0].code == "too_many_lines"


def test_wrong_batches_are_refused(official: openai.OpenAI) -> None:
    good = upload(official, [line(1)])
    other = upload(official, [line(1)], "user_data")

    def make(number: str, endpoint: Any = TEXT, window: Any = "24h", **more: Any) -> Callable[[], object]:
        return lambda: official.batches.create(
            input_file_id=number, endpoint=endpoint, completion_window=window, **more
        )

    refused(make("file-0"), 404)
    refused(make("../../etc/passwd"), 404)
    assert "user_data" in refused(make(other), 400)
    assert CHAT in refused(make(good, "/v1/models"), 400)
    for endpoint in ("/v1/embeddings", "/score", "/pooling"):  # this model generates
        assert "one that this model serves: /v1/chat/completions" in refused(make(good, endpoint), 400)
    for window in ("24", "0h", "8d", "9999999999h", ""):
        assert "24h" in refused(make(good, TEXT, window), 400)
    refused(make(good, metadata={"a": "b" * 513}), 400)
    refused(make(good, output_expires_after={"anchor": "created_at", "seconds": 3600}), 400)
    for call in (official.batches.retrieve, official.batches.cancel):
        refused(lambda call=call: call("batch_0"), 404)
    assert official.batches.list().data == []


@pytest.mark.parametrize(
    ("kind", "width", "served"),
    [
        ("embed", 8, {"/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/pooling"}),
        ("classify", 3, {"/classify", "/pooling"}),
        ("classify", 1, {"/classify", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/pooling"}),
        ("token_classify", 3, {"/pooling"}),
        (None, 0, {"/v1/completions"}),
    ],
)
def test_batches_are_of_what_the_model_does(root: Path, kind: Any, width: int, served: set[str]) -> None:
    with run_server(config=config_of(file_store=str(root))) as server:
        official, inputs = client_of(server), server.state.inputs
        if kind is None:
            inputs.chat_template = None
        else:
            spec = PoolerSpec(kind, "mean", width)
            server.state.pooling = PoolingProcessor(inputs.tokenizer, inputs.limits, spec, "tiny")
        number = upload(official, ["x"])
        told = refused(
            lambda: official.batches.create(
                input_file_id=number, endpoint=cast("Any", "/v1/messages"), completion_window="24h"
            ),
            400,
        )
        assert set(told.partition("serves: ")[2].partition(";")[0].split(", ")) == served


def test_a_cancelled_batch_keeps_what_it_has(server: RunningServer, official: openai.OpenAI) -> None:
    script = server.client
    assert isinstance(script, ScriptedClient)
    script.script = lambda request, index: (endless if request.prompt_token_ids[-1] == ord("9") else echo)(
        request, index
    )
    script.hold_at = 50
    batch = start(official, [line(n, max_tokens=400) for n in (1, 2, 9, 3)])
    wait(official, batch.id, lambda found: found.request_counts.completed == 3)
    in_use = batch.input_file_id
    assert "cancel" in refused(lambda: official.files.delete(in_use), 400)
    assert official.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = wait(official, batch.id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("cancelled", 3, 1)
    assert done.cancelling_at <= done.cancelled_at
    assert [item["custom_id"] for item in read(official, done.output_file_id)] == ["c1", "c2", "c3"]
    (missing,) = read(official, done.error_file_id)
    assert (missing["custom_id"], missing["error"]["code"], missing["response"]) == ("c9", "batch_cancelled", None)
    assert script.cancelled
    official.files.delete(in_use)


def test_a_window_that_passes_ends_a_batch(server: RunningServer, official: openai.OpenAI) -> None:
    script = server.client
    assert isinstance(script, ScriptedClient)
    script.script, script.step_seconds = endless, 0.02
    done = wait(official, start(official, [line(1, max_tokens=1), line(2, max_tokens=400)], window="1s").id)
    assert (done.status, bool(done.expired_at)) == ("expired", True)
    assert [item["custom_id"] for item in read(official, done.output_file_id)] == ["c1"]
    assert [item["error"]["code"] for item in read(official, done.error_file_id)] == ["batch_expired"]


def test_lines_are_background_work_of_their_tenant(server: RunningServer, official: openai.OpenAI) -> None:
    seen: list[GenerationRequest] = []
    script = server.client
    assert isinstance(script, ScriptedClient)
    script.script = lambda request, index: (seen.append(request), echo(request, index))[1]
    wait(official, start(official, [line(1)]).id)
    official.completions.create(model="tiny", prompt="Hi")
    assert [request.lag for request in seen] == [86_400.0, 0.0]
    assert seen[0].tenant == seen[1].tenant != ""


def test_few_lines_run_beside_others() -> None:
    assert (room_beside(0, 64), room_beside(1, 64), room_beside(3, 4)) == (80, 8, 1)


def test_a_batch_makes_room_for_others(server: RunningServer, official: openai.OpenAI) -> None:
    script = server.client
    assert isinstance(script, ScriptedClient)
    script.step_seconds, most = 0.002, server.state.engine.info.max_num_seqs
    script.script, script.hold_at = endless, 5
    found: list[int] = []  # how many lines run when one begins beside the other stream,
    alone: list[int] = [0]  # and when one begins without it
    submit = script.submit

    def counted(request: GenerationRequest) -> None:
        submit(request)
        if any(stream.request.stopping.max_tokens == 500 for stream in script._live):
            found.append(len(script._live) - 1)
        else:
            alone.append(len(script._live))

    script.submit = counted  # type: ignore[method-assign]
    beside = HTTP.stream("POST", server.url + TEXT, json={"prompt": "x", "max_tokens": 500, "stream": True})
    with beside as stream:
        events = stream.iter_lines()
        next(events)
        batch = start(official, [line(n, max_tokens=20) for n in range(6 * most)])
        with until(lambda: len(found) > most // 8):  # itself, and all that there is room for
            pass
        script.hold_at = None
        for _ in range(300):
            next(events)
    with until(lambda: max(alone) > most):  # alone it takes what there is
        pass
    assert max(found) == most // 8
    assert len(found) > most // 4, "others take the places of those that have ended"
    official.batches.cancel(batch.id)


def test_the_server_is_blamed_for_its_own_faults(root: Path) -> None:
    client = ScriptedClient(echo, fail_at=1)
    with run_server(client, config_of(file_store=str(root))) as server:
        official = client_of(server)
        batch = start(official, [line(1)])
        with until(lambda: client.steps >= 4):  # it has been asked at least twice
            pass
        client.fail_at = None
        assert wait(official, batch.id).request_counts.completed == 1
