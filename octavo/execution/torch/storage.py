"""Keys and values of the PyTorch reference, in the same blocks and tables as every other backend's."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.execution.torch.cache_types import Coded, code_dtype, decode, encode, scale_groups
from octavo.ops.interface import LayerCache


class TorchStore:
    """PagedStore over tensors [blocks, block_size, kv_heads, head_dim] and their scales, a pair of both a layer.

    Each layer has room for every block of the pool; memory that is never written is never touched.

    Args:
        num_blocks: size of the pool.
        block_size: tokens a block holds.
        dtype: how keys and values are kept.
        kept: the same for layers that differ, by group and index in it.
    """

    def __init__(
        self, num_blocks: int, block_size: int, dtype: str, kept: Mapping[tuple[int, int], str] | None = None
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._dtype = dtype
        self._kept = kept or {}
        self._pools: dict[LayerCache, tuple[Coded, Coded]] = {}
        self._states: dict[tuple[LayerCache, int], Tensor] = {}  # [blocks, ...] of each piece, float32
        self._tables: NDArray[np.int32] = np.zeros((0, 0, 0), np.int32)
        self._reads: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        self._writes: NDArray[np.int32] = np.zeros((0, 0), np.int32)

    def use_tables(self, tables: NDArray[np.int32]) -> None:
        """Block tables of the coming step, [groups, slots, max_blocks]."""
        self._tables = tables

    def use_states(self, reads: NDArray[np.int32], writes: NDArray[np.int32]) -> None:
        """Pages of the coming step's recurrent states, [pages, sequences]: before it (-1: none) and after it."""
        self._reads, self._writes = reads, writes

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of every layer."""
        for pair in self._pools.values():
            for pool in pair:
                pool.codes[target] = pool.codes[source]
                pool.scales[target] = pool.scales[source]
        for pieces in self._states.values():
            pieces[target] = pieces[source]

    def write(self, cache: LayerCache, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """k, v: [count, kv_heads, head_dim] at positions start.. ."""
        place = self._places(cache, slot, start, start + k.shape[0])
        for pool, rows in zip(self._pool(cache, k, v), (k, v), strict=True):
            coded = encode(rows, self.type_of(cache))
            pool.codes[place] = coded.codes
            pool.scales[place] = coded.scales

    def read(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Positions start..end, [end - start, kv_heads, head_dim] each, float32."""
        keys, values = self.coded(cache, slot, start, end)
        type = self.type_of(cache)
        return decode(keys, type), decode(values, type)

    def read_state(self, cache: LayerCache, piece: int, sequence: int, shape: tuple[int, int]) -> Tensor:
        """See PagedStore."""
        page = int(self._reads[cache.pieces[piece].page, sequence])
        return torch.zeros(shape) if page < 0 else self._states[cache, piece][page].clone()

    def write_state(self, cache: LayerCache, piece: int, sequence: int, values: Tensor) -> None:
        """See PagedStore."""
        page = int(self._writes[cache.pieces[piece].page, sequence])
        if (cache, piece) not in self._states:
            self._states[cache, piece] = torch.zeros((self._num_blocks, *values.shape))
        self._states[cache, piece][page] = values

    def coded(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Coded, Coded]:
        """Positions start..end as they are kept."""
        place = self._places(cache, slot, start, end)
        keys, values = self._pools[cache]
        return Coded(keys.codes[place], keys.scales[place]), Coded(values.codes[place], values.scales[place])

    def type_of(self, cache: LayerCache) -> str:
        """How a layer's keys and values are kept."""
        return self._kept.get((cache.group, cache.index), self._dtype)

    def _pool(self, cache: LayerCache, k: Tensor, v: Tensor) -> tuple[Coded, Coded]:
        if cache not in self._pools:
            keys, values = (self._empty(rows.shape[1:], self.type_of(cache)) for rows in (k, v))
            self._pools[cache] = (keys, values)
        return self._pools[cache]

    def _empty(self, shape: Sequence[int], type: str) -> Coded:
        """Zeros for all blocks; a token is [heads, width]."""
        heads, width = shape
        front = (self._num_blocks, self._block_size, heads)
        scales = torch.zeros((*front, scale_groups(type, width)), dtype=torch.bfloat16)
        return Coded(torch.zeros((*front, width), dtype=code_dtype(type)), scales)

    def _places(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        positions = np.arange(start, end)
        blocks = self._tables[cache.group, slot, positions // self._block_size]
        return torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(positions % self._block_size)
