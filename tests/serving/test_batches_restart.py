"""Batches outlive their server: they go on after restarts and kills, and each line is done once."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest

from octavo.flow.request import GenerationRequest
from octavo.serving.files.store import FileStore, StoredBatch
from tests.serving.scripted import config_of, run_server
from tests.serving.scripted_engine import ScriptedClient, endless
from tests.serving.test_batches import client_of, echo, line, read, start, wait


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files"


def test_a_batch_goes_on_after_a_restart(root: Path) -> None:
    asked: list[str] = []

    def noting(request: GenerationRequest, index: int) -> Sequence[int]:
        asked.append(bytes(request.prompt_token_ids).decode())
        return echo(request, index) if int(asked[-1][4:]) < 3 else endless(request, index)

    config = config_of(file_store=str(root), batch_concurrency=2, shutdown_timeout=0.0)
    with run_server(ScriptedClient(noting, hold_at=20), config) as server:
        official = client_of(server)
        batch = start(official, [line(n, max_tokens=500) for n in range(6)])
        wait(official, batch.id, lambda found: found.request_counts.completed == 3)
    first = len(asked)
    asked.clear()

    def finishing(request: GenerationRequest, index: int) -> Sequence[int]:
        asked.append(bytes(request.prompt_token_ids).decode())
        return echo(request, index)

    with run_server(ScriptedClient(finishing), config) as server:
        official = client_of(server)
        done = wait(official, batch.id)
        assert done.request_counts.model_dump() == {"total": 6, "completed": 6, "failed": 0}
        assert [item["custom_id"] for item in read(official, done.output_file_id)] == [f"c{n}" for n in range(6)]
    assert first == 5
    assert sorted(asked) == ["say 3", "say 4", "say 5"]


def test_other_servers_batches_are_left_alone(root: Path) -> None:
    store = FileStore(root, 1 << 20)
    item = StoredBatch("batch_1", "t", 1.0, True, "file-0", b"{}")
    store.put_batch(item, "a")
    other = FileStore(root, 1 << 20)
    assert other.adopt("a") == []  # its server lives
    store.close()
    assert other.adopt("b") == []  # another model
    assert other.adopt("a") == [item]
    third = FileStore(root, 1 << 20)
    assert third.adopt("a") == []
    third.close()
    other.close()


PROCESS = """
import sys
from tests.serving.scripted import config_of, run_server
from tests.serving.scripted_engine import END, ScriptedClient
def echo(request, index):  # to so many lines; the others are never done
    number = int(bytes(request.prompt_token_ids).decode().split()[1])
    return [*request.prompt_token_ids[-3:], END] if number < int(sys.argv[2]) else [120] * 9
client = ScriptedClient(echo, step_seconds=0.003, hold_at=6)
server = run_server(client, config_of(file_store=sys.argv[1], batch_concurrency=3))
print(server.url, flush=True)
server.thread.join()
"""


def test_nothing_is_lost_or_done_twice_when_the_server_is_killed(root: Path) -> None:
    lines, number, before = [line(n) for n in range(60)], "", 0
    for round_number in range(3):
        most = before + 25 if round_number < 2 else 60
        command = [sys.executable, "-c", PROCESS, str(root), str(most)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            official = openai.OpenAI(base_url=process.stdout.readline().strip() + "/v1", api_key="none", max_retries=0)
            number = number or start(official, lines).id
            if round_number < 2:
                least = before + 10
                wait(official, number, lambda found, least=least: found.request_counts.completed >= least)
            else:
                done = wait(official, number)
                output = read(official, done.output_file_id)
        finally:  # whatever failed: no server stays behind
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        if round_number < 2:
            store = FileStore(root, 1 << 30)
            kept = dict(store.results(number, False))
            store.close()
            assert before + 10 <= len(kept) <= most < 60
            before = len(kept)
    assert done.status == "completed"
    assert [item["custom_id"] for item in output] == [f"c{n}" for n in range(60)]
    ids = {item["custom_id"]: item["id"] for item in output}
    for place, body in kept.items():
        assert ids[f"c{place}"] == json.loads(body)["id"]  # answered once, before the kill
