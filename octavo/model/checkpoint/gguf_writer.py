"""Writes a GGUF file, version 3: metadata and the tensors' places first, then each tensor as it comes.

Format: ggml's docs/gguf.md.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.quantization.format import FORMATS, stored_bytes

_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64 = 4, 5, 6, 7, 8, 9, 10, 11
_PACKED = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?", _UINT64: "<Q", _INT64: "<q"}

Scalar = bool | int | float | str
Metadata = Mapping[str, Scalar | Sequence[Scalar]]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor to come: [out, in] or [width], in a format of `quantization.format`."""

    name: str
    format: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """What its data takes."""
        return stored_bytes(FORMATS[self.format], self.shape)


def file_bytes(metadata: Metadata, tensors: Sequence[TensorInfo]) -> int:
    """Length of the whole file."""
    return _aligned(len(_head(metadata, tensors))) + sum(_aligned(tensor.bytes) for tensor in tensors)


class GgufWriter:
    """A file being written. `add` takes the tensors' data in the order in which they were announced.

    It has its whole length from the start, so what was added can be read after `flush`; the rest is zeros.
    """

    def __init__(self, path: Path, metadata: Metadata, tensors: Sequence[TensorInfo]) -> None:
        self._tensors = list(tensors)
        self._next, self._written = 0, 0
        self._file = path.open("xb")
        head = _head(metadata, tensors)
        self._file.write(head + bytes(_aligned(len(head)) - len(head)))
        self.flush()
        self._file.truncate(file_bytes(metadata, tensors))

    def add(self, data: NDArray[np.generic]) -> None:
        """The next bytes of the tensor at hand: a whole tensor, or a part of its rows."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._file.write(raw.data)
        self._written += raw.nbytes
        expected = self._tensors[self._next].bytes
        if self._written > expected:
            raise ValueError(f"{self._tensors[self._next].name} takes {expected} bytes, not {self._written}")
        if self._written == expected:
            self._file.write(bytes(_aligned(expected) - expected))
            self._next, self._written = self._next + 1, 0

    def flush(self) -> None:
        """Let readers of the file see what was added."""
        self._file.flush()

    def finish(self) -> None:
        """Close the file; all tensors must be there."""
        self._file.close()
        if self._next < len(self._tensors):
            raise ValueError(f"{self._tensors[self._next].name} is not complete")

    def close(self) -> None:
        """Give up: the file stays as it is."""
        self._file.close()


def _head(metadata: Metadata, tensors: Sequence[TensorInfo]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind = _kind(value)
        parts += [_text(key), struct.pack("<I", kind), _value(kind, value)]
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1]
        parts += [_text(tensor.name), struct.pack("<I", len(shape)), struct.pack(f"<{len(shape)}Q", *shape)]
        parts.append(struct.pack("<IQ", FORMATS[tensor.format].number, offset))
        offset += _aligned(tensor.bytes)
    return b"".join(parts)


def _kind(value: object) -> int:
    """A value's type number. Whole numbers are uint32 where they fit; those of arrays, which may be mixed, int32."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _UINT32 if 0 <= value < 1 << 32 else _INT64 if value < 0 else _UINT64
    if isinstance(value, float):
        return _FLOAT32
    return _STRING if isinstance(value, str) else _ARRAY


def _value(kind: int, value: object) -> bytes:
    if kind == _STRING:
        return _text(cast(str, value))
    if kind != _ARRAY:
        return struct.pack(_PACKED[kind], value)
    items = cast("Sequence[object]", value)
    # A list of none is of texts: a tokenizer's merges are the one that may be empty, and readers look at the type.
    inner = _kind(items[0]) if items else _STRING
    inner = _INT32 if inner in (_UINT32, _INT64) else inner
    head = struct.pack("<IQ", inner, len(items))
    if inner == _STRING:
        return head + b"".join([_text(cast(str, item)) for item in items])
    return head + struct.pack(f"<{len(items)}{_PACKED[inner][1]}", *items)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return struct.pack("<Q", len(raw)) + raw


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
