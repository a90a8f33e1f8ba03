"""Finding and typing the native library, its thread team, and the packer: wrong things are refused in clear words."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from octavo.config.engine import ExecutionConfig
from octavo.errors import CheckpointError, ConfigError
from octavo.kernels.choose import kernel_choices
from octavo.kernels.cpu import library as module
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.library import ISA_ORDER, NATIVE_DIRECTORY, load_library, supported_isas
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.conformance import FORMATS, stored
from octavo.ops.weight import PackedWeight, Segment, StoredTensor
from tests.conformance.devices import ISAS, library, team

BEST = ISAS[0]


@pytest.fixture
def packer():
    return NativePacker(library(BEST), team(BEST))


def test_auto_takes_the_best_and_a_name_forces():
    supported = supported_isas()
    assert load_library().isa == supported[0]
    assert set(supported) >= set(ISAS)
    for isa in supported:
        assert load_library(isa).isa == isa


def test_a_missing_library_says_how_to_build_it(tmp_path):
    with pytest.raises(ConfigError, match=r"native library not built: .*run `make` or `pip install \.`"):
        load_library(directory=tmp_path)


def test_a_missing_isa_names_those_present():
    with pytest.raises(ConfigError, match=f"no native library for sparc.*{BEST}"):
        load_library("sparc")


def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(module, "ABI_VERSION", 10_000)
    with pytest.raises(ConfigError, match="ABI version"):
        load_library()


def test_a_broken_library_is_refused(tmp_path):
    shutil.copytree(NATIVE_DIRECTORY / "include", tmp_path / "include")
    (tmp_path / "liboctavo_scalar.so").write_bytes(b"\x7fELF but no more")
    with pytest.raises(ConfigError, match="cannot use native library"):
        load_library("scalar", tmp_path)


def test_a_library_this_cpu_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(module, "open_library", lambda path: _Unsupported(path))
    with pytest.raises(ConfigError, match=f"this CPU cannot run {BEST}"):
        load_library(BEST)
    with pytest.raises(ConfigError, match="runs on this CPU"):
        load_library()


class _Unsupported:
    """A library whose instruction set is missing."""

    def __init__(self, path):
        self.isa = path.stem
        self.call = self

    def octavo_isa_supported(self):
        return 0


def test_teams_count_their_threads_and_close_twice():
    for threads in (1, 2, 5):
        made = ThreadTeam(library(BEST), threads)
        assert made.threads == threads
        made.close()
        made.close()


def test_memory_that_is_not_granted_is_told_in_bytes():
    with pytest.raises(ConfigError, match=f"{1 << 60} bytes of memory cannot be had: .*--kv-cache-size"):
        aligned_bytes(1 << 60)


def test_impossible_teams_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        ThreadTeam(library(BEST), 0)
    with pytest.raises(ConfigError, match="pinned"):
        ThreadTeam(library(BEST), 2, [0])


def test_threads_run_on_their_cpus_and_the_caller_where_it_did():
    usable = sorted(os.sched_getaffinity(0))
    first, last = usable[0], usable[-1]
    before = set(os.listdir("/proc/self/task"))
    made = ThreadTeam(library(BEST), 4, [first, first, last, last])
    added = set(os.listdir("/proc/self/task")) - before
    allowed = sorted(tuple(os.sched_getaffinity(int(thread))) for thread in added)
    made.close()
    assert allowed == sorted([(first,), (last,), (last,)])
    assert sorted(os.sched_getaffinity(0)) == usable


def test_matrices_are_packed_in_every_format(packer):
    assert set(packer.formats()) == set(FORMATS)
    for format in FORMATS:
        weight = packer.matrix([stored(format, 20, 256, 1), stored(format, 3, 256, 2)])
        assert weight.shape == (23, 256)
        assert weight.formats == (format, format)
        for segment, rows in zip(weight.segments, (20, 3), strict=True):
            assert segment.data.nbytes == packer.packed_bytes(format, rows, 256)


def test_packing_is_the_same_on_every_isa():
    for format in FORMATS:
        tensor = stored(format, 21, 256, 3)
        packed = [NativePacker(library(isa), team(isa)).matrix([tensor]).segments[0].data for isa in ISAS]
        assert all(np.array_equal(packed[0], other) for other in packed)


def test_unaligned_sources_are_packed(packer):
    tensor = stored("q4_k", 16, 256, 4)
    shifted = np.empty(tensor.data.nbytes + 1, np.uint8)
    shifted[1:] = tensor.data
    moved = StoredTensor(tensor.name, tensor.format, tensor.shape, shifted[1:])
    np.testing.assert_array_equal(packer.matrix([moved]).segments[0].data, packer.matrix([tensor]).segments[0].data)


def test_what_cannot_be_packed_names_the_tensor(packer):
    good = stored("q8_0", 4, 64, 1)
    for tensor, message in (
        (StoredTensor("blk.0.x", "q9_9", (4, 64), good.data), "q9_9.*no native kernel"),
        (StoredTensor("blk.0.x", "q8_0", (4, 60), good.data), "60 columns"),
        (StoredTensor("blk.0.x", "q8_0", (4, 64), good.data[:-1]), "takes 272 bytes, the file has 271"),
        (StoredTensor("blk.0.x", "q8_0", (256,), good.data), "matrix is expected"),
        (StoredTensor("blk.0.x", "q8_0", (0, 64), good.data[:0]), "matrix is expected"),
    ):
        with pytest.raises(CheckpointError, match=f"blk.0.x.*{message}"):
            packer.matrix([tensor])
    with pytest.raises(CheckpointError, match=r"f32\[2, 32\] is 32 wide"):
        packer.matrix([good, stored("f32", 2, 32, 1)])
    with pytest.raises(CheckpointError, match="at least one"):
        packer.matrix([])


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(packer, format, value):
    tensor = stored(format, 40, 64, 5)
    size = {"f32": 4}.get(format, 2)
    data = tensor.data.copy()
    damaged = np.float32(value).view(np.uint32) if format != "f16" else np.float16(value).view(np.uint16)
    raw = int(damaged) >> (16 if format == "bf16" else 0)
    at = (37 * 64 + 5) * size
    data[at : at + size] = np.frombuffer(raw.to_bytes(size, "little"), np.uint8)
    with pytest.raises(CheckpointError, match=r"row 37 holds a NaN"):
        packer.matrix([StoredTensor("layers.3.up", format, tensor.shape, data)])
    unchecked = NativePacker(library(BEST), team(BEST), check=False)
    assert unchecked.matrix([StoredTensor("layers.3.up", format, tensor.shape, data)]).shape == (40, 64)


def test_block_scales_that_are_not_finite_are_refused(packer):
    tensor = stored("q4_k", 6, 512, 6)
    data = tensor.data.copy()
    data[144 * 2 * 4 : 144 * 2 * 4 + 2] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(CheckpointError, match="row 4 holds a NaN"):
        packer.matrix([StoredTensor("layers.3.up", "q4_k", tensor.shape, data)])


def test_vectors_are_aligned_float32(packer):
    vector = packer.vector(np.arange(7, dtype=np.float64))
    assert vector.dtype == np.float32
    assert vector.ctypes.data % 64 == 0
    np.testing.assert_array_equal(vector, np.arange(7))


def test_choices_name_the_kernels_and_why(packer):
    weights = [packer.matrix([stored("bf16", 16, 64, 1)]), packer.matrix([stored("q8_0", 48, 64, 1)])]
    first, *formats = kernel_choices(library(BEST), weights, forced=False)
    assert BEST in first.kernel
    assert [choice.what for choice in formats] == ["weights in q8_0", "weights in bf16", "products of bf16"]
    assert "75%" in formats[0].reason
    way = library(BEST).bf16_products().way
    assert formats[2].kernel == {"floats": "widened to float32", "pairs": "VDPBF16PS", "tiles": "TDPBF16PS"}[way]
    assert "asked for" in kernel_choices(library(BEST), weights, forced=True)[0].reason


@pytest.mark.parametrize(
    ("format", "inputs"),
    [
        ("q8_0", "one scale for 32"),
        ("int8_row_f32", "one scale a token"),
        ("int8_row_f32_rotated", "one scale a token, rotated"),
        ("int4s_row_f32_rotated", "one scale a token, rotated"),
        ("int8z_row_f32", "one scale for 32"),
        ("f32", "activations stay float32"),
    ],
)
def test_the_scales_of_inputs_are_those_that_products_take(format, inputs):
    weight = PackedWeight((16, 64), (Segment(format, 16, None),))
    [_, choice] = kernel_choices(library(BEST), [weight], forced=False, compute="int8")
    assert choice.reason.endswith(inputs)


class _Widening:
    """A library that multiplies bf16 by Arm's widening instructions."""

    isa = "neon_i8mm"

    def bf16_products(self):
        return module.Bf16Products("pairs", 0.0, 0.0, same_bits=False)


def test_products_of_bf16_on_arm_are_told_apart(packer):
    bf16 = kernel_choices(_Widening(), [packer.matrix([stored("bf16", 16, 64, 1)])], forced=False)[2]
    assert bf16.kernel == "BFMLALB and BFMLALT"
    assert "float32's bits" in bf16.reason


def test_every_build_can_be_asked_for_and_has_a_reason():
    asked = {*get_args(get_type_hints(ExecutionConfig)["isa"])}
    assert asked == {"auto", *ISA_ORDER}
    chosen = library(BEST)
    reasons = {kernel_choices(replace(chosen, isa=isa), [], forced=False)[0].reason for isa in ISA_ORDER}
    assert len(reasons) == len(ISA_ORDER)


def _helpers():
    """(state, CPU ticks) of this process's native threads, by id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().rpartition(") ")
        except OSError:  # it has ended meanwhile
            continue
        if name.endswith("(octavo"):
            fields = rest.split()
            found[task.name] = (fields[0], int(fields[11]) + int(fields[12]))
    return found


def test_a_team_without_work_sleeps():
    """Once a job is done its threads stop spinning and use no time at all: what a server does without requests."""
    native = library(BEST)
    before = set(_helpers())
    made = ThreadTeam(native, 3)
    data = np.ones(1 << 22, np.uint8)
    assert native.call.octavo_read_bytes(made.handle, data.ctypes.data, data.nbytes) == data.nbytes
    deadline = time.monotonic() + 120
    while any(state != "S" for thread, (state, _) in _helpers().items() if thread not in before):
        assert time.monotonic() < deadline, "it goes on spinning"
    helpers = {thread: ticks for thread, (_, ticks) in _helpers().items() if thread not in before}
    assert len(helpers) == 2
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # this thread is busy, as a frontend would be
        assert all(state == "S" for thread, (state, _) in _helpers().items() if thread in helpers)
    assert {thread: ticks for thread, (_, ticks) in _helpers().items() if thread in helpers} == helpers
    made.close()
