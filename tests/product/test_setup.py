"""The scripts behind `make`: what a machine lacks is said plainly, steps are quiet until they fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, *words: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [shutil.which("bash") or "bash", str(SCRIPTS / script), *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={key: value for key, value in {**os.environ, **variables}.items() if value != "unset"},
        timeout=240,
        check=False,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory of programs without a compiler and without Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "printf"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    return programs


def test_a_complete_machine_passes(tmp_path: Path) -> None:
    done = run("preflight.sh", sys.executable, cwd=tmp_path, CXX=shutil.which("true") or "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_compiler_is_named(bare: Path, tmp_path: Path) -> None:
    done = run("preflight.sh", sys.executable, cwd=tmp_path, PATH=str(bare), CXX="unset")
    assert done.returncode == 1
    assert "no C++ compiler found" in done.stderr
    assert "apt-get install g++" in done.stderr


def test_a_missing_python_is_named(bare: Path, tmp_path: Path) -> None:
    done = run("preflight.sh", "python3", cwd=tmp_path, PATH=str(bare))
    assert done.returncode == 1
    assert "no python3 found" in done.stderr


def test_a_python_without_venv_is_named(bare: Path, tmp_path: Path) -> None:
    crippled = bare / "python3"
    crippled.write_text('#!/usr/bin/env bash\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexit 0\n')
    crippled.chmod(0o755)
    done = run("preflight.sh", "python3", cwd=tmp_path, PATH=str(bare), CXX=shutil.which("true") or "true")
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr


def test_an_old_python_is_named(bare: Path, tmp_path: Path) -> None:
    old = bare / "python3"
    old.write_text('#!/usr/bin/env bash\ncase "$1" in -V) echo "Python 3.9.1" ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = run("preflight.sh", "python3", cwd=tmp_path, PATH=str(bare))
    assert "python3 is Python 3.9.1, Octavo needs Python 3.10 or newer" in done.stderr


def test_a_step_is_quiet_until_it_fails(tmp_path: Path) -> None:
    done = run("step.sh", "Doing it", "bash", "-c", "echo noise; exit 0", cwd=tmp_path)
    assert done.returncode == 0
    assert "Doing it: done" in done.stdout
    assert "noise" not in done.stdout
    failed = run("step.sh", "Doing it", "bash", "-c", "echo the reason; exit 7", cwd=tmp_path)
    assert failed.returncode == 7
    assert "FAILED" in failed.stdout
    assert "the reason" in failed.stdout
