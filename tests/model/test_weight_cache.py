"""The packed-weight cache: what it gives back, what it refuses, what it removes, and that two processes agree."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import CheckpointError
from octavo.model import weight_cache
from octavo.model.source import open_model
from octavo.model.weight_cache import WeightCache
from octavo.model.weights import load_decoder
from tests.model.files import CopyPacker, PlainPacker, tiny_tensors, write_model

GIB = 1 << 30


def load(model, directory, max_bytes=GIB, **options):
    """(loaded, cache, how many matrices were packed)"""
    cache, packer = WeightCache(directory, max_bytes), CopyPacker()
    loaded = load_decoder(open_model(model), packer, max_positions=8, cache=cache, **options)
    cache.wait()
    return loaded, cache, packer.packed


def matrices(loaded):
    """Every packed segment, in the order of the layers."""
    found = [loaded.weights.embed, loaded.weights.head]
    for layer in loaded.weights.layers:
        attention, mlp = (block.branches[0].body for block in layer.blocks)
        found += [attention.qkv, attention.out, mlp.up, mlp.down]
    return [(weight.shape, [(s.format, s.rows, s.data.tobytes()) for s in weight.segments]) for weight in found]


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", tiny_tensors())


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache" / "weights"


def files(directory):
    return sorted(directory.glob("*.weights"))


def replace(path, data):
    """A new file in the place of another: the old one may be mapped."""
    path.unlink()
    path.write_bytes(data)


def test_the_second_load_packs_nothing_and_gives_the_same(model, directory):
    first, _, packed = load(model, directory)
    second, cache, packed_again = load(model, directory)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert packed > 0
    assert packed_again == 0
    assert matrices(second) == matrices(first)
    uncached = load_decoder(open_model(model), CopyPacker(), max_positions=8)
    assert matrices(first) == matrices(uncached)
    assert (cache.counts.hits, cache.counts.rejected) == (1, 0)
    (path,) = files(directory)
    assert path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    data = second.weights.layers[0].blocks[1].branches[0].body.down.segments[0].data
    assert data.ctypes.data % 64 == 0
    assert not data.flags.writeable


def test_other_content_or_another_type_is_another_file(model, directory):
    load(model, directory)
    assert not load(model, directory, dtype="float16")[0].from_cache
    tensors = tiny_tensors()
    tensors["model.norm.weight"][0] += 1  # same size, one number differs
    write_model(model, tensors)
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert not load(model, directory)[0].from_cache
    assert len(files(directory)) == 3


def test_a_packer_without_bytes_is_not_cached(model, directory):
    load_decoder(open_model(model), PlainPacker(), max_positions=8, cache=WeightCache(directory, GIB))
    assert not directory.exists()


DAMAGE = {
    "empty": lambda data: b"",
    "short": lambda data: data[:20],
    "torn": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "magic": lambda data: b"X" + data[1:],
    "header length": lambda data: data[:8] + b"\xff" * 8 + data[16:],
    "header": lambda data: data[:60] + b"?" + data[61:],
    "data": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    "zero page": lambda data: data[:8192] + bytes(4096) + data[12288:],
    "pages swapped": lambda data: data[:4096] + data[8192:12288] + data[4096:8192] + data[12288:],
    "words swapped": lambda data: data[:8192] + data[8200:8208] + data[8192:8200] + data[8208:],
    "halves swapped": lambda data: data[:8192] + data[10240:12288] + data[8192:10240] + data[12288:],
    "sums": lambda data: data[:-8] + bytes(8),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_ignored_counted_and_replaced(name, model, directory):
    first, _, packed = load(model, directory)
    (path,) = files(directory)
    expected = matrices(first)
    content = path.read_bytes()
    assert DAMAGE[name](content) != content
    replace(path, DAMAGE[name](content))
    again, cache, packed_again = load(model, directory)
    assert (again.from_cache, packed_again) == (False, packed)
    assert matrices(again) == expected
    assert cache.counts.rejected == 1
    assert str(path) in cache.counts.reasons[0]
    assert load(model, directory)[0].from_cache


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_no_damage_is_mistaken_for_weights(data, model, directory):
    """Bytes flipped, cut off or put in anywhere: the file is refused and written anew, or (a flip in the padding behind
    the header) nothing that is read has changed."""
    first = load(model, directory)[0]
    (path,) = files(directory)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "insert", "zero"])):
        case "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[at : at + data.draw(st.integers(1, 5000))]
        case "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=80))
        case "zero":
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    replace(path, bytes(content))
    again, cache, _ = load(model, directory)
    assert matrices(again) == matrices(first)
    assert again.from_cache == (cache.counts.rejected == 0)
    assert load(model, directory)[0].from_cache


def test_a_file_of_another_version_is_not_looked_at(model, directory, monkeypatch):
    load(model, directory)
    for name in ("_LAYOUT", "ABI_VERSION"):
        monkeypatch.setattr(weight_cache, name, 10_000)
        loaded, cache, packed = load(model, directory)
        assert (loaded.from_cache, cache.counts.misses) == (False, 1)
        assert packed
    assert len(files(directory)) == 3


@pytest.mark.parametrize("call", ["posix_fallocate", "open", "mkdir"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_full_or_read_only_disk_leaves_nothing_behind(call, number, model, directory, monkeypatch):
    def fail(*arguments, **options):
        if call == "open" and not arguments[1] & os.O_CREAT:
            return honest(*arguments, **options)
        raise OSError(number, os.strerror(number))

    honest = getattr(os, call)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        loaded, cache, packed = load(model, directory)
    assert packed
    assert not loaded.from_cache
    assert os.strerror(number) in cache.counts.reasons[-1]
    assert not directory.exists() or {path.name for path in directory.iterdir()} <= {"lock"}
    assert matrices(load(model, directory)[0]) == matrices(loaded)


def test_a_disk_that_fills_up_while_it_is_written_is_no_cache_file(model, directory, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        loaded, cache, _ = load(model, directory)
    assert [path.name for path in directory.iterdir()] == ["lock"]
    assert "full" in cache.counts.reasons[-1]
    again = load(model, directory)[0]
    assert not again.from_cache
    assert matrices(again) == matrices(loaded)
    assert not list(directory.glob("*.partial"))


def test_a_disk_that_refuses_what_is_written_back_leaves_no_file(model, directory, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(weight_cache, "write_back", fail)
        loaded, cache, _ = load(model, directory)
    assert [path.name for path in directory.iterdir()] == ["lock"]
    assert "broken" in cache.counts.reasons[-1]
    assert matrices(load(model, directory)[0]) == matrices(loaded)


def test_a_busy_process_writes_its_file_when_it_is_told_to(model, directory, monkeypatch):
    """Its processor time goes on as the clock does: the file waits, and weights are there all the same."""
    monkeypatch.setattr(weight_cache, "_PATIENCE_SECONDS", 1e9)
    monkeypatch.setattr(weight_cache.time, "process_time", weight_cache.time.monotonic)
    cache = WeightCache(directory, GIB)
    loaded = load_decoder(open_model(model), CopyPacker(), max_positions=8, cache=cache)
    assert files(directory) == []
    assert len(list(directory.glob("*.partial"))) == 1
    assert matrices(loaded) == matrices(load_decoder(open_model(model), CopyPacker(), max_positions=8))
    cache.wait()
    assert (len(files(directory)), cache.counts.written) == (1, 1)


@pytest.mark.parametrize(("patience", "share"), [(0.0, 0.0), (1e9, 2.0)])
def test_a_file_is_written_when_there_is_little_to_do_or_after_long(patience, share, model, directory, monkeypatch):
    monkeypatch.setattr(weight_cache, "_PATIENCE_SECONDS", patience)
    monkeypatch.setattr(weight_cache, "_QUIET_SHARE", share)
    monkeypatch.setattr(weight_cache.time, "process_time", weight_cache.time.monotonic)
    cache = WeightCache(directory, GIB)
    load_decoder(open_model(model), CopyPacker(), max_positions=8, cache=cache)
    for thread in threading.enumerate():
        if thread.name == "weight-cache":
            thread.join(timeout=240)
    assert cache.counts.written == 1


_ENDING = """
import sys
from pathlib import Path
from octavo.model import weight_cache
from octavo.model.source import open_model
from octavo.model.weights import load_decoder
from tests.model.files import CopyPacker

weight_cache._PATIENCE_SECONDS, weight_cache._QUIET_SHARE = 1e9, -1.0
load_decoder(open_model(Path(sys.argv[1])), CopyPacker(), cache=weight_cache.WeightCache(Path(sys.argv[2]), 1 << 30))
assert not list(Path(sys.argv[2]).glob("*.weights"))
"""


def test_a_process_that_ends_writes_its_file_first(model, directory):
    command = [sys.executable, "-c", _ENDING, str(model), str(directory)]
    subprocess.run(command, check=True, timeout=240, cwd=Path(__file__).parents[2])
    assert len(files(directory)) == 1


def test_a_file_of_another_model_or_writable_by_others_is_refused(model, directory, tmp_path):
    load(model, directory)
    (path,) = files(directory)
    path.chmod(0o666)
    assert load(model, directory)[1].counts.rejected == 1
    other = write_model(tmp_path / "other", tiny_tensors(seed=6))
    load(other, directory)
    foreign = next(file for file in files(directory) if file != path)
    replace(path, foreign.read_bytes())
    loaded, cache, _ = load(model, directory)
    assert not loaded.from_cache
    assert "made of other files" in cache.counts.reasons[0]
    path.unlink()
    path.symlink_to(foreign)
    assert load(model, directory)[1].counts.rejected == 1


def test_the_least_recently_used_file_goes_first(model, directory, tmp_path):
    models = [model, *(write_model(tmp_path / f"model{seed}", tiny_tensors(seed=seed)) for seed in (7, 8))]
    load(models[0], directory)
    size = files(directory)[0].stat().st_size + 4096
    load(models[1], directory, 2 * size)
    first = min(files(directory), key=lambda path: path.stat().st_mtime_ns)
    os.utime(first, ns=(0, 0))
    load(models[0], directory, 2 * size)  # now in use again
    for path in files(directory):
        if path != first:
            os.utime(path, ns=(0, 0))
    _, cache, _ = load(models[2], directory, 2 * size)
    assert cache.counts.evicted == 1
    assert len(files(directory)) == 2
    assert load(models[0], directory, 2 * size)[0].from_cache
    assert not load(models[1], directory, 2 * size)[0].from_cache


def test_a_pipe_or_a_directory_in_the_place_of_a_file_is_refused(model, directory):
    load(model, directory)
    (path,) = files(directory)
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        _, cache, _ = load(model, directory)
        assert cache.counts.rejected == 1
        if make is os.mkfifo:
            assert path.is_file()


def test_why_it_is_not_used_is_told(model, directory, caplog):
    with caplog.at_level(logging.INFO, logger="octavo"):
        load(model, directory, max_bytes=1000)
    assert "weight cache: " in caplog.text
    assert "do not fit" in caplog.text


def test_what_does_not_fit_is_not_written(model, directory):
    loaded, cache, packed = load(model, directory, max_bytes=1000)
    assert packed > 0
    assert not loaded.from_cache
    assert files(directory) == []
    assert "do not fit" in cache.counts.reasons[0]


def test_an_unusable_directory_is_no_obstacle(model, tmp_path):
    (tmp_path / "file").write_text("")
    loaded, cache, packed = load(model, tmp_path / "file" / "cache")
    assert packed > 0
    assert not loaded.from_cache
    assert "not written" in cache.counts.reasons[-1]


def test_a_model_with_damaged_weights_leaves_no_file(model, directory):
    class Refusing(CopyPacker):
        def pack_into(self, stored, destination):
            raise CheckpointError(f"{stored.name}: NaN")

    with pytest.raises(CheckpointError, match="damaged tensors"):
        load_decoder(open_model(model), Refusing(), cache=WeightCache(directory, GIB))
    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_what_a_dead_writer_left_is_removed_and_a_living_one_respected(model, directory):
    directory.mkdir(parents=True)
    (directory / "dead.partial").write_bytes(b"half")
    load(model, directory)
    assert not (directory / "dead.partial").exists()
    (path,) = files(directory)
    path.unlink()
    living = directory / f"{path.stem}.partial"
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        loaded, cache, _ = load(model, directory)
    assert living.exists()
    assert not loaded.from_cache
    assert files(directory) == []
    assert cache.counts.written == 0


_RACE = """
import sys
from pathlib import Path
from octavo.model.source import open_model
from octavo.model.weight_cache import WeightCache
from octavo.model.weights import load_decoder
from tests.model.files import CopyPacker

sys.stdin.readline()
for _ in range(20):
    cache = WeightCache(Path(sys.argv[2]), 1 << 30)
    loaded = load_decoder(open_model(Path(sys.argv[1])), CopyPacker(), max_positions=8, cache=cache)
    cache.wait()
    assert cache.counts.rejected == 0, cache.counts
    for path in Path(sys.argv[2]).glob("*.weights"):
        path.unlink(missing_ok=True)
    print(hash(loaded.weights.embed.segments[0].data.tobytes()))
"""


def test_two_processes_may_fill_and_empty_one_directory(model, directory):
    command = [sys.executable, "-c", _RACE, str(model), str(directory)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    racers = [subprocess.Popen(command, **options, cwd=Path(__file__).parents[2]) for _ in range(2)]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    printed = [racer.communicate(timeout=240)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len(set("".join(printed).split())) == 1
    assert len("".join(printed).split()) == 40
    assert not list(directory.glob("*.partial"))


def test_the_weights_stay_usable_when_their_file_is_evicted(model, directory):
    loaded, _, _ = load(model, directory)
    before = matrices(loaded)
    files(directory)[0].unlink()
    assert matrices(loaded) == before
    assert np.any(loaded.weights.embed.segments[0].data)


def test_rounded_weights_are_cached_apart_from_exact_ones(model, tmp_path):
    directory = tmp_path / "cache"
    exact, _, _ = load(model, directory)
    rounded, _, packed = load(model, directory, scheme="int8")
    assert packed
    assert not rounded.from_cache
    again, cache, packed = load(model, directory, scheme="int8")
    assert again.from_cache
    assert cache.counts.hits == 1
    assert packed == 0
    assert matrices(again) == matrices(rounded) != matrices(exact)
