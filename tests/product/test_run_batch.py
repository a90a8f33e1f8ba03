"""`octavo run-batch`: answers in order, wrong inputs told line by line, and nothing done twice after a kill."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.errors import InvalidRequestError
from octavo.serving.batches.offline import BatchFile, Journal, journal_of

OPTIONS = ("run-batch", "--log-level", "error", "--max-num-seqs", "2")
COMMAND = (sys.executable, "-m", "octavo", *OPTIONS)
# The same command, killed when it has kept its fourth result.
DYING = """
import os, signal, sys
from octavo.cli.main import main
from octavo.serving.batches.offline import Journal
add = Journal.add
def dying(journal, *result):
    add(journal, *result)
    if len(journal.kept) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
Journal.add = dying
main(sys.argv[1:])
"""


def line(number: int, **body: Any) -> str:
    body = {"prompt": f"{number}", "max_tokens": 8, "temperature": 0, **body}
    return json.dumps({"custom_id": f"r{number}", "url": "/v1/completions", "body": body})


def test_a_run_that_was_killed_goes_on(demo_model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(line(n, max_tokens=n if n else -2) for n in range(16)))
    command = [*COMMAND, "-i", str(source), "-o", str(out), str(demo_model)]
    dying = [sys.executable, "-c", DYING, *OPTIONS, *command[len(COMMAND) :]]
    assert subprocess.run(dying, stderr=subprocess.DEVNULL, start_new_session=True).returncode == -signal.SIGKILL
    before = [json.loads(text)["result"] for text in journal_of(out).read_bytes().split(b"\n")[:-1]]
    assert len(before) == 4
    assert not out.exists()
    with journal_of(out).open("ab") as journal:
        journal.write(b'{"digest":"torn')
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"16 requests answered, {len(before)} of them by an earlier run; 1 failed" in done.stderr
    results = [json.loads(text) for text in out.read_text().splitlines()]
    assert [item["custom_id"] for item in results] == [f"r{n}" for n in range(16)]
    assert [item["response"]["status_code"] for item in results] == [400, *[200] * 15]
    ids = {item["custom_id"]: item["id"] for item in results}
    assert all(ids[item["custom_id"]] == item["id"] for item in before)
    assert not journal_of(out).exists()
    piped = subprocess.run(
        [*COMMAND, "-i", "-", "-o", "-", str(demo_model)], input=source.read_text(), capture_output=True, text=True
    )
    assert [told(json.loads(text)) for text in piped.stdout.splitlines()] == list(map(told, results))


def told(result: dict[str, Any]) -> tuple[str, int, Any]:
    """What does not change from run to run."""
    body = result["response"]["body"]
    return result["custom_id"], result["response"]["status_code"], body.get("choices", body)


def test_what_is_wrong_is_told_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([line(1), line(1), "{", json.dumps({"custom_id": "x", "url": "/x", "body": {}})]))
    assert main(["run-batch", "-i", str(source), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert [word for word in ("line 1", "line 2:", "line 3:", "line 4:", "/x", "custom_id") if word not in error] == []
    assert main(["run-batch", "-i", str(tmp_path / "none"), "-o", "-"]) == 2
    assert main(["run-batch", "-i", "https://example.com/a", "-o", "-"]) == 2
    assert not (tmp_path / "out").exists()


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n\n")
    with empty.open("rb") as file, pytest.raises(InvalidRequestError, match="no lines"):
        BatchFile(file)


def test_another_file_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    path.write_text("my notes\n")
    with pytest.raises(InvalidRequestError, match="no journal"):
        Journal(path)
    assert path.read_text() == "my notes\n"
