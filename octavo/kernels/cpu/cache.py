"""The paged cache as native code sees it: a pool of pages and the block tables of all slots."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.allocate import is_aligned
from octavo.kernels.cpu.structs import CacheType, OctavoCache
from octavo.ops.weight import Bytes


@dataclass(frozen=True, slots=True)
class CachePart:
    """How a layer's keys and values are kept, and at which byte of a page they begin."""

    type: CacheType
    offset: int


@dataclass(frozen=True, slots=True)
class NativeCache:
    """Memory and shape of a cache.

    pool: [blocks * page_bytes], 64-byte aligned. tables: [groups, slots, max_blocks] int32 block numbers. `parts` has
    the layers' places in a page by (group, index); a layer that is not in it is kept as `format`, and all layers before
    it in its group take as much as it does.
    """

    format: CacheType
    block_size: int
    page_bytes: int
    pool: Bytes
    tables: NDArray[np.int32]
    parts: Mapping[tuple[int, int], CachePart] = field(default_factory=dict[tuple[int, int], CachePart])

    def __post_init__(self) -> None:
        _require(self.block_size > 0 and self.page_bytes > 0, "block and page sizes must be positive")
        _require(self.page_bytes % 64 == 0, f"pages must be a multiple of 64 bytes, not {self.page_bytes}")
        _require(self.pool.nbytes % self.page_bytes == 0, "the pool must hold whole pages")
        _require(self.pool.flags.c_contiguous and is_aligned(self.pool), "the pool must be contiguous and aligned")
        _require(
            self.tables.ndim == 3 and self.tables.dtype == np.int32, "tables are [groups, slots, max_blocks] int32"
        )
        _require(self.tables.flags.c_contiguous, "tables must be contiguous")

    @property
    def groups(self) -> int:
        """Cache groups."""
        return self.tables.shape[0]

    def part(self, group: int, index: int, layer_bytes: Callable[[CacheType], int]) -> CachePart | None:
        """Where a layer is; None when a page ends before.

        Args:
            layer_bytes: what the layer takes when it is kept as a type.
        """
        part = self.parts.get((group, index), CachePart(self.format, index * layer_bytes(self.format)))
        size = layer_bytes(part.type)
        return part if size > 0 and part.offset % 64 == 0 and part.offset + size <= self.page_bytes else None

    @property
    def blocks(self) -> int:
        """Pages in the pool."""
        return self.pool.nbytes // self.page_bytes

    def struct(self) -> ctypes.Structure:
        """For native code; valid as long as the arrays are alive."""
        groups, slots, max_blocks = self.tables.shape
        return OctavoCache(
            format=self.format,
            block_size=self.block_size,
            groups=groups,
            slots=slots,
            max_blocks=max_blocks,
            page_bytes=self.page_bytes,
            blocks=self.blocks,
            pool=self.pool.ctypes.data,
            tables=self.tables.ctypes.data,
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
