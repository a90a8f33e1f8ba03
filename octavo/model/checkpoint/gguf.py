"""Reads GGUF files, versions 2 and 3, little endian: every count, length, offset and type is checked against the file.

Format: ggml's docs/gguf.md. Shapes are turned round to [out, in]; tensors are views of the mapping.
"""

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.mapped import MappedFile
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMAT_OF_NUMBER, stored_bytes

MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Type number -> numpy type of a fixed-size value.
_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_LEAST_ENTRY_BYTES = 13  # key length, empty key, type, one byte: bounds the counts before anything is allocated
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufContents:
    """A read file. Metadata values are int, float, bool, str, or lists of them."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(file: MappedFile) -> GgufContents:
    """Parse a file.

    Raises:
        CheckpointError: the file is truncated or contradicts itself; names the field or tensor.
        UnsupportedError: version 1, big endian, or a tensor type this build does not know.
    """
    cursor = _Cursor(file)
    if cursor.take(4, "the magic number").tobytes() != MAGIC:
        raise CheckpointError(f"{file.path} is no GGUF file (it does not begin with 'GGUF')")
    version = cursor.number("<u4", "the version")
    if version not in (2, 3):
        kind = "big endian" if int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3) else f"version {version}"
        raise UnsupportedError(f"{file.path}: GGUF {kind}; versions 2 and 3, little endian, are read")
    tensor_count = cursor.count("the tensor count", _LEAST_TENSOR_BYTES)
    entry_count = cursor.count("the metadata count", _LEAST_ENTRY_BYTES)
    metadata: dict[str, Any] = {}
    for index in range(entry_count):
        key = cursor.string(f"the key of metadata entry {index}")
        if key in metadata:
            raise CheckpointError(f"{file.path}: metadata {key} is there twice")
        kind = cursor.number("<u4", f"the type of metadata {key}")
        metadata[key] = cursor.value(kind, f"metadata {key}")
    return GgufContents(version, metadata, _read_tensors(cursor, tensor_count, metadata))


def _read_tensors(cursor: "_Cursor", count: int, metadata: dict[str, Any]) -> dict[str, StoredTensor]:
    """Tensor infos, then a view of each tensor's data."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise CheckpointError(f"{cursor.path}: general.alignment is {alignment!r}, not a power of two")
    infos = [_read_info(cursor, index) for index in range(count)]
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, shape, number, offset in infos:
        if name in tensors:
            raise CheckpointError(f"{cursor.path}: tensor {name} is there twice")
        tensors[name], size = _view(cursor, name, shape, number, start, offset)
        if offset % alignment:
            raise CheckpointError(f"{cursor.path}: tensor {name} at {offset} is not aligned to {alignment} bytes")
        spans.append((offset, offset + size, name))
    spans.sort()
    for (_, end, name), (begin, _, following) in itertools.pairwise(spans):
        if begin < end:
            raise CheckpointError(f"{cursor.path}: tensors {name} and {following} overlap")
    return tensors


def _read_info(cursor: "_Cursor", index: int) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape as [out, in], type number, offset in the data)."""
    name = cursor.string(f"the name of tensor {index}")
    what = f"tensor {name}"
    dimensions = cursor.number("<u4", f"the number of dimensions of {what}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise CheckpointError(f"{cursor.path}: {what} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    lengths = [cursor.number("<u8", f"the shape of {what}") for _ in range(dimensions)]
    if any(length == 0 for length in lengths):
        raise CheckpointError(f"{cursor.path}: {what} has the empty shape {lengths[::-1]}")
    return name, tuple(reversed(lengths)), cursor.number("<u4", f"the type of {what}"), cursor.number("<u8", what)


def _view(
    cursor: "_Cursor", name: str, shape: tuple[int, ...], number: int, start: int, offset: int
) -> tuple[StoredTensor, int]:
    """The tensor as a view of the file, and its length in bytes."""
    format = FORMAT_OF_NUMBER.get(number)
    if format is None:
        raise UnsupportedError(f"{cursor.path}: tensor {name} has the unknown type number {number}")
    try:
        size = stored_bytes(format, shape)
    except ValueError as error:
        raise CheckpointError(f"{cursor.path}: tensor {name}, {format.name}: {error}") from error
    begin, end = start + offset, start + offset + size
    if end > cursor.size:
        raise CheckpointError(
            f"{cursor.path}: tensor {name} should end at byte {end}, but the file has {cursor.size} "
            "(truncated or damaged)"
        )
    return StoredTensor(name, format.name, shape, cursor.bytes[begin:end]), size


class _Cursor:
    """Walks through the head of a file; every read says what it is for, and none leaves the file."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.bytes = file.bytes
        self.size = file.size
        self.offset = 0

    def take(self, count: int, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The next `count` bytes."""
        if count > self.size - self.offset:
            raise CheckpointError(
                f"{self.path}: {what} takes {count} bytes at {self.offset}, but the file ends at {self.size} "
                "(truncated or damaged)"
            )
        begin, self.offset = self.offset, self.offset + count
        return self.bytes[begin : self.offset]

    def number(self, kind: str, what: str) -> int:
        """One integer."""
        return int(self.take(int(kind[2]), what).view(kind)[0])

    def count(self, what: str, least_bytes: int) -> int:
        """A number of things that each take at least `least_bytes` of the rest of the file."""
        count = self.number("<u8", what)
        if count > (self.size - self.offset) // least_bytes:
            raise CheckpointError(
                f"{self.path}: {what} is {count}, more than the file's {self.size} bytes can hold (damaged)"
            )
        return count

    def string(self, what: str) -> str:
        """A length and that many bytes of UTF-8."""
        raw = self.take(self.number("<u8", f"the length of {what}"), what).tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not valid UTF-8") from error

    def value(self, kind: int, what: str, nesting: int = 0) -> Any:
        """A metadata value of type number `kind`."""
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            if nesting >= _MAX_NESTING:
                raise CheckpointError(f"{self.path}: {what} nests arrays more than {_MAX_NESTING} deep")
            return self._array(what, nesting)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise CheckpointError(f"{self.path}: {what} has the unknown type number {kind}")
        value = self.take(int(scalar[2]), what).view(scalar)[0].item()
        return bool(value) if kind == _BOOL else value

    def _array(self, what: str, nesting: int) -> list[Any]:
        kind = self.number("<u4", f"the element type of {what}")
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            count = self.count(f"the length of {what}", int(scalar[2]))
            values = self.take(count * int(scalar[2]), what).view(scalar).tolist()
            return [bool(value) for value in values] if kind == _BOOL else values
        if kind not in (_STRING, _ARRAY):
            raise CheckpointError(f"{self.path}: {what} has the unknown element type number {kind}")
        count = self.count(f"the length of {what}", 8)
        if kind == _STRING:
            return self._strings(count, what)
        return [self.value(kind, f"{what}[{index}]", nesting + 1) for index in range(count)]

    def _strings(self, count: int, what: str) -> list[str]:
        """Vocabularies have 10^5 entries: this is the one loop of the reader that must be quick."""
        window = self.bytes.data
        unpack: Callable[[memoryview, int], tuple[int]] = struct.Struct("<Q").unpack_from  # type: ignore[assignment]
        strings: list[str] = []
        append = strings.append
        offset, size = self.offset, self.size
        for _ in range(count):
            if offset + 8 > size:
                break
            begin = offset + 8
            offset = begin + unpack(window, offset)[0]
            if offset > size:
                break
            append(str(window[begin:offset], "utf-8", "replace"))
        if len(strings) < count:
            raise CheckpointError(f"{self.path}: {what}[{len(strings)}] goes beyond the end of the file (truncated)")
        self.offset = offset
        return strings
