"""Keys and values of the PyTorch reference, in the same blocks and tables as every other backend's."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.ops.interface import LayerCache


class TorchStore:
    """PagedStore over tensors [blocks, block_size, kv_heads, head_dim], one pair a layer.

    Each layer has room for every block of the pool; memory that is never written is never touched.

    Args:
        num_blocks: size of the pool.
        block_size: tokens a block holds.
        dtype: "float32", "float16" or "bfloat16".
    """

    def __init__(self, num_blocks: int, block_size: int, dtype: str) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._pools: dict[LayerCache, tuple[Tensor, Tensor]] = {}
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
        for keys, values in self._pools.values():
            keys[target] = keys[source]
            values[target] = values[source]
        for pieces in self._states.values():
            pieces[target] = pieces[source]

    def write(self, cache: LayerCache, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """k, v: [count, kv_heads, head_dim] at positions start.. ."""
        keys, values = self._pool(cache, k, v)
        block, offset = self._places(cache, slot, start, start + k.shape[0])
        keys[block, offset] = k.to(self._dtype)
        values[block, offset] = v.to(self._dtype)

    def read(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Positions start..end, [end - start, kv_heads, head_dim] each, float32."""
        keys, values = self._pools[cache]
        block, offset = self._places(cache, slot, start, end)
        return keys[block, offset].float(), values[block, offset].float()

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

    def _pool(self, cache: LayerCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache not in self._pools:
            front = (self._num_blocks, self._block_size)
            keys, values = (torch.zeros((*front, *rows.shape[1:]), dtype=self._dtype) for rows in (k, v))
            self._pools[cache] = (keys, values)
        return self._pools[cache]

    def _places(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        positions = np.arange(start, end)
        blocks = self._tables[cache.group, slot, positions // self._block_size]
        return torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(positions % self._block_size)
