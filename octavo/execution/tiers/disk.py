"""A tier of files: one blob a file, written aside and renamed, in a directory that one engine at a time uses.

DIRECTORY/lock; DIRECTORY/<fingerprint>/generation; DIRECTORY/<fingerprint>/<generation>/<two hex digits>/<key>.kv.

Blobs are never synced: a file that a power failure tears is recognised by its length or checksum and costs a
recomputation. Only the generation is, because nothing that was forgotten may come back. Directories are 0700, files
0600. Files that are not ours are left alone, except those of other fingerprints: of these the oldest go when they take
more than half of the room.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError
from octavo.execution.tiers.interface import TierError
from octavo.ops.weight import Bytes

_SUFFIX, _PARTIAL = ".kv", ".partial"
_CLUSTER = 4096  # what a file system gives out at least
_NAME_DIGITS = 32  # of the fingerprint, in a directory's name
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class TierInUseError(ConfigError):
    """Another engine uses the directory."""


@dataclass(slots=True)
class Findings:
    """What was in the directory when it was opened, beside usable files."""

    torn: int = 0  # of a wrong length, or never finished; removed
    stale: int = 0  # of older generations; removed
    foreign: int = 0  # not of this tier; ignored, not counted by size


class DiskTier:
    """Implements Tier over a directory. Owner: the thread of its tier, once it is opened.

    Args:
        directory: made when it is not there.
        max_bytes: most that files may take, those of other fingerprints included.
        fingerprint: of the Envelope.
        blob_bytes: length of every blob.

    Raises:
        ConfigError: the directory cannot be used, or others may write to it.
        TierInUseError: another engine uses it.
    """

    name = "disk"

    def __init__(self, directory: Path, max_bytes: int, fingerprint: bytes, blob_bytes: int) -> None:
        self.findings = Findings()
        self._root = directory
        self._max_bytes = max_bytes
        self._blob_bytes = blob_bytes
        self._file_bytes = -(-blob_bytes // _CLUSTER) * _CLUSTER
        self._base = directory / fingerprint.hex()[:_NAME_DIGITS]
        try:
            _make_private(directory)
            self._lock = _lock(directory / "lock")
            _make_private(self._base)
            self.generation = _read_generation(self._base)
            self._remove_other_generations()
            self.capacity = (max_bytes - self._make_room_among_others()) // self._file_bytes
            self._keys = self._list()
        except OSError as error:
            raise ConfigError(f"kv_disk_path {directory}: {error.strerror or error}") from error

    @property
    def _place(self) -> Path:
        return self._base / str(self.generation)

    def keys(self) -> list[bytes]:
        """See Tier."""
        return self._keys

    def put(self, key: bytes, blob: Bytes) -> None:
        """See Tier."""
        target = self._path(key)
        partial = target.with_suffix(_PARTIAL)
        try:
            descriptor = os.open(partial, _WRITE, 0o600)
        except FileNotFoundError:  # the first file in its folder, or somebody removed it
            for folder in (self._root, self._base, self._place, target.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(partial, _WRITE, 0o600)
        try:
            try:
                _write_all(descriptor, blob)
            finally:
                os.close(descriptor)
            partial.replace(target)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def get(self, key: bytes, into: Bytes) -> int:
        """See Tier."""
        path = self._path(key)
        descriptor = os.open(path, _READ)
        try:
            stat = os.fstat(descriptor)
            if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
                raise TierError("foreign", f"{path}: others can write it")
            if stat.st_size == len(into):
                _read_all(descriptor, into)
            with suppress(OSError):
                os.utime(descriptor)  # the time of use, for the order after a restart
            return stat.st_size
        finally:
            os.close(descriptor)

    def delete(self, key: bytes) -> None:
        """See Tier."""
        with suppress(FileNotFoundError):
            self._path(key).unlink()

    def clear(self, generation: int) -> None:
        """See Tier."""
        try:
            _write_generation(self._base, generation)
        except OSError:  # for want of room, perhaps: what is forgotten gives some back
            shutil.rmtree(self._place, ignore_errors=True)
            _write_generation(self._base, generation)
        self.generation = generation
        self._remove_other_generations()

    def close(self) -> None:
        """See Tier."""
        os.close(self._lock)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._place / name[:2] / f"{name}{_SUFFIX}"

    def _list(self) -> list[bytes]:
        """Keys of the files that look right, by time of use; what is in them is checked when they are read."""
        found: list[tuple[int, bytes]] = []
        for entry in _files(self._place):
            stat = entry.stat(follow_symlinks=False)
            key = _key_of(entry.name)
            if key is not None and Path(entry.path) != self._path(key):
                key = None  # nobody would look for it there
            if key is not None and stat.st_size == self._blob_bytes:
                found.append((stat.st_mtime_ns, key))
            elif key is not None or entry.name.endswith(_PARTIAL):
                self.findings.torn += 1
                os.unlink(entry.path)
            else:
                self.findings.foreign += 1
        return [key for _, key in sorted(found)]

    def _remove_other_generations(self) -> None:
        for entry in _directories(self._base):
            if entry.name != str(self.generation) and _is_generation(entry.name):
                self.findings.stale += sum(_key_of(file.name) is not None for file in _files(Path(entry.path)))
                shutil.rmtree(entry.path, ignore_errors=True)

    def _make_room_among_others(self) -> int:
        """Bytes that other fingerprints' files take, after the oldest of these had to go."""
        others: list[tuple[float, int, str]] = []
        for entry in _directories(self._root):
            if entry.path != str(self._base) and _is_fingerprint(entry.name):
                others.append((entry.stat(follow_symlinks=False).st_mtime, _tree_bytes(Path(entry.path)), entry.path))
        total = sum(size for _, size, _ in others)
        for _, size, path in sorted(others):
            if total <= self._max_bytes // 2:
                break
            shutil.rmtree(path, ignore_errors=True)
            total -= size
        return total


def _make_private(directory: Path) -> None:
    """Raises: ConfigError, OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = directory.stat()
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
        raise ConfigError(f"kv_disk_path {directory}: others can write there; it must be yours alone (mode 0700)")


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TierInUseError(f"kv_disk_path {path.parent}: another engine uses it; give each its own") from None
    return descriptor


def _read_generation(base: Path) -> int:
    """0 when there is none yet. One that cannot be read is replaced by one above all that left folders."""
    try:
        text = (base / "generation").read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return 0
    if _is_generation(text):
        return int(text)
    fresh = 1 + max((int(entry.name) for entry in _directories(base) if _is_generation(entry.name)), default=0)
    _write_generation(base, fresh)
    return fresh


def _write_generation(base: Path, generation: int) -> None:
    """All or nothing, and durable."""
    _make_private(base)
    partial = base / f"generation{_PARTIAL}"
    descriptor = os.open(partial, _WRITE, 0o600)
    try:
        os.write(descriptor, str(generation).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(base / "generation")
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, blob: Bytes) -> None:
    view = blob.data
    while len(view):
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int, into: Bytes) -> None:
    """Raises: TierError: the file became shorter meanwhile."""
    view = into.data
    while len(view):
        count = os.readv(descriptor, [view])
        if not count:
            raise TierError("torn")
        view = view[count:]


def _key_of(name: str) -> bytes | None:
    """The key that a file's name spells, if it does."""
    if not name.endswith(_SUFFIX):
        return None
    try:
        return bytes.fromhex(name.removesuffix(_SUFFIX))
    except ValueError:
        return None


def _is_generation(text: str) -> bool:
    """What str() makes of a generation; digits of other scripts are none."""
    return text.isascii() and text.isdigit() and len(text) < 19


def _is_fingerprint(name: str) -> bool:
    return len(name) == _NAME_DIGITS and all(digit in "0123456789abcdef" for digit in name)


def _directories(path: Path) -> Iterator["os.DirEntry[str]"]:
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry


def _files(path: Path) -> Iterator["os.DirEntry[str]"]:
    """Files two levels below."""
    for folder in _directories(path):
        with suppress(FileNotFoundError), os.scandir(folder.path) as entries:
            yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _tree_bytes(path: Path) -> int:
    """What the files of a fingerprint take."""
    files = (file for folder in _directories(path) for file in _files(Path(folder)))
    return sum(-(-file.stat(follow_symlinks=False).st_size // _CLUSTER) * _CLUSTER for file in files)
