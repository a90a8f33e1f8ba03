"""Files of the disk tier: what is written, what survives, and what is never used again."""

import errno
import os
import stat
from contextlib import suppress

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.execution.tiers import disk
from octavo.execution.tiers.disk import DiskTier, TierInUseError
from octavo.execution.tiers.envelope import HEADER_BYTES, Envelope
from octavo.execution.tiers.interface import TierError, cause_of
from octavo.execution.tiers.memory import MemoryTier

PAGE = 4096
ENVELOPE = Envelope(bytes(range(32)), PAGE)
KEYS = [bytes([number]) * 34 for number in range(8)]


def page(seed):
    return np.random.default_rng(seed).integers(0, 256, PAGE).astype(np.uint8)


def sealed(key, seed=1, generation=0, envelope=ENVELOPE):
    blob = np.zeros(envelope.blob_bytes, np.uint8)
    envelope.seal(key, generation, page(seed), blob)
    return blob


def opened(tier, key, generation=0, envelope=ENVELOPE):
    blob, out = np.zeros(envelope.blob_bytes, np.uint8), np.zeros(PAGE, np.uint8)
    envelope.open(key, generation, blob, tier.get(key, blob), out)
    return out


def open_disk(path, max_bytes=1 << 20, envelope=ENVELOPE):
    return DiskTier(path, max_bytes, envelope.fingerprint, envelope.blob_bytes)


@pytest.fixture(params=["memory", "disk"])
def tier(request, tmp_path):
    tier = MemoryTier(8) if request.param == "memory" else open_disk(tmp_path / "kv")
    yield tier
    tier.close()


def held(tier):
    """Which of KEYS it has."""
    found = []
    for key in KEYS:
        with suppress(TierError, OSError):
            tier.get(key, np.zeros(ENVELOPE.blob_bytes, np.uint8))
            found.append(key)
    return found


def files(path):
    return sorted(path.rglob("*.kv"))


def test_every_tier_keeps_and_forgets(tier):
    assert tier.keys() == []
    for number, key in enumerate(KEYS[:3]):
        tier.put(key, sealed(key, number))
    tier.put(KEYS[1], sealed(KEYS[1], 9))
    assert held(tier) == list(KEYS[:3])
    assert (opened(tier, KEYS[1]) == page(9)).all()
    assert (opened(tier, KEYS[0]) == page(0)).all()
    tier.delete(KEYS[0])
    tier.delete(KEYS[0])
    assert held(tier) == list(KEYS[1:3])
    with pytest.raises((TierError, OSError)) as missing:
        opened(tier, KEYS[0])
    assert cause_of(missing.value) == "missing"
    tier.clear(3)
    assert (tier.generation, held(tier)) == (3, [])


def test_files_survive_and_are_private(tmp_path):
    root = tmp_path / "kv"
    tier = open_disk(root)
    for key in KEYS[:3]:
        tier.put(key, sealed(key))
    (oldest,) = [path for path in files(root) if path.name.startswith(KEYS[2].hex())]
    os.utime(oldest, ns=(1, 1))
    tier.close()
    again = open_disk(root)
    assert again.keys() == [KEYS[2], *KEYS[:2]]
    assert (opened(again, KEYS[0]) == page(1)).all()
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    again.close()


def damage(path, kind):
    content = bytearray(path.read_bytes())
    if kind == "torn":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "longer":
        path.write_bytes(content + b"x")
    else:
        content[{"head": 10, "digest": 140, "page": HEADER_BYTES + 77, "last": -1}[kind]] ^= 0x40
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["torn", "empty", "longer", "head", "digest", "page", "last"])
def test_a_damaged_file_is_never_used(tmp_path, kind):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    damage(*files(tmp_path), kind)
    with pytest.raises(TierError) as caught:
        opened(tier, KEYS[0])
    assert caught.value.cause in {"torn", "corrupt", "foreign"}
    tier.close()
    again = open_disk(tmp_path / "kv")
    wrong_length = kind in {"torn", "empty", "longer"}
    assert again.keys() == ([] if wrong_length else [KEYS[0]])
    assert again.findings.torn == wrong_length
    assert len(files(tmp_path)) == (not wrong_length)
    again.close()


def test_a_blob_of_another_block_model_or_generation_is_refused():
    other = Envelope(bytes(32), PAGE)
    tier = MemoryTier(8)
    for key, blob, cause in (
        (KEYS[0], sealed(KEYS[1]), "foreign"),
        (KEYS[1], sealed(KEYS[1], envelope=other), "foreign"),
        (KEYS[2], sealed(KEYS[2], generation=4), "stale"),
    ):
        tier.put(key, blob)
        with pytest.raises(TierError) as caught:
            opened(tier, key)
        assert caught.value.cause == cause


def test_what_was_cleared_does_not_come_back(tmp_path):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    saved = {path: path.read_bytes() for path in files(tmp_path)}
    tier.clear(1)
    tier.put(KEYS[1], sealed(KEYS[1], generation=1))
    tier.close()
    for path, content in saved.items():  # as if the old files had not been removed before the end
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    again = open_disk(tmp_path / "kv")
    assert (again.generation, again.keys(), again.findings.stale) == (1, [KEYS[1]], 1)
    again.close()
    next((tmp_path / "kv").rglob("generation")).write_text("no number")
    third = open_disk(tmp_path / "kv")
    assert (third.generation > 1, third.keys()) == (True, [])
    third.close()


def test_foreign_files_stay_and_are_counted(tmp_path):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    tier.close()
    folder = files(tmp_path)[0].parent
    (folder / "notes.txt").write_text("mine")
    (folder / "zz.kv").write_text("not hexadecimal")
    (folder / f"{KEYS[1].hex()}.partial").write_text("half")
    link = folder.parent / "02" / f"{KEYS[2].hex()}.kv"
    link.parent.mkdir()
    link.symlink_to(files(tmp_path)[0])
    again = open_disk(tmp_path / "kv")
    assert again.keys() == [KEYS[0]]
    assert (again.findings.foreign, again.findings.torn) == (2, 1)
    assert (folder / "notes.txt").exists()
    with pytest.raises(OSError, match="symbolic"):
        opened(again, KEYS[2])
    again.close()


def test_a_file_that_others_may_write_is_foreign(tmp_path):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    files(tmp_path)[0].chmod(0o666)
    with pytest.raises(TierError, match="others"):
        opened(tier, KEYS[0])
    tier.close()


def test_other_models_keep_at_most_half(tmp_path):
    root, cluster = tmp_path / "kv", 8192
    for number, model in enumerate((b"a" * 32, b"b" * 32, b"c" * 32)):
        envelope = Envelope(model, PAGE)
        tier = open_disk(root, 8 * cluster, envelope)
        for key in KEYS[:2]:
            tier.put(key, sealed(key, envelope=envelope))
        tier.close()
        os.utime(root / envelope.fingerprint.hex()[:32], (number, number))
    tier = open_disk(root, 8 * cluster)
    assert {path.parts[-4] for path in files(root)} == {(b"b" * 16).hex(), (b"c" * 16).hex()}
    assert tier.capacity == 4
    tier.close()


def test_one_engine_a_directory(tmp_path):
    tier = open_disk(tmp_path / "kv")
    with pytest.raises(TierInUseError, match="another engine"):
        open_disk(tmp_path / "kv")
    tier.close()
    open_disk(tmp_path / "kv").close()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="kv_disk_path"):
        open_disk(tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="0700"):
        open_disk(tmp_path / "open")


def test_a_vanished_directory_is_made_again(tmp_path):
    import shutil

    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    shutil.rmtree(tmp_path / "kv")
    with pytest.raises(FileNotFoundError):
        opened(tier, KEYS[0])
    tier.put(KEYS[1], sealed(KEYS[1]))
    assert (opened(tier, KEYS[1]) == page(1)).all()
    tier.close()


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    tier = open_disk(tmp_path / "kv")

    def full(_descriptor, _blob):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(disk, "_write_all", full)
    with pytest.raises(OSError, match="no space") as caught:
        tier.put(KEYS[0], sealed(KEYS[0]))
    assert cause_of(caught.value) == "full"
    assert not list((tmp_path / "kv").rglob("*.partial"))
    assert held(tier) == []
    tier.close()


def test_what_is_forgotten_on_a_full_disk_does_not_come_back(tmp_path, monkeypatch):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    write = disk._write_generation

    def write_if_there_is_room(base, generation):
        if files(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(base, generation)

    monkeypatch.setattr(disk, "_write_generation", write_if_there_is_room)
    tier.clear(1)
    tier.put(KEYS[1], sealed(KEYS[1], generation=1))
    tier.close()
    again = open_disk(tmp_path / "kv")
    assert (again.generation, again.keys()) == (1, [KEYS[1]])
    again.close()


@pytest.mark.parametrize("text", ["", "no number", "-1", "\u00b2", "9" * 40])
def test_a_spoilt_generation_is_replaced_whatever_lies_beside_it(tmp_path, text):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    tier.close()
    base = files(tmp_path)[0].parents[2]
    (base / "generation").write_text(text)
    for name in ("\u00b2", "\u0663", "8" * 200):  # digits to Python, all of them
        (base / name).mkdir()
    again = open_disk(tmp_path / "kv")
    assert (again.generation, again.keys(), again.findings.stale) == (1, [], 1)
    again.close()


def test_a_file_that_nobody_would_look_for_takes_no_room_in_the_books(tmp_path):
    tier = open_disk(tmp_path / "kv")
    tier.put(KEYS[0], sealed(KEYS[0]))
    tier.close()
    (own,) = files(tmp_path)
    elsewhere = own.parent.with_name("zz")
    elsewhere.mkdir()
    for path in (elsewhere / own.name, own.parent / ".kv", own.parent / f"{KEYS[1].hex(' ')}.kv"):
        path.write_bytes(own.read_bytes())
    again = open_disk(tmp_path / "kv")
    assert (again.keys(), again.findings.foreign, again.findings.torn) == ([KEYS[0]], 3, 0)
    again.close()
