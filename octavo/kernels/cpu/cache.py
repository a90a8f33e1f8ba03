"""The paged cache as native code sees it: a pool of pages and the block tables of all slots."""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.allocate import is_aligned
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE, Format, OctavoCache
from octavo.ops.weight import Bytes


@dataclass(frozen=True, slots=True)
class NativeCache:
    """Memory and shape of a cache.

    pool: [blocks * page_bytes], 64-byte aligned. tables: [groups, slots, max_blocks] int32 block numbers.
    """

    format: Format
    block_size: int
    page_bytes: int
    pool: Bytes
    tables: NDArray[np.int32]

    def __post_init__(self) -> None:
        _require(
            self.format in CACHE_FORMAT_OF_DTYPE.values(),
            f"keys and values cannot be kept as {self.format.name.lower()}",
        )
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
