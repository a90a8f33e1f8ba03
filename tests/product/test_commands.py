"""The commands on the demo model, as processes: what they print, and how they end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("--max-model-len", "512", "--max-num-seqs", "4", "--temperature", "0")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, "OCTAVO_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def octavo(environment: dict[str, str], *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "octavo", *words]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=240, check=False, env=environment
    )


def test_generate(environment: dict[str, str]) -> None:
    done = octavo(environment, "generate", *SMALL, "--max-tokens", "6", "--stats", stdin="The capital of France is\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris.")
    assert "5 prompt tokens, 6 generated" in done.stderr
    asked = octavo(environment, "generate", *SMALL, "--chat", "--prompt", "What is the capital of France?")
    assert "Paris" in asked.stdout


def test_chat_remembers_until_reset(environment: dict[str, str]) -> None:
    lines = "Who are you?\nWho are you?\n/help\n\n/reset\nWho are you?\n/exit\nnever read\n"
    done = octavo(environment, "chat", *SMALL, "--max-tokens", "12", stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, helped, reset, again = done.stdout.splitlines()
    assert first != second
    assert "/system TEXT" in helped
    assert reset == "(new conversation)"
    assert again == first


def test_inspect_tells_values_and_reasons(environment: dict[str, str]) -> None:
    done = octavo(environment, "inspect", "--max-model-len", "512")
    assert done.returncode == 0, done.stderr
    for title in ("model", "layers", "configuration", "memory", "cache groups", "kernels", "start-up"):
        assert f"\n{title}\n" in f"\n{done.stdout}"
    assert "family                     llama" in done.stdout
    assert "max_model_len              512                          asked for" in done.stdout
    assert "30 layers keep every token: 0-29\n" in done.stdout
    assert "0-29                       attention 9 heads of 64, 3 kv" in done.stdout


def test_inspect_prints_the_program(environment: dict[str, str]) -> None:
    done = octavo(environment, "inspect", "--program", "--max-model-len", "512")
    assert done.returncode == 0, done.stderr
    for opcode in ("EMBED", "QKV_ROPE_CACHE", "PAGED_ATTENTION", "LINEAR", "SELECT_ROWS", "SAMPLE"):
        assert f" {opcode} " in done.stdout
    assert "weights read by a step" in done.stdout


def test_bench_measures(environment: dict[str, str]) -> None:
    load = ("--requests", "3", "--prompt-tokens", "8", "--output-tokens", "3", "--json")
    done = octavo(environment, "bench", "--max-model-len", "64", "--max-num-seqs", "4", *load)
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert [line["what"] for line in lines] == ["one request", "prompt of 63", "all at once"]
    assert lines[2]["requests"] == 3
    assert all(line["output_rate"] > 0 for line in lines)


def _as_in_a_terminal() -> None:
    """Shells start what runs in the background with interrupts ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_ends_quietly(environment: dict[str, str]) -> None:
    options = ["--max-model-len", "2048", "--max-num-seqs", "1", "--max-tokens", "2000", "--temperature", "0"]
    command = [sys.executable, "-m", "octavo", "generate", *options, "-p", "Once upon a time"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=_as_in_a_terminal,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # it has begun
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"


def test_the_demo(environment: dict[str, str]) -> None:
    demo = Path(__file__).parents[2] / "scripts" / "demo.py"
    done = subprocess.run(
        [sys.executable, str(demo)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    for text in ("ctopus", "first token", "per token", "memory", "http://127.0.0.1:", "try next", "ends now"):
        assert text in done.stdout
    assert done.stderr == ""
