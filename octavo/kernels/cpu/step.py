"""One step's arrays as native code takes them, with the memory its results go to."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.structs import OctavoStep

Integers = NDArray[np.int32]


class NativeStep:
    """Owns the result arrays of up to `max_rows` rows and points at the step's input arrays.

    Not for two steps at a time: the next `set_*` and run overwrite.
    """

    def __init__(self, max_rows: int) -> None:
        self.tokens: Integers = np.zeros(max_rows, np.int32)
        self.logprobs: NDArray[np.float32] = np.zeros(max_rows, np.float32)
        self.ranks: Integers = np.zeros(max_rows, np.int32)
        self.invalid: Integers = np.zeros(max_rows, np.int32)
        self.top_ids: Integers = np.zeros((max_rows, 1), np.int32)
        self.top_logprobs: NDArray[np.float32] = np.zeros((max_rows, 1), np.float32)
        self.struct = OctavoStep(
            out_tokens=self.tokens.ctypes.data,
            out_logprobs=self.logprobs.ctypes.data,
            out_ranks=self.ranks.ctypes.data,
            out_invalid=self.invalid.ctypes.data,
        )
        self.set_top(0)
        self._kept: tuple[object, ...] = ()
        self._kept_rows: tuple[object, ...] = ()

    @property
    def max_rows(self) -> int:
        """Most sampled rows."""
        return len(self.tokens)

    @property
    def address(self) -> int:
        """Of the OctavoStep."""
        return ctypes.addressof(self.struct)

    def set_tokens(self, token_ids: Integers, positions: Integers, query_starts: Integers, slots: Integers) -> None:
        """The step's tokens and which sequence each belongs to; contiguous int32 arrays."""
        self._kept = (token_ids, positions, query_starts, slots)
        struct = self.struct
        struct.tokens = len(token_ids)
        struct.sequences = len(slots)
        struct.token_ids = token_ids.ctypes.data
        struct.positions = positions.ctypes.data
        struct.query_starts = query_starts.ctypes.data
        struct.slots = slots.ctypes.data

    def set_rows(self, sampled_rows: Integers, sampling: NDArray[np.void]) -> None:
        """The sampled rows and their OctavoSampling records; at most `max_rows`."""
        assert len(sampled_rows) <= self.max_rows, "more sampled rows than there is room for"
        self._kept_rows = (sampled_rows, sampling)
        self.struct.rows = len(sampled_rows)
        self.struct.sampled_rows = sampled_rows.ctypes.data
        self.struct.sampling = sampling.ctypes.data

    def set_top(self, count: int) -> None:
        """Room for the `count` likeliest tokens of each row; at least one, so that no array is empty."""
        width = max(count, 1)
        if self.top_ids.shape[1] < width:
            self.top_ids = np.zeros((self.max_rows, width), np.int32)
            self.top_logprobs = np.zeros((self.max_rows, width), np.float32)
        self.struct.top_stride = self.top_ids.shape[1]
        self.struct.top_ids = self.top_ids.ctypes.data
        self.struct.top_logprobs = self.top_logprobs.ctypes.data
