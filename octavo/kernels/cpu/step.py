"""One step's arrays as native code takes them, with the memory its results go to."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.structs import OctavoStep

Integers = NDArray[np.int32]

_WORD = 4  # bytes of an int32 or a float32


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
        self.mu: NDArray[np.float32] = np.zeros(max_rows, np.float32)
        self.struct = OctavoStep()
        results = (self.tokens, self.logprobs, self.ranks, self.invalid, self.mu)
        self._results = tuple(a.ctypes.data for a in results)
        self._tops = (self.top_ids.ctypes.data, self.top_logprobs.ctypes.data)
        self._kept_states: tuple[Integers, ...] = ()
        self._kept: tuple[object, ...] = ()
        self._kept_types: Integers = np.zeros(0, np.int32)
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

    def set_states(self, reads: Integers, writes: Integers) -> None:
        """Pages of recurrent states [pages, sequences], before the step (-1: none yet) and after it."""
        self._kept_states = tuple(np.ascontiguousarray(pages, np.int32) for pages in (reads, writes))
        self.struct.state_reads, self.struct.state_writes = (pages.ctypes.data for pages in self._kept_states)

    def set_types(self, token_types: Integers) -> None:
        """Which of a sequence's texts each token belongs to, [tokens]."""
        self._kept_types = np.ascontiguousarray(token_types, np.int32)
        self.struct.token_types = self._kept_types.ctypes.data

    def set_top(self, count: int) -> None:
        """Room for the `count` likeliest tokens of each row; at least one, so that no array is empty."""
        width = max(count, 1)
        if self.top_ids.shape[1] < width:
            self.top_ids = np.zeros((self.max_rows, width), np.int32)
            self.top_logprobs = np.zeros((self.max_rows, width), np.float32)
            self._tops = (self.top_ids.ctypes.data, self.top_logprobs.ctypes.data)

    def set_rows(self, sampled_rows: Integers, sampling: NDArray[np.void], first: int = 0) -> None:
        """The sampled rows and their OctavoSampling records; results go to the arrays from row `first` on."""
        assert first + len(sampled_rows) <= self.max_rows, "more sampled rows than there is room for"
        self._kept_rows = (sampled_rows, sampling)
        struct = self.struct
        struct.rows = len(sampled_rows)
        struct.sampled_rows = sampled_rows.ctypes.data
        struct.sampling = sampling.ctypes.data
        offset = _WORD * first
        tokens, logprobs, ranks, invalid, mu = self._results
        struct.out_tokens = tokens + offset
        struct.out_logprobs = logprobs + offset
        struct.out_ranks = ranks + offset
        struct.out_invalid = invalid + offset
        struct.out_mu = mu + offset
        struct.top_stride = self.top_ids.shape[1]
        struct.top_ids = self._tops[0] + offset * struct.top_stride
        struct.top_logprobs = self._tops[1] + offset * struct.top_stride
