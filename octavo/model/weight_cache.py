"""Keeps packed weights on disk, so that a model starts by mapping a file: what a cache file is, when one is trusted,
and which are removed.

A file is named by what it was made of. It is written beside its place and moved there when complete; one that is
damaged, foreign or made otherwise is ignored. Layout: magic, header length, header digest, header (JSON: where every
weight lies), data at multiples of 64 bytes, and a sum of each page of the data.
"""

import fcntl
import hashlib
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.allocate import write_back
from octavo.kernels.cpu.library import ABI_VERSION
from octavo.model.weight_plan import LoadPlan
from octavo.ops.weight import Bytes, PackedWeight, Packer, Segment, StoredTensor
from octavo.telemetry.log import logger

# Raised when this file's layout changes; the packed layout itself is counted by ABI_VERSION.
_LAYOUT = 2
_MAGIC = b"OCTAVOWC"
_HEAD_BYTES = 32  # magic 8, header length 8, header digest 16
_ALIGN = 64
_PAGE = 4096
_SUFFIX, _PARTIAL = ".weights", ".partial"
_MAX_HEADER = 64 << 20
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
# A file is written to the disk while this process has little else to do, in pieces, but does not wait forever.
_QUIET_SECONDS, _QUIET_SHARE = 0.1, 0.1  # so long it used no more than this share of one processor
_PATIENCE_SECONDS = 60.0
_PIECE = 64 << 20


@runtime_checkable
class IntoMemoryPacker(Packer, Protocol):
    """A packer whose packed form is plain bytes, written where it is told to."""

    def packed_bytes(self, format: str, rows: int, cols: int) -> int: ...

    def pack_into(self, stored: StoredTensor, destination: Bytes) -> None: ...

    def page_sums(self, data: Bytes, alone: bool = False) -> NDArray[np.uint64]: ...


@dataclass(slots=True)
class CacheCounts:
    """What happened; `reasons` says why files were rejected or not written."""

    hits: int = 0
    misses: int = 0
    rejected: int = 0
    written: int = 0
    evicted: int = 0
    reasons: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """A mapped cache file: matrices by name, as views."""

    matrices: dict[str, PackedWeight]
    data_bytes: int


class WeightCache:
    """The cache of one directory. One owner; other processes may use the same directory.

    Args:
        directory: made when it is first written to, readable by this user alone.
        max_bytes: the most all files together may take.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._writer: threading.Thread | None = None
        self._hurry = threading.Event()
        self.counts = CacheCounts()

    def load(self, key: str, packer: IntoMemoryPacker) -> CachedWeights | None:
        """The weights of `key`, or None when there is no file that can be trusted."""
        path = self._directory / f"{key}{_SUFFIX}"
        try:
            cached = _open(path, key, packer)
        except FileNotFoundError:
            self.counts.misses += 1
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.counts.rejected += 1
            self._note(f"{path}: {error}")
            return None
        self.counts.hits += 1
        with suppress(OSError):
            os.utime(path)  # the time of use, for eviction
        return cached

    def begin(self, key: str, plan: LoadPlan, packer: IntoMemoryPacker) -> "CacheWriter | None":
        """Memory for all of a model's packed weights that becomes the cache file of `key`; None when it cannot be
        written (too large, no space, another process is writing it)."""
        entries, data_bytes = _layout(plan, packer)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            size = _file_bytes(entries, key, data_bytes)
            with self._locked():
                self._remove_orphans()
                if not self._make_room(size):
                    self._note(f"{size} bytes do not fit the cache's {self._max_bytes}")
                    return None
                return CacheWriter(self._directory, key, entries, data_bytes, packer)
        except OSError as error:
            self._note(f"{self._directory}: not written: {error}")
            return None

    def finish(self, writer: "CacheWriter") -> None:
        """Make the file durable and visible, on a thread of its own: neither a start nor the first answers wait for the
        disk. A process that ends writes what is left first."""

        def complete() -> None:
            try:
                writer.complete(lambda: _await_quiet(self._hurry))
                self.counts.written += 1
            except OSError as error:
                self._note(f"{self._directory}: not written: {error}")

        self._writer = threading.Thread(target=complete, name="weight-cache")
        self._writer.start()

    def wait(self) -> None:
        """Return when nothing is being written any more; what is, no longer waits for others."""
        self._hurry.set()
        if self._writer is not None:
            self._writer.join()

    def _note(self, reason: str) -> None:
        """Keep why a file was not used or not made, and tell it: the next start is slower than it could be."""
        self.counts.reasons.append(reason)
        logger("weights").info("weight cache: %s", reason)

    def _files(self) -> list[tuple[float, int, Path]]:
        """(time of use, bytes, path) of each file, least recently used first."""
        found: list[tuple[float, int, Path]] = []
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_blocks * 512, path))
        return sorted(found)

    def _make_room(self, size: int) -> bool:
        """Remove the least recently used files until `size` more bytes fit. A mapped file that is removed stays
        usable for those who mapped it."""
        if size > self._max_bytes:
            return False
        files = self._files()
        total = sum(taken for _, taken, _ in files)
        for _, taken, path in files:
            if total + size <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= taken
            self.counts.evicted += 1
        return True

    def _remove_orphans(self) -> None:
        """Remove what a writer left that died: nobody holds its lock."""
        for path in self._directory.glob(f"*{_PARTIAL}"):
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all processes that change this directory."""
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class CacheWriter:
    """A file being filled. `region` gives the memory of each segment; `complete` makes it a cache file.

    Raises:
        OSError: no space, or another process is writing the same file.
    """

    def __init__(
        self, directory: Path, key: str, entries: list[dict[str, Any]], data_bytes: int, packer: IntoMemoryPacker
    ) -> None:
        self._packer = packer
        self._target = directory / f"{key}{_SUFFIX}"
        self._path = directory / f"{key}{_PARTIAL}"
        self._head = _head(entries, key, data_bytes)
        self._start = _aligned(len(self._head), _PAGE)
        self._data_bytes = data_bytes
        self._entries = {entry["name"]: entry for entry in entries}
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.stat().st_ino != os.fstat(self._descriptor).st_ino:
                raise OSError("another process has just written it")  # between open and lock
            mapping = self._room(self._start + data_bytes)
        except OSError:
            os.close(self._descriptor)
            raise
        self._bytes: Bytes = np.frombuffer(mapping, np.uint8)

    def _room(self, size: int) -> mmap.mmap:
        """The file's memory; nothing is left of the file when there is no space for it."""
        try:
            # Space is taken now: writing to a mapping of a full disk would end the process.
            os.posix_fallocate(self._descriptor, 0, size)
            return mmap.mmap(self._descriptor, size)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise

    def region(self, name: str, index: int) -> Bytes:
        """The memory of segment `index` of matrix `name`, 64-byte aligned."""
        segment = self._entries[name]["segments"][index]
        begin = self._start + segment["offset"]
        return self._bytes[begin : begin + segment["bytes"]]

    def complete(self, pause: Callable[[], None]) -> None:
        """Write data, sums and head to the disk, and move the file to its place. pause: called before each piece."""
        try:
            for start in range(0, len(self._bytes), _PIECE):
                pause()
                write_back(self._bytes[start : start + _PIECE])
            pause()
            sums = self._packer.page_sums(self._bytes[self._start :], alone=True)
            os.pwrite(self._descriptor, self._head, 0)
            os.pwrite(self._descriptor, sums.tobytes(), self._start + self._data_bytes)
            os.fsync(self._descriptor)
            self._path.replace(self._target)
        except OSError:
            self._path.unlink(missing_ok=True)  # the space is wanted, and the mapping in use would keep it locked
            raise
        finally:
            os.close(self._descriptor)

    def abandon(self) -> None:
        """Remove the unfinished file; its memory stays usable."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _await_quiet(hurry: threading.Event) -> None:
    """Return once this process does little, is about to end, was told to hurry, or never does little."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while threading.main_thread().is_alive() and time.monotonic() < end:
        began, used = time.monotonic(), time.process_time()
        if hurry.wait(_QUIET_SECONDS):
            return
        if time.process_time() - used < _QUIET_SHARE * (time.monotonic() - began):
            return


def cache_key(fingerprint: str, plan: LoadPlan) -> str:
    """Names a packed model: the files' content, what becomes of them, and the layouts."""
    digest = hashlib.blake2b(f"{_LAYOUT} {ABI_VERSION} {fingerprint}".encode(), digest_size=20)
    for matrix in plan.matrices:
        for part in matrix.slices:
            described = (part.tensor.name, part.tensor.format, part.source, part.start, part.rows, part.format)
            digest.update(f"{matrix.name} {matrix.columns} {described} {part.pairs} {part.turned}".encode())
    return digest.hexdigest()


def _layout(plan: LoadPlan, packer: IntoMemoryPacker) -> tuple[list[dict[str, Any]], int]:
    """Where every segment lies in the data, and how long the data is (whole pages)."""
    offset = 0
    entries: list[dict[str, Any]] = []
    for matrix in plan.matrices:
        segments: list[dict[str, Any]] = []
        for part in matrix.slices:
            size = packer.packed_bytes(part.format, part.rows, part.columns)
            segments.append({"format": part.format, "rows": part.rows, "offset": offset, "bytes": size})
            offset = _aligned(offset + size, _ALIGN)
        entries.append({"name": matrix.name, "columns": matrix.columns, "segments": segments})
    return entries, _aligned(offset, _PAGE)


def _head(entries: list[dict[str, Any]], key: str, data_bytes: int) -> bytes:
    header = json.dumps({"key": key, "bytes": data_bytes, "matrices": entries}, separators=(",", ":")).encode()
    return b"".join((_MAGIC, len(header).to_bytes(8, "little"), _digest(header), header))


def _file_bytes(entries: list[dict[str, Any]], key: str, data_bytes: int) -> int:
    return _aligned(len(_head(entries, key, data_bytes)), _PAGE) + data_bytes + data_bytes // _PAGE * 8


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _aligned(count: int, step: int) -> int:
    return -(-count // step) * step


def _open(path: Path, key: str, packer: IntoMemoryPacker) -> CachedWeights:
    """Map a file and check it.

    Raises:
        FileNotFoundError: there is none.
        OSError, ValueError, KeyError, TypeError: it cannot be trusted; says why.
    """
    # Not blocking: opening a pipe for reading would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        stat = os.fstat(descriptor)
        if not S_ISREG(stat.st_mode):
            raise ValueError("it is no file")
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
            raise ValueError("other users can write it")
        if stat.st_size < _HEAD_BYTES:
            raise ValueError("it is too short")
        # Every page is read at once, by the sums below: one call brings them in, not a fault for every few.
        mapping = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | _POPULATE, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    data: Bytes = np.frombuffer(mapping, np.uint8)
    header, start = _read_head(data, key)
    size = int(header["bytes"])
    if size % _PAGE or len(data) != start + size + size // _PAGE * 8:
        raise ValueError("its length is not what its header says")
    body = data[start : start + size]
    if not np.array_equal(packer.page_sums(body), data[start + size :].view(np.uint64)):
        raise ValueError("its data is damaged")
    matrices = {entry["name"]: _packed(entry, body) for entry in header["matrices"]}
    return CachedWeights(matrices, size)


def _read_head(data: Bytes, key: str) -> tuple[dict[str, Any], int]:
    """The header, and where the data starts."""
    head = data[:_HEAD_BYTES].tobytes()
    length = int.from_bytes(head[8:16], "little")
    if head[:8] != _MAGIC or length > min(_MAX_HEADER, len(data) - _HEAD_BYTES):
        raise ValueError("it is no weight cache file")
    raw = data[_HEAD_BYTES : _HEAD_BYTES + length].tobytes()
    if _digest(raw) != head[16:32]:
        raise ValueError("its header is damaged")
    header = cast(dict[str, Any], json.loads(raw))
    if header["key"] != key:
        raise ValueError("it was made of other files")
    return header, _aligned(_HEAD_BYTES + length, _PAGE)


def _packed(entry: dict[str, Any], body: Bytes) -> PackedWeight:
    segments: list[Segment] = []
    for segment in cast(Sequence[dict[str, Any]], entry["segments"]):
        begin, size = int(segment["offset"]), int(segment["bytes"])
        if not 0 <= begin <= begin + size <= len(body):
            raise ValueError("a segment lies outside its data")
        segments.append(Segment(str(segment["format"]), int(segment["rows"]), body[begin : begin + size]))
    return PackedWeight((sum(segment.rows for segment in segments), int(entry["columns"])), tuple(segments))
