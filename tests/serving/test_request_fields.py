"""No field that vLLM takes is passed over in silence: the engine or the answer sees it, a warning or a 400 names it."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from octavo.flow.request import GenerationRequest
from octavo.outputs.answer.choose import choose_formats
from octavo.serving.responses.kept import Responses
from octavo.text.chat_template import ChatTemplate
from tests.serving.request_fields import GENERATING, Field
from tests.serving.scripted import HTTP, TEMPLATE, RunningServer, config_of, run_server
from tests.serving.scripted_engine import ScriptedClient, say

PAGE = Path(__file__).parents[2] / "docs" / "request-fields.md"
CASES = [(route, name) for route, (_, fields) in GENERATING.items() for name in fields]

# What neither a single answer nor the scripted engine shows.
ELSEWHERE = {
    **dict.fromkeys(
        [(route, "add_special_tokens") for route in GENERATING], "the tokenizer of this test has no special tokens"
    ),
    ("/v1/responses", "truncation"): "it cuts conversations that do not fit",
    ("/v1/messages/count_tokens", "tool_choice"): "it changes no prompt",
    ("/generate", "request_id"): "it is in the access log",
}
# Names under which another API's field is told.
TOLD_AS = {
    ("/v1/responses", "reasoning"): "reasoning_effort",
    ("/v1/messages", "cache_control"): "--cache-pin-budget",
    ("/v1/messages", "thinking"): "thinking_token_budget",
}
_RANDOM = re.compile(r"[a-z]+[_-](?:tool-)?[0-9a-f]{20,}")
_TIMES = ("created", "created_at", "completed_at")


class Recording(ScriptedClient):
    """Keeps what it was asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> None:
        self.seen.append(request)
        super().submit(request)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(Recording()) as running:
        running.state.responses = Responses("memory", 1 << 20)
        yield running


def able() -> RunningServer:
    """A server whose model has tools, reasoning and what else a template may have."""
    template = (
        TEMPLATE + "{% if tools %}T{% endif %}{{ documents }}{{ reasoning_effort }}{{ loud }}{{ enable_thinking }}"
    )
    running = run_server(Recording(say("<think>Well</think>Hello, world!")))
    running.state.inputs.chat_template = ChatTemplate(template)
    running.state.formats = choose_formats(f"{template} <tool_call> </think>")
    running.state.policy = "priority"
    running.state.responses = Responses("memory", 1 << 20)
    return running


@pytest.fixture(scope="module")
def whole() -> Iterator[RunningServer]:
    with able() as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    with run_server(config=config_of(strict_requests=True)) as running:
        running.state.responses = Responses("memory", 1 << 20)
        yield running


def told_of(route: str, name: str, texts: list[str]) -> bool:
    """One of these is about the field."""
    names = (name, TOLD_AS.get((route, name), name))
    return any(re.search(rf"(?<![a-z_]){one}(?![a-z_])", text) for text in texts for one in names)


def parts(text: str) -> list[Mapping[str, Any]]:
    """A whole answer, or the events of a stream."""
    if text.startswith("{") and "\n{" not in text:
        return [json.loads(text)]
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if "{" in line]


def warnings_in(text: str) -> list[str]:
    found = [part.get("message", part) for part in parts(text)]
    found = [part.get("response", part) if isinstance(part, Mapping) else {} for part in found]
    return [warning for part in found for warning in part.get("warnings", ())]


def plain(value: Any) -> Any:
    """An answer without what differs between any two."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in (*_TIMES, "warnings")}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return _RANDOM.sub("ID", value) if isinstance(value, str) else value


def asked(server: RunningServer, route: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """The answer, and what of it and of the engine's requests can be compared."""
    client = server.client
    assert isinstance(client, Recording)
    client.seen.clear()
    answer = HTTP.post(server.url + route, json=body)
    seen = []
    for request in client.seen:
        seen.append(asdict(replace(request, id="", arrival=0.0)))
    told = [plain(part) for part in parts(answer.text)] if answer.status_code == 200 else []
    return answer, (told, seen, answer.headers["content-type"])


def outcome(server: RunningServer, route: str, name: str) -> tuple[str, str]:
    """What becomes of a field, and what was said."""
    base, fields = GENERATING[route]
    body = {key: value for key, value in {**base, **fields[name].beside}.items() if value is not None}
    without, usual = asked(server, route, body)
    answer, changed = asked(server, route, {**body, name: fields[name].value})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        said = answer.json()["error"]["message"]
        assert told_of(route, name, [said, str(answer.json()["error"].get("param"))]), said
        return "refused", said
    warnings = warnings_in(answer.text)
    if told_of(route, name, warnings):
        return "told", warnings[0]
    assert without.status_code in (200, 400)
    if changed != usual or (route, name) in ELSEWHERE:
        return "used", ""
    return "ignored", ""


@pytest.mark.parametrize(("route", "name"), CASES)
def test_no_field_is_passed_over(server: RunningServer, strict: RunningServer, route: str, name: str) -> None:
    became, said = outcome(server, route, name)
    assert became != "ignored"
    base, fields = GENERATING[route]
    body = {key: value for key, value in {**base, **fields[name].beside}.items() if value is not None}
    plainly = HTTP.post(strict.url + route, json=body)
    answer = HTTP.post(strict.url + route, json={**body, name: fields[name].value})
    if plainly.status_code == 200:  # else what it goes with is told already
        assert answer.status_code == (200 if became == "used" else 400), (became, said, answer.text)
    if became == "told" and plainly.status_code == 200:
        assert told_of(route, name, [answer.json()["error"]["message"]]), answer.text


def test_a_field_that_is_passed_over_would_be_found(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATING["/v1/completions"][1], "max_tokens", Field(16))  # what there is anyway
    assert outcome(server, "/v1/completions", "max_tokens") == ("ignored", "")


INTRODUCTION = """# Fields of requests

Every field that vLLM 0.11 to 0.33 takes, and what Octavo does with it. *Told*: it has no effect, or is an old name;
`warnings` of the answer says which, and with `--strict-requests` it is a 400. *Refused*: a 400 that names it. Fields
that no API has are told. A test sends each, looks at what the engine and the client get, and compares this page, which
it writes: `python -m tests.serving.test_request_fields`.

The model has tools and reasoning here; without, the fields about them are told or refused. `thinking_token_budget` is
used where a model ends its reasoning with one token, `cache_control` where there is a `--cache-pin-budget`, `priority`
with `--scheduling-policy priority`, `previous_response_id` where there is such a response. Pooled routes have
`docs/pooling.md`.

| route | used | told | refused |
|---|---|---|---|
"""


def page(server: RunningServer) -> str:
    """The documentation of all of it."""
    lines: list[str] = []
    for route, (_, fields) in GENERATING.items():
        found: dict[str, list[str]] = {"used": [], "told": [], "refused": [], "ignored": []}
        for name in fields:
            found[outcome(server, route, name)[0]].append(f"`{name}`")
        assert not found["ignored"], (route, found["ignored"])
        cells = [", ".join(sorted(found[kind])) or "-" for kind in ("used", "told", "refused")]
        lines.append(f"| `{route}` | {' | '.join(cells)} |\n")
    return INTRODUCTION + "".join(lines)


def test_the_page_says_what_happens(whole: RunningServer) -> None:
    assert PAGE.read_text() == page(whole)


if __name__ == "__main__":
    with able() as running:
        PAGE.write_text(page(running))
