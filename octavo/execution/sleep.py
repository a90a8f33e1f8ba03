"""What an engine lets go of while it sleeps, and how that comes back at the same addresses.

Programs hold addresses of weights and cache, so nothing is ever moved: pages are given back to the system under them.
The cache comes back as zeros. Weights that are mapped from a file come back from that file by themselves; others are
loaded again, into their old place.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.kernels.cpu.allocate import give_back
from octavo.ops.weight import Bytes

Part = Literal["weights", "kv_cache"]
PARTS: tuple[Part, ...] = ("weights", "kv_cache")

# What each level lets go of; 0 is awake.
LEVELS: tuple[frozenset[Part], ...] = (frozenset(), frozenset({"kv_cache"}), frozenset(PARTS))

_MADV_POPULATE_READ = 22  # linux/mman.h, since Linux 5.14


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A range of this process's addresses."""

    start: int
    end: int
    from_file: bool


class SleepingMemory:
    """The memory of one engine. Owner: the worker.

    Args:
        release_cache: gives the cache's memory back.
        weights: every packed matrix.
        reload: loads all of `weights` again, in the same order, elsewhere.
    """

    def __init__(
        self, release_cache: Callable[[], None], weights: Sequence[Bytes], reload: Callable[[], Sequence[Bytes]]
    ) -> None:
        self.asleep: frozenset[Part] = LEVELS[0]
        self._release_cache = release_cache
        self._weights = tuple(weights)
        self._reload = reload
        self._lost: list[int] = []  # which weights have to be loaded again

    def sleep(self, level: int) -> None:
        """Let go of what the level says, as far as that has not happened yet."""
        parts = LEVELS[level] - self.asleep
        if "kv_cache" in parts:
            self._release_cache()
        if "weights" in parts:
            self._release_weights()
        self.asleep |= parts

    def wake(self, parts: Iterable[Part]) -> None:
        """Bring parts back.

        Raises:
            UserError: weights that have to be loaded again are not there any more.
        """
        parts = self.asleep & frozenset(parts)
        if "weights" in parts:
            self._restore_weights()
        self.asleep -= parts

    def _release_weights(self) -> None:
        files = _by_file(_mappings(), self._weights)
        for arrays in files.values():
            first, last = _span(arrays)
            _advise(first, last - first, mmap.MADV_DONTNEED)
        mapped = {id(array) for arrays in files.values() for array in arrays}
        self._lost = [number for number, array in enumerate(self._weights) if id(array) not in mapped]
        for number in self._lost:
            give_back(self._weights[number])

    def _restore_weights(self) -> None:
        if self._lost:
            loaded = self._reload()
            for number in self._lost:
                self._weights[number][:] = loaded[number]
            self._lost.clear()
        for arrays in _by_file(_mappings(), self._weights).values():
            first, last = _span(arrays)
            # Not needed, but the first step need not wait for the disk then; older kernels don't know it.
            _advise(first, last - first, _MADV_POPULATE_READ, quietly=True)


def _mappings() -> list[_Mapping]:
    """Of this process, as /proc/self/maps tells; none where there is no such thing."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found: list[_Mapping] = []
    for line in lines:
        addresses, _, _, _, inode = line.split()[:5]
        start, end = (int(address, 16) for address in addresses.split("-"))
        found.append(_Mapping(start, end, inode != "0"))
    return found


def _find(mappings: Iterable[_Mapping], array: Bytes) -> _Mapping | None:
    """The mapping that all of an array lies in."""
    start, end = array.ctypes.data, array.ctypes.data + array.nbytes
    return next((one for one in mappings if one.start <= start and end <= one.end), None)


def _by_file(mappings: Sequence[_Mapping], arrays: Iterable[Bytes]) -> dict[_Mapping, list[Bytes]]:
    """The arrays that are mapped from files, by mapping."""
    found: dict[_Mapping, list[Bytes]] = {}
    for array in arrays:
        mapping = _find(mappings, array)
        if mapping is not None and mapping.from_file:
            found.setdefault(mapping, []).append(array)
    return found


def _span(arrays: Iterable[Bytes]) -> tuple[int, int]:
    """The pages that arrays of one mapping touch: a page that is shared with something else comes back as well."""
    starts, ends = zip(*((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays), strict=True)
    size = mmap.PAGESIZE
    return min(starts) // size * size, -(-max(ends) // size) * size


def _advise(first: int, count: int, advice: int, quietly: bool = False) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(count), advice) and not quietly:
        raise OSError(ctypes.get_errno(), "madvise")
