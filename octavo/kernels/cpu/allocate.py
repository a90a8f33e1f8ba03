"""Memory that kernels may use: aligned for the widest vectors, and touched only when it is first written."""

import ctypes
import mmap
import sys

import numpy as np

from octavo.errors import ConfigError
from octavo.ops.weight import Bytes

ALIGNMENT = 64
# Below this an own mapping would waste more than it saves.
_MAPPING_THRESHOLD = 1 << 20
_MS_SYNC = 0x10 if sys.platform == "darwin" else 4  # sys/mman.h


def aligned_bytes(count: int) -> Bytes:
    """`count` bytes, 64-byte aligned, contents undefined."""
    if count >= _MAPPING_THRESHOLD:
        return mapped_bytes(count)
    raw = np.empty(count + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + count]


def mapped_bytes(count: int) -> Bytes:
    """`count` zero bytes of an anonymous mapping: pages take memory only once they are written.

    Raises:
        ConfigError: the system or a limit of this process (ulimit -v, -d) does not grant them.
    """
    try:
        mapping = mmap.mmap(-1, max(count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"{count} bytes of memory cannot be had: {error.strerror}; a smaller --kv-cache-size or "
            "--max-num-batched-tokens needs less, or raise the limit of the process (ulimit -v, -d)"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE") and count >= 4 * _MAPPING_THRESHOLD:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8, count)


def give_back(array: Bytes) -> None:
    """Return the memory of an array's whole pages to the system; it stays usable.

    Memory of an anonymous mapping is zeros afterwards; that of a mapped file is read from the file again.
    """
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and last > first:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")


def write_back(array: Bytes) -> None:
    """Write the pages of an array that lies in a mapped file to the disk; returns when they are there.

    Raises:
        OSError: the disk refuses them.
    """
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = array.ctypes.data + array.nbytes - first
    libc = ctypes.CDLL(None, use_errno=True)  # not mmap.flush, which has every other thread of Python wait
    if libc.msync(ctypes.c_void_p(first), ctypes.c_size_t(length), _MS_SYNC):
        raise OSError(ctypes.get_errno(), "msync")


def is_aligned(array: np.ndarray) -> bool:
    """Whether the array's first byte is 64-byte aligned."""
    return array.ctypes.data % ALIGNMENT == 0
