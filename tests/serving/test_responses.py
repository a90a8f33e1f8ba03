"""OpenAI's Responses API by its official client: whole, streamed, in the background, stored, over a restart."""

import asyncio
import hashlib
import json
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from octavo.errors import ConfigError
from octavo.flow.request import GenerationRequest
from octavo.outputs.answer.choose import AnswerFormats, choose_formats
from octavo.serving.responses.kept import Responses, UnknownResponseError
from octavo.serving.responses.store import ResponseStore, StoredResponse
from tests.serving.scripted import HTTP, RunningServer, config_of, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless, say

FORMATS = choose_formats("{{ tools }} <tool_call> </think>")
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "add",
        "strict": False,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    }
]
ALL = (
    "<think>Two.</think>\n\nSure.<tool_call>"
    '{"name":"add","arguments":{"a":2}}</tool_call><tool_call>{"name":"add","arguments":{"a":3}}</tool_call>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


@pytest.fixture
def script(server: RunningServer) -> Iterator[ScriptedClient]:
    client = server.client
    assert isinstance(client, ScriptedClient)
    server.state.formats = FORMATS
    yield client
    client.tokens_per_step, client.fail_at, client.step_seconds, client.hold_at = 1, None, 0.0, None
    client.script = say("Hello, world!")
    server.state.formats = AnswerFormats()


@pytest.fixture(scope="module")
def official(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: RunningServer, **body: object) -> Any:
    return HTTP.post(server.url + "/v1/responses", json={"input": "Hi", **body})


def told(response: Any) -> dict[str, Any]:
    """What a response says, without ids and times, which are new each time."""
    found: dict[str, Any] = json.loads(response.model_dump_json(warnings=False))
    for name in ("id", "created_at", "completed_at"):
        found.pop(name)
    for item in found["output"]:
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return found


def ask(official: openai.OpenAI, **more: Any) -> Any:
    """The whole response; that the stream adds up to the same is checked, and that its numbers are complete."""
    options: dict[str, Any] = {"model": "tiny", "input": "Hi", **more}
    whole = official.responses.create(**options)
    events = list(official.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    assert told(events[-1].response) == told(whole)
    for kind, name in (("output_text", "text"), ("reasoning_text", "text"), ("function_call_arguments", "arguments")):
        for done in (event for event in events if event.type == f"response.{kind}.done"):
            pieces = [e.delta for e in events if e.type == f"response.{kind}.delta" and e.item_id == done.item_id]
            assert "".join(pieces) == getattr(done, name)
    return whole


def test_a_text(official: openai.OpenAI) -> None:
    response = ask(official)
    assert response.id.startswith("resp_")
    assert (response.status, response.output_text, response.model) == ("completed", "Hello, world!", "tiny")
    assert response.usage.input_tokens == len("<user>Hi<assistant>")
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.output_tokens == 14
    cut = ask(official, max_output_tokens=5)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "Hello")
    assert cut.output[0].status == "incomplete"


@pytest.mark.parametrize("step", [1, 3, 400])
def test_reasoning_text_and_calls(official: openai.OpenAI, script: ScriptedClient, step: int) -> None:
    script.script, script.tokens_per_step = say(ALL), step
    response = ask(official, tools=TOOLS)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[0].content[0].text == "Two."
    assert response.output_text == "Sure."
    assert [(call.name, call.arguments) for call in response.output[2:]] == [("add", '{"a":2}'), ("add", '{"a":3}')]
    assert response.usage.output_tokens_details.reasoning_tokens == 4
    assert len(ask(official, tools=TOOLS, parallel_tool_calls=False).output) == 3
    with official.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Sure."


def test_parsed_output(official: openai.OpenAI, script: ScriptedClient) -> None:
    class Sum(BaseModel):
        a: int

    script.script = say('{"a":1}')
    assert official.responses.parse(model="tiny", input="Hi", text_format=Sum).output_parsed == Sum(a=1)


def test_a_conversation_goes_on(server: RunningServer, official: openai.OpenAI, script: ScriptedClient) -> None:
    seen: list[str] = []

    def note(request: GenerationRequest, _index: int) -> list[int]:
        seen.append(bytes(request.prompt_token_ids).decode())
        return [*b"yes", 256]

    script.script = note
    first = official.responses.create(model="tiny", input="A", instructions="be brief")
    second = official.responses.create(model="tiny", input="B", previous_response_id=first.id)
    items: list[Any] = [
        {"role": "developer", "content": "be"},
        {"role": "system", "content": [{"type": "input_text", "text": "kind"}]},
        {"role": "user", "content": "C"},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ]
    official.responses.create(model="tiny", input=items)
    assert seen == [
        "<system>be brief<user>A<assistant>",
        "<user>A<assistant>yes<user>B<assistant>",
        "<system>be\n\nkind<user>C<assistant><tool>4<assistant>",
    ]
    listed = official.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.role for item in listed.data] == ["user", "assistant"]  # type: ignore[union-attr]
    assert len(list(official.responses.input_items.list(second.id, order="asc", limit=2))) == 3
    assert official.responses.retrieve(first.id).output_text == "yes"
    official.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        official.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        official.responses.create(model="tiny", input="C", previous_response_id=second.id)


def test_what_is_not_to_be_stored_is_not(server: RunningServer, official: openai.OpenAI) -> None:
    response = official.responses.create(model="tiny", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        official.responses.retrieve(response.id)
    assert post(server, store=False, background=True).status_code == 400


def test_nobody_reads_another_ones(server: RunningServer, official: openai.OpenAI) -> None:
    mine = official.responses.create(model="tiny", input="Hi")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="other", max_retries=0) as other:
        for call in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(mine.id)
        with pytest.raises(openai.BadRequestError):
            other.responses.create(model="tiny", input="Hi", previous_response_id=mine.id)
    assert official.responses.retrieve(mine.id).status == "completed"


def test_in_the_background(server: RunningServer, official: openai.OpenAI) -> None:
    begun = official.responses.create(model="tiny", input="Hi", background=True)
    assert begun.status == "queued"
    with until(lambda: not server.state.responses.running):
        pass
    assert official.responses.retrieve(begun.id).output_text == "Hello, world!"
    assert official.responses.cancel(begun.id).status == "completed"
    with until(lambda: not server.state.admission.under_way):
        pass


def test_cancelled(server: RunningServer, official: openai.OpenAI, script: ScriptedClient) -> None:
    script.script, script.hold_at = endless, 50
    begun = official.responses.create(model="tiny", input="Hi", background=True)
    assert official.responses.cancel(begun.id).status == "cancelled"
    assert official.responses.retrieve(begun.id).status == "cancelled"
    with until(lambda: not server.state.engine.live):
        pass


def test_a_stream_is_resumed(server: RunningServer, official: openai.OpenAI, script: ScriptedClient) -> None:
    script.step_seconds = 0.005
    stream = official.responses.create(model="tiny", input="Hi", background=True, stream=True)
    seen = [next(stream) for _ in range(5)]
    stream.close()
    number = seen[0].response.id  # type: ignore[union-attr]
    rest = list(official.responses.retrieve(number, stream=True, starting_after=seen[-1].sequence_number))
    numbers = [event.sequence_number for event in [*seen, *rest]]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    with until(lambda: not server.state.responses.running):
        pass
    again = list(official.responses.retrieve(number, stream=True, starting_after=seen[-1].sequence_number))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in rest]
    plain = official.responses.create(model="tiny", input="Hi")
    assert HTTP.get(f"{server.url}/v1/responses/{plain.id}?stream=true").status_code in (400, 404)


def test_truncation(official: openai.OpenAI, script: ScriptedClient) -> None:
    seen: list[str] = []

    def note(request: GenerationRequest, _index: int) -> list[int]:
        seen.append(bytes(request.prompt_token_ids).decode())
        return [256]

    script.script = note
    turns: list[Any] = [{"role": "user", "content": f"{number}" * 90} for number in range(8)]
    with pytest.raises(openai.BadRequestError, match="512 tokens"):
        official.responses.create(model="tiny", input=turns)
    short = official.responses.create(
        model="tiny", input=turns, instructions="brief", truncation="auto", max_output_tokens=90
    )
    assert seen == ["<system>brief" + "".join(f"<user>{str(n) * 90}" for n in (4, 5, 6, 7)) + "<assistant>"]
    assert short.model_extra is not None
    assert short.model_extra["warnings"] == ["truncation: the oldest 4 messages were left out"]


def test_failures(server: RunningServer, script: ScriptedClient) -> None:
    script.fail_at = 3
    assert post(server).status_code == 500
    last = post(server, stream=True).text.rstrip().split("\n\n")[-1]
    assert last.startswith("event: response.failed\n")
    failed = json.loads(last.partition("data: ")[2])["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    begun = post(server, background=True).json()
    with until(lambda: not server.state.responses.running):
        pass
    assert HTTP.get(f"{server.url}/v1/responses/{begun['id']}").json()["status"] == "failed"
    script.fail_at = 0
    assert post(server, stream=True).status_code == 500


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "arguments"),
        ({"input": [{"role": "robot", "content": "x"}]}, "role"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tool_choice": "required"}, "no tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"text": {"format": {"type": "json_schema"}}}, "schema"),
    ],
)
def test_refusals(server: RunningServer, change: dict[str, Any], said: str) -> None:
    answer = post(server, **change)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_what_has_no_effect_is_told(server: RunningServer) -> None:
    warnings = " ".join(post(server, service_tier="flex", reasoning={"summary": "auto"}, surprise=1).json()["warnings"])
    for name in ("service_tier", "reasoning.summary", "surprise"):
        assert name in warnings


def test_a_server_that_stops_says_what_became_of_it(tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite3"
    client = ScriptedClient(script=endless, step_seconds=0.01)
    with run_server(client, config_of(shutdown_timeout=0.1)) as server:
        server.state.responses = Responses(str(file), 1 << 20, 1e6)
        number = post(server, background=True).json()["id"]
    later = Responses(str(file), 1 << 20, 1e6)
    found = json.loads(asyncio.run(later.get(number, "")).response)
    assert found["status"] in ("failed", "incomplete")
    assert found["status"] == "incomplete" or found["error"]["message"]
    asyncio.run(later.close())


def test_a_server_that_stops_finishes_what_is_in_the_background(tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite3"
    with run_server(ScriptedClient(step_seconds=0.02), config_of(shutdown_timeout=10.0)) as server:
        server.state.responses = Responses(str(file), 1 << 20, 1e6)
        number = post(server, background=True).json()["id"]
    later = Responses(str(file), 1 << 20, 1e6)
    assert json.loads(asyncio.run(later.get(number, "")).response)["status"] == "completed"
    asyncio.run(later.close())


def test_limits_of_a_key_count_what_is_in_the_background(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    key = "k" * 40
    keys.write_text(
        f"- name: ann\n  sha256: {hashlib.sha256(key.encode()).hexdigest()}\n  concurrent_requests: 1\n", "utf-8"
    )
    head = {"Authorization": f"Bearer {key}"}
    client = ScriptedClient(script=endless, hold_at=50)
    with run_server(client, config_of(api_key_file=str(keys), shutdown_timeout=0.1)) as server:
        body = {"input": "Hi", "background": True}
        assert HTTP.post(server.url + "/v1/responses", json=body, headers=head).status_code == 200
        refused = HTTP.post(server.url + "/v1/responses", json=body, headers=head)
        assert (refused.status_code, "at once" in refused.text) == (429, True)


def item(number: str, created: float = 0.0, live: bool = False, size: int = 100) -> StoredResponse:
    return StoredResponse(number, "ann", created, None, live, b"[]", json.dumps({"x": "y" * size}).encode())


def test_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "kept.sqlite3"
    first = ResponseStore(file, 1 << 20, 1e9, lambda _: b"lost", clock=lambda: 10.0)
    first.put(item("done"))
    first.put(item("running", live=True))
    assert {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {0o600}
    beside = ResponseStore(file, 1 << 20, 1e9, lambda _: b"lost", clock=lambda: 10.0)
    found = beside.get("running", "ann")
    assert found is not None
    assert found.live, "its server lives"
    first.close()  # as its end would release the lock
    later = ResponseStore(file, 1 << 20, 1e9, lambda _: b"lost", clock=lambda: 10.0)
    assert later.get("done", "ann") == item("done")
    found = later.get("running", "ann")
    assert found is not None
    assert (found.live, found.response) == (False, b"lost")
    assert later.get("done", "bob") is None
    for store in (beside, later):
        store.close()
    assert [path.name for path in file.parent.iterdir()] == ["kept.sqlite3"]


def test_the_store_is_bounded(tmp_path: Path) -> None:
    now = [100.0]
    store = ResponseStore(tmp_path / "kept", 1000, 50.0, lambda _: b"", clock=lambda: now[0])
    for number in range(30):
        store.put(item(f"r{number:02}", 100.0 + number))
    kept = [number for number in range(30) if store.get(f"r{number:02}", "ann") is not None]
    assert kept == list(range(30 - len(kept), 30))
    assert 5 <= len(kept) <= 10
    now[0] = 175.0
    assert store.get("r22", "ann") is None
    store.put(item("new", 175.0))
    rows = sqlite3.connect(tmp_path / "kept").execute("SELECT COUNT(*) FROM responses WHERE created < 125").fetchone()
    assert rows == (0,)
    store.close()


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_bytes(b"this is no database" * 99)
    with pytest.raises(ConfigError, match="response_store"):
        Responses(str(file)).open()
    kept = Responses(str(file), or_memory=True)
    assert asyncio.run(kept.put(item("one", 4e9)))
    assert json.loads(asyncio.run(kept.get("one", "ann")).response)
    asyncio.run(kept.close())


def test_a_server_may_keep_nothing() -> None:
    kept = Responses("none")
    with pytest.raises(UnknownResponseError):
        asyncio.run(kept.get("x", ""))
    with run_server() as server:
        server.state.responses = kept
        assert "background" in post(server, background=True).json()["error"]["message"]
        answer = post(server, store=True).json()
        assert answer["store"] is False
        assert any("store has no effect" in text for text in answer["warnings"])
