"""One step's arrays as native code takes them, with the memory its results go to."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo.kernels.cpu.structs import SAMPLING_RECORD, OctavoStep

Integers = NDArray[np.int32]

_WORD = 4  # bytes of an int32 or a float32


class _Room:
    """Memory that arrays are copied to: to ask NumPy where an array lies takes longer than to copy a small one."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._array = np.zeros(0, dtype)
        self._address = 0

    def put(self, values: NDArray[Any]) -> int:
        """Copies [count] values; their address, until the next ones come."""
        count = len(values)
        if count > len(self._array) or not self._address:
            self._array = np.zeros(2 * count + 16, self._array.dtype)
            self._address = self._array.ctypes.data
        self._array[:count] = values
        return self._address


class NativeStep:
    """Owns the result arrays of up to `max_rows` rows, and copies of the step's input arrays.

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
        self._tokens, self._positions, self._types = _Room(np.int32), _Room(np.int32), _Room(np.int32)
        self._starts, self._slots, self._rows = _Room(np.int32), _Room(np.int32), _Room(np.int32)
        self._reads, self._writes = _Room(np.int32), _Room(np.int32)
        self._sampling = _Room(SAMPLING_RECORD)

    @property
    def max_rows(self) -> int:
        """Most sampled rows."""
        return len(self.tokens)

    @property
    def address(self) -> int:
        """Of the OctavoStep."""
        return ctypes.addressof(self.struct)

    def set_tokens(self, token_ids: Integers, positions: Integers, query_starts: Integers, slots: Integers) -> None:
        """The step's tokens and which sequence each belongs to."""
        struct = self.struct
        struct.tokens = len(token_ids)
        struct.sequences = len(slots)
        struct.token_ids = self._tokens.put(token_ids)
        struct.positions = self._positions.put(positions)
        struct.query_starts = self._starts.put(query_starts)
        struct.slots = self._slots.put(slots)

    def set_states(self, reads: Integers, writes: Integers) -> None:
        """Pages of recurrent states [pages, sequences], before the step (-1: none yet) and after it."""
        self.struct.state_reads = self._reads.put(reads.reshape(-1))
        self.struct.state_writes = self._writes.put(writes.reshape(-1))

    def set_types(self, token_types: Integers) -> None:
        """Which of a sequence's texts each token belongs to, [tokens]."""
        self.struct.token_types = self._types.put(token_types)

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
        struct = self.struct
        struct.rows = len(sampled_rows)
        struct.sampled_rows = self._rows.put(sampled_rows)
        struct.sampling = self._sampling.put(sampling)
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
