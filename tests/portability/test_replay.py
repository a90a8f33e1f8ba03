"""What record.py writes, replay.cpp runs: every library of this machine gives the same results, and wrong ones show."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from octavo.kernels.cpu.library import NATIVE_DIRECTORY, supported_isas
from tests.portability.record import FLOATS, MAGIC, record

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "native" / "include"
# One case or a few of every kind of operand: weights, gains, a cache, states, rules.
ONLY = (
    "linear-q4_k",
    "linear in int8-q8_0",
    "linear in int8-int8_row_f32_rotated",
    "embed-f32",
    "norm-no gain",
    "attention-qk-norm",
    "sample-all rules",
    "program-llama",
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    made = tmp_path_factory.mktemp("replay") / "replay"
    compiler = next(path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
    source = str(HERE / "replay.cpp")
    warnings = ("-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, "-std=c++17", *warnings, "-I", INCLUDE, source, "-o", made, "-ldl"], check=True)
    return made


def recorded(folder, isa):
    paths = [folder / str(number) for number in range(len(ONLY))]
    for path, only in zip(paths, ONLY, strict=True):
        assert record(path, only, isa) >= 1, only
    return paths


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("recorded"), "scalar")


def run(replay, isa, path, *how):
    command = [replay, NATIVE_DIRECTORY / f"liboctavo_{isa}.so", path, *how]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("isa", supported_isas())
def test_every_library_gives_what_the_scalar_one_gave(isa, replay, files):
    for path in files:
        done = run(replay, isa, path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert done.stdout.startswith(f"{isa}: ")
        assert done.stdout.endswith(" 0 differ\n")


def test_vector_libraries_give_the_same_bits(replay, tmp_path):
    vectors = [isa for isa in supported_isas() if isa not in ("scalar", "amx")]
    for path in recorded(tmp_path, vectors[-1]) if vectors else []:
        for isa in vectors:
            done = run(replay, isa, path, "bits")
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
            assert done.stdout.endswith(" 0 with other bits, 0 differ\n")


def test_a_float_beside_its_place_is_near_but_has_other_bits(replay, files, tmp_path):
    isa, content = "scalar", bytearray(files[0].read_bytes())
    place = content.rindex(struct.pack("<I", FLOATS), 0, len(content)) + 24
    bits = struct.unpack_from("<I", content, place)[0]
    struct.pack_into("<I", content, place, bits ^ 1)
    beside = tmp_path / "beside"
    beside.write_bytes(content)
    assert run(replay, isa, beside).stdout.endswith(" 1 with other bits, 0 differ\n")
    done = run(replay, isa, beside, "bits")
    assert done.returncode == 1
    assert done.stdout.endswith(" 1 with other bits, 1 differ\n")
    assert run(replay, isa, beside, "bytes").returncode == 2


@pytest.mark.parametrize("isa", supported_isas())
def test_whether_a_library_can_run_here_is_told(isa, replay):
    done = subprocess.run(
        [replay, NATIVE_DIRECTORY / f"liboctavo_{isa}.so"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{isa}: this processor can run it\n"


def test_a_wrong_result_a_torn_file_and_no_file_are_noticed(replay, files, tmp_path):
    isa, content = supported_isas()[0], bytearray(files[0].read_bytes())
    assert content.startswith(MAGIC)
    at = content.rindex(struct.pack("<I", FLOATS), 0, len(content))
    wrong = tmp_path / "wrong"
    content[at + 24 : at + 28] = struct.pack("<f", 1e6)  # after the record's number, blob, count and what is allowed
    wrong.write_bytes(content)
    done = run(replay, isa, wrong)
    assert done.returncode == 1
    assert "not 1000000" in done.stdout
    wrong.write_bytes(content[:-3])
    assert run(replay, isa, wrong).returncode == 2
    assert "cannot open" in run(replay, isa, tmp_path / "none").stderr
