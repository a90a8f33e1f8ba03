"""API keys: who gets in, what a key file may say, its rotation, and the limits of a key's owner."""

import hashlib
import io
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from octavo.cli.main import main
from octavo.errors import ConfigError, OverloadedError
from octavo.flow.request import GenerationRequest
from octavo.serving import keys as keys_module
from octavo.serving.keys import KeyRing, Owner, add_entry, entry_for, new_key
from octavo.serving.quota import Quotas
from octavo.serving.record import RequestRecord
from octavo.serving.server import greeting
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, exchange, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}
OPEN = ("/health", "/ping", "/live", "/ready", "/version")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(config=config_of(api_key=("secret", "another"), root_path="/api")) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "secret"},
        {"authorization": "Basic secret"},
        *(bearer(key) for key in ("", "wrong", "secre", "secret2", "SECRET", "secret another", " secret", "sécret")),
        [("authorization", "Bearer secret"), ("authorization", "Bearer another")],
        [("authorization", "Bearer wrong"), ("x-api-key", "secret")],
        {"x-api-key": "wrong"},
    ],
)
def test_without_a_valid_key_nobody_gets_in(server: RunningServer, headers) -> None:
    raw = headers.items() if isinstance(headers, dict) else headers
    sent = [(name.encode(), value.encode()) for name, value in raw]
    head = b"".join(b"%b: %b\r\n" % pair for pair in sent)
    answer = exchange(server, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b'\r\n\r\n{"error":"Unauthorized"}')


@pytest.mark.parametrize("headers", [bearer("secret"), bearer("another"), {"x-api-key": "secret"}])
def test_any_of_the_keys_gets_in(server: RunningServer, headers: dict[str, str]) -> None:
    assert HTTP.post(server.url + CHAT, json=GOOD, headers=headers).status_code == 200


def test_every_path_but_the_probes_needs_a_key(server: RunningServer) -> None:
    for path in OPEN:
        assert HTTP.get(server.url + path).status_code == 200
    for path in ("/metrics", "/load", "/v1/models", "/nothing", "/v1/load_lora_adapter", "/health/"):
        assert HTTP.get(server.url + path).status_code == 401, path
    for path in ("/tokenize", "/detokenize", "/v1/completions", "/pause"):
        assert HTTP.post(server.url + path, json={}).status_code == 401, path
    assert HTTP.options(server.url + CHAT).status_code == 401


@pytest.mark.parametrize("target", ["/v1/models", "//v1/models", "/v1/%6dodels", "/V1/models", "/api/v1/models"])
@pytest.mark.parametrize("host", ["localhost", "localhost/health?", "a#", "/health"])
def test_neither_host_nor_spelling_gets_around_the_check(server: RunningServer, target: str, host: str) -> None:
    answer = exchange(server, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))
    assert b"permission" not in answer


def test_metrics_can_be_opened() -> None:
    with run_server(config=config_of(api_key=("secret",), metrics_need_key=False)) as server:
        assert HTTP.get(server.url + "/metrics").status_code == 200
        assert HTTP.get(server.url + "/v1/models").status_code == 401


def test_all_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    ring = KeyRing(("a", "b", "c"))
    for key in (b"a", b"c", b"nothing", b"", b"x" * 10_000, b"\xff"):
        compared.clear()
        assert (ring.owner_of(key) is not None) == (key in (b"a", b"c"))
        assert len(compared) == 3
        assert {len(digest) for pair in compared for digest in pair} == {32}


def add(file: Path, name: str, *more: str) -> str:
    """A new key by the command."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert main(["key", "add", str(file), "--name", name, *more]) == 0
    return out.getvalue().strip()


def test_the_command_keeps_the_hash_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    first, second = add(file, "team-a", "--requests-per-minute", "60", "--weight", "2.5"), add(file, "team-b")
    assert len(first) > 40
    assert first != second
    text = file.read_text()
    assert first not in text
    assert hashlib.sha256(first.encode()).hexdigest() in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing((), file)
    assert ring.owner_of(first.encode()) == Owner("team-a", 60, weight=2.5)
    assert ring.owner_of(second.encode()) == Owner("team-b")
    assert ring.owner_of(hashlib.sha256(first.encode()).hexdigest().encode()) is None
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]


def test_the_command_refuses_what_is_wrong(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.yaml"
    for words in (
        ["remove", str(file), "--name", "a"],
        ["add", str(file), "--name", "a b"],
        ["add", str(file), "--name", "a", "--weight", "-1"],
        ["add", str(file), "--name", "a", "--requests-per-minute", "0"],
        ["add", str(tmp_path / "none" / "keys.yaml"), "--name", "a"],
    ):
        assert main(["key", *words]) == 2, words
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert main(["key", "add", str(file), "--name", "a", "--stdin"]) == 2
    assert "20 characters" in capsys.readouterr().err
    assert not file.exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("k" * 32 + "\n"))
    assert main(["key", "add", str(file), "--name", "a", "--stdin"]) == 0
    assert "k" * 32 not in capsys.readouterr().out
    assert KeyRing((), file).owner_of(b"k" * 32) == Owner("a")


GOOD_HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "not a list"),
        ("- [", "not a list"),
        ("- name: a\n", "sha256"),
        (f'- name: a\n  sha256: "{"0" * 63}"\n', "sha256"),
        (f'- name: a\n  sha256: "{"G" * 64}"\n', "sha256"),
        (f'- name: a\n  sha256: "{GOOD_HASH}"\n  colour: red\n', "colour"),
        (f'- name: a\n  sha256: "{GOOD_HASH}"\n  requests_per_minute: -1\n', "requests_per_minute"),
        (f'- name: "a\\nb"\n  sha256: "{GOOD_HASH}"\n', "letters"),
        (f'- {{name: a, sha256: "{GOOD_HASH}"}}\n- {{name: b, sha256: "{GOOD_HASH}"}}\n', "same key"),
        (f'- {{name: a, sha256: "{GOOD_HASH}"}}\n- {{name: a, sha256: "{"1" * 64}", weight: 2}}\n', "share one set"),
    ],
)
def test_a_wrong_key_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        KeyRing((), file)


def test_a_missing_key_file_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="octavo key add"):
        KeyRing((), tmp_path / "keys.yaml")
    with pytest.raises(ConfigError, match="empty"):
        KeyRing(("",))


def test_an_empty_key_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("# none yet\n")
    ring = KeyRing((), tmp_path / "keys.yaml")
    assert ring.wanted
    assert ring.owner_of(b"") is None


def test_a_changed_file_is_taken_up_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    old = add(file, "team")
    ring = KeyRing((), file)
    assert not ring.refresh()
    new = add(file, "team")
    assert ring.refresh()
    assert ring.owner_of(old.encode()) == ring.owner_of(new.encode()) == Owner("team")
    file.write_text("- name: [")
    assert not ring.refresh()
    file.unlink()
    assert not ring.refresh()
    assert ring.owner_of(new.encode()) == Owner("team")
    add_entry(file, entry_for("team", new))
    assert ring.refresh()
    assert ring.owner_of(old.encode()) is None
    assert ring.owner_of(new.encode()) == Owner("team")


def test_a_running_server_takes_new_keys_and_drops_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    old = add(file, "team")
    with run_server(config=config_of(api_key_file=str(file))) as server:
        assert HTTP.get(server.url + "/v1/models", headers=bearer(old)).status_code == 200
        fresh = tmp_path / "fresh.yaml"
        new = add(fresh, "team")
        with until(lambda: HTTP.get(server.url + "/v1/models", headers=bearer(new)).status_code == 200):
            os.replace(fresh, file)
        assert HTTP.get(server.url + "/v1/models", headers=bearer(old)).status_code == 401


# Limits.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Used:
    def __init__(self, prompt: int, completion: int) -> None:
        self.prompt_tokens, self.completion_tokens, self.cached_tokens = prompt, completion, 0


def test_requests_a_minute() -> None:
    clock = Clock()
    quotas, owner = Quotas(clock), Owner("a", requests_per_minute=6)
    for _ in range(6):
        quotas.leave(owner, quotas.enter(owner, RequestRecord("r"), counted=True))
    with pytest.raises(OverloadedError, match="6 requests a minute") as refused:
        quotas.enter(owner, RequestRecord("r"), counted=True)
    assert refused.value.retry_after == pytest.approx(10.0)
    quotas.leave(owner, quotas.enter(owner, RequestRecord("r"), counted=False))
    quotas.leave(Owner("b", 6), quotas.enter(Owner("b", 6), RequestRecord("r"), counted=True))
    clock.now += 10.0
    quotas.leave(owner, quotas.enter(owner, RequestRecord("r"), counted=True))
    with pytest.raises(OverloadedError):
        quotas.enter(owner, RequestRecord("r"), counted=True)
    clock.now += 3600.0  # time away fills one minute's worth, no more
    for _ in range(6):
        quotas.leave(owner, quotas.enter(owner, RequestRecord("r"), counted=True))
    with pytest.raises(OverloadedError):
        quotas.enter(owner, RequestRecord("r"), counted=True)
    raised = Owner("a", requests_per_minute=60)  # by a new key file
    quotas.leave(raised, quotas.enter(raised, RequestRecord("r"), counted=True))


def test_requests_at_once() -> None:
    quotas, owner = Quotas(Clock()), Owner("a", concurrent_requests=2)
    first, _second = (quotas.enter(owner, RequestRecord("r"), counted=True) for _ in range(2))
    with pytest.raises(OverloadedError, match="at once"):
        quotas.enter(owner, RequestRecord("r"), counted=True)
    quotas.leave(owner, first)
    quotas.enter(owner, RequestRecord("r"), counted=True)


def test_tokens_a_minute_count_what_is_under_way() -> None:
    clock = Clock()
    quotas, owner = Quotas(clock), Owner("a", tokens_per_minute=600)
    record = RequestRecord("r")
    number = quotas.enter(owner, record, counted=True)
    record.usage = Used(100, 200)
    other = quotas.enter(owner, RequestRecord("r"), counted=True)
    record.usage = Used(100, 500)
    with pytest.raises(OverloadedError, match="600 tokens a minute"):
        quotas.enter(owner, RequestRecord("r"), counted=True)
    record.usage = Used(100, 560)  # it may end above the limit
    quotas.leave(owner, number)
    quotas.leave(owner, other)
    with pytest.raises(OverloadedError) as refused:
        quotas.enter(owner, RequestRecord("r"), counted=True)
    assert refused.value.retry_after == pytest.approx(6.1)
    clock.now += 6.2
    quotas.enter(owner, RequestRecord("r"), counted=True)


def test_owners_without_use_are_forgotten() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    for number in range(10_000):
        clock.now += 60.0
        owner = Owner(f"o{number}", requests_per_minute=1)
        quotas.leave(owner, quotas.enter(owner, RequestRecord("r"), counted=True))
    assert len(quotas._accounts) <= 4097
    assert not quotas._records


def test_limits_over_http(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    few, single, frugal = (
        add(file, "few", "--requests-per-minute", "2"),
        add(file, "single", "--concurrent-requests", "1"),
        add(file, "frugal", "--tokens-per-minute", "30"),
    )
    client = ScriptedClient(endless)
    with run_server(client, config_of(api_key_file=str(file))) as server:

        def ask(key: str, **more: object) -> httpx.Response:
            return HTTP.post(server.url + CHAT, json=GOOD | {"max_tokens": 2, **more}, headers=bearer(key))

        statuses = [ask(few).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = ask(few)
        assert refused.json()["error"]["type"] == "RateLimitError"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert ask(frugal, max_tokens=40).status_code == 200
        assert ask(frugal).status_code == 429

        client.hold_at = 20
        long = GOOD | {"max_tokens": 400, "stream": True}
        with HTTP.stream("POST", server.url + CHAT, json=long, headers=bearer(single)) as answer:
            lines = answer.iter_lines()  # kept: the answer ends with it
            next(lines)
            assert ask(single).status_code == 429
        with until(lambda: ask(single).status_code == 200):
            pass


def test_a_key_is_its_owners_tenant_with_its_weight(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    key = add(file, "team", "--weight", "2.5")
    seen: list[tuple[str, float]] = []

    def script(request: GenerationRequest, _index: int) -> list[int]:
        seen.append((request.tenant, request.tenant_weight))
        return [256]

    with run_server(ScriptedClient(script), config_of(api_key_file=str(file), api_key=("plain",))) as server:
        for given, user in ((key, None), (key, "other"), ("plain", "someone"), ("plain", "key:team")):
            body = GOOD | ({"user": user} if user else {})
            assert HTTP.post(server.url + CHAT, json=body, headers=bearer(given)).status_code == 200
    assert seen[:3] == [("key:team", 2.5), ("key:team", 2.5), ("someone", 0.0)]
    assert seen[3][0].startswith("user:")


def test_new_keys_differ() -> None:
    made = {new_key() for _ in range(64)}
    assert len(made) == 64
    assert all(len(key) >= 50 and key.isascii() for key in made)


def test_many_keys_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    given = [add(file, f"team-{i}", "--concurrent-requests", "1") for i in range(8)]
    with run_server(ScriptedClient(step_seconds=0.001), config_of(api_key_file=str(file))) as server:
        statuses: list[int] = []

        def ask(key: str) -> None:
            with closing(httpx.Client(trust_env=False, timeout=PATIENCE)) as client:
                answer = client.post(server.url + CHAT, content=json.dumps(GOOD), headers=bearer(key))
                statuses.append(answer.status_code)

        threads = [threading.Thread(target=ask, args=(key,)) for key in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert statuses == [200] * 8


def test_the_example_that_is_shown_at_the_start_has_a_place_for_the_key() -> None:
    for config, shown in ((config_of(api_key=("k1",)), True), (config_of(), False)):
        with run_server(config=config) as server:
            example = next(line for line in greeting(config, server.state, server.url, 1.0) if "curl" in line)
        assert ("-H 'Authorization: Bearer KEY'" in example) is shown
        assert "k1" not in example
