"""The memory behind the KV cache's blocks: one pool of pages, which takes memory only as blocks are used."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError
from octavo.kernels.cpu.allocate import give_back, mapped_bytes
from octavo.kernels.cpu.cache import CachePart, NativeCache
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.ops.weight import Bytes


class CpuStorage:
    """`blocks` pages of `page_bytes`. Mutable; the runner owns it.

    Raises:
        ConfigError: the address space does not hold so many.
    """

    def __init__(self, blocks: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        try:
            self._pool = mapped_bytes(blocks * page_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"a KV cache of {blocks} blocks of {page_bytes} bytes cannot be had: {error}") from error
        self._pages = self._pool.reshape(blocks, page_bytes)

    def page(self, which: int | slice) -> Bytes:
        """The bytes of a page, or of several [pages, page_bytes]."""
        return self._pages[which]

    def copy(self, source: int, target: int) -> None:
        """Copy one page's contents."""
        self._pages[target] = self._pages[source]

    def read_page(self, block: int, into: Bytes) -> None:
        """See DevicePages."""
        into[:] = self._pages[block]

    def write_page(self, block: int, page: Bytes) -> None:
        """See DevicePages."""
        self._pages[block] = page

    def release(self) -> None:
        """Give all memory back to the system; the contents are lost."""
        give_back(self._pool)

    def cache(
        self,
        dtype: str,
        block_size: int,
        tables: NDArray[np.int32],
        parts: Mapping[tuple[int, int], CachePart] | None = None,
    ) -> NativeCache:
        """The pool with its block tables [groups, slots, max_blocks], as native code takes it.

        Args:
            dtype: of keys and values of layers that are not in `parts`.
            parts: where in a page layers are, by group and index, and how they are kept.
        """
        return NativeCache(CACHE_FORMAT_OF_DTYPE[dtype], block_size, self.page_bytes, self._pool, tables, parts or {})
