"""The command as users meet it: quick help, one-line errors, exit codes, no tracebacks."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.cli.main import COMMANDS, guarded, main
from octavo.errors import CheckpointError, ConfigError, InternalError, OverloadedError, UnsupportedError


def octavo(*words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "octavo", *words], input=stdin, capture_output=True, text=True, timeout=240, check=False
    )


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"octavo {name}" in shown for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import octavo as package

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {package.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    if name == "key":
        assert "usage: octavo key add FILE --name NAME [options]" in shown
        assert "--tokens-per-minute" in shown
    elif name == "quantize":
        assert "usage: octavo quantize [MODEL] [options]" in shown
        assert all(word in shown for word in ("--group-size", "arXiv:2210.17323", "examples"))
    else:
        assert f"usage: octavo {name} [MODEL] [options]" in shown
        words = " ".join(shown.split())
        assert "seed of requests that bring none (default: 0)" in words
        assert "reuse cached blocks of equal prefixes (default: on)" in words
        assert "--max-model-len" in shown


@pytest.mark.parametrize("words", [["inspect", "m\udcff"], ["replay", "-r", "r\udcff"], ["serve", "--config=c\udcff"]])
def test_a_word_beyond_utf8_is_refused_as_that(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert "\\xff is not UTF-8" in shown
    assert "rename" in shown


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), 2),
        (UnsupportedError("wrong"), 2),
        (CheckpointError("wrong"), 1),
        (OverloadedError("wrong"), 1),
        (InternalError("wrong"), 1),
        (OSError("wrong"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_a_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(error)) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert code == 130 or ("wrong" in shown and shown.startswith("error: "))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("serve", "--prt", "3"), 2, "did you mean --port?"),
        (("serve", "--block-size", "17"), 2, "block_size: '17' is none of 8, 16, 32, 64, 128"),
        (("serve", "--enable-lora"), 2, "enable_lora (LoRA adapters) is not supported yet"),
        (("serve", "a", "--model", "b"), 2, "two models are named"),
        (("generate", "/no/such/model", "-p", "x"), 1, "/no/such/model"),
        (("generate",), 1, "there is no prompt"),
        (("bench", "--requests", "0"), 2, "at least 1"),
        (("bench", "--url", "http://127.0.0.1:9"), 1, "cannot reach"),
        (("inspect", "--config", "/no/such.yaml"), 2, "/no/such.yaml"),
        (("quantize",), 2, "which model?"),
        (("quantize", "m", "--method", "awq"), 2, "--output is missing"),
        (("quantize", "m", "--method", "avq", "--output", "x"), 2, "invalid choice: 'avq'"),
        (("quantize", "/no/such/model", "--method", "fp8", "--output", "/no/such"), 1, "/no/such/model"),
    ],
)
def test_mistakes(words: tuple[str, ...], code: int, message: str) -> None:
    done = octavo(*words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_api_server_is_serve() -> None:
    for module in ("octavo.entrypoints.api_server", "octavo.entrypoints.openai.api_server"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--model", "m", "--enable-metrics", "--prt"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 2
        assert "unknown flag --prt" in done.stderr


def test_what_help_and_import_load() -> None:
    """Neither loads an array library, a tokenizer, a server or a model; torch is never loaded on this path."""
    heavy = {
        "torch",
        "numpy",
        "tokenizers",
        "starlette",
        "jinja2",
        "zmq",
        "huggingface_hub",
        "uvicorn",
        "tqdm",
        "msgspec",
    }
    for code in (
        "import octavo",
        "from octavo.cli.main import main; main(['--help'])",
    ):
        probe = f"import sys; {code}; print(sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=240, check=True)
        assert done.stderr.strip() == "[]", code


@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_help_of_a_command_loads(name: str) -> None:
    probe = (
        "import sys\nfrom octavo.cli.main import main\n"
        f"try:\n    main([{name!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'tokenizers', 'starlette', 'zmq'}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("mebibytes", [64, 130, 170])
def test_an_address_space_that_libraries_do_not_fit_in_is_told_before_they_load(mebibytes: int) -> None:
    limit = f"ulimit -v {mebibytes * 1024} && exec {sys.executable} -m octavo"
    for words in ("inspect", "serve --port 0"):
        done = subprocess.run(
            ["bash", "-c", f"{limit} {words}"], capture_output=True, text=True, timeout=240, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        first, hint = done.stderr.splitlines()
        assert first == f"error: {mebibytes} MiB of memory are allowed, and libraries alone take 192"
        assert "ulimit -v" in hint


def test_the_demo_script_compiles_without_octavo() -> None:
    """It runs before anything is known to work, so it may use the standard library alone."""
    source = (Path(__file__).parents[2] / "scripts" / "demo.py").read_text()
    assert "import octavo" not in source
    assert "from octavo" not in source
    compile(source, "demo.py", "exec")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("numpy says:\n\nx.so: failed to map segment from shared object\n\n"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ],
    ids=type,
)
def test_a_limit_that_leaves_too_little_memory_is_told(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 26, resource.RLIM_INFINITY))
    assert guarded(raising(error)) == 1
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert "numpy says" not in first
    assert "ulimit -v" in hint
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    if isinstance(error, ImportError | RuntimeError):  # a broken installation, a bug: where it broke is what helps
        with pytest.raises(type(error)):
            guarded(raising(error))
    else:
        assert guarded(raising(error)) == 1
        assert "ulimit" not in capsys.readouterr().err
