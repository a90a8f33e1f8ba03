"""Packs stored matrices into the layout of the native kernels, losslessly."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.kernels.cpu.allocate import aligned_bytes, is_aligned
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.structs import Format, format_code
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.weight import Bytes, PackedWeight, Segment, StoredTensor

PAGE = 4096  # bytes that have a sum of their own
_UNKNOWN_FORMAT = -1


class NativePacker:
    """Implements ops.weight.Packer; a segment's data is Bytes, 64-byte aligned.

    Args:
        check: refuse matrices that hold NaN or infinity.
    """

    def __init__(self, library: NativeLibrary, team: ThreadTeam, check: bool = True) -> None:
        self._library = library
        self._team = team
        self._check = check

    def matrix(self, parts: Sequence[StoredTensor]) -> PackedWeight:
        """Stack `parts` (each [out_i, in]) along the output axis, one segment a part.

        Raises:
            CheckpointError: a part's format, shape, size or contents cannot be packed; names the tensor.
        """
        if not parts:
            raise CheckpointError("a weight needs at least one tensor")
        segments: list[Segment] = []
        for part in parts:
            rows, cols = _matrix_shape(part)
            if cols != parts[0].shape[1]:
                raise CheckpointError(
                    f"{part.name} is {cols} wide, but is stacked on {parts[0].name}: {parts[0].shape}"
                )
            packed = aligned_bytes(self._packed_size(part))
            self.pack_into(part, packed)
            segments.append(Segment(part.format, rows, packed))
        return PackedWeight((sum(segment.rows for segment in segments), parts[0].shape[1]), tuple(segments))

    def quantize(self, stored: StoredTensor, format: str) -> StoredTensor:
        """A matrix of f32, f16 or bf16 rounded to one of quantize.py's targets; how, quantization/quantize.py says.

        Raises:
            CheckpointError: another pair of formats, a width that is no whole number of blocks, or values that are not
                finite.
        """
        rows, cols = _matrix_shape(stored)
        source_code, code = format_code(stored.format), format_code(format)
        if source_code is None or code is None:
            raise CheckpointError(f"{stored.name}: {stored.format} cannot be rounded to {format}")
        self._require_whole(stored, source_code)
        source = np.ascontiguousarray(stored.data)
        self._require_finite(stored.name, source_code, source, rows, cols)
        blocks = aligned_bytes(max(self._library.source_bytes(code, rows, cols), 0))
        call, team = self._library.call, self._team.handle
        failed = call.octavo_quantize(team, source_code, source.ctypes.data, rows, cols, code, blocks.ctypes.data)
        if failed:
            raise CheckpointError(
                f"{stored.name}: cannot round {stored.shape} of {stored.format} to {format} ({failed})"
            )
        return StoredTensor(stored.name, format, stored.shape, blocks)

    def vector(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A contiguous, aligned float32 copy."""
        flat = np.asarray(values, np.float32).reshape(-1)
        copy = aligned_bytes(flat.nbytes).view(np.float32)
        copy[:] = flat
        return copy

    def packed_bytes(self, format: str, rows: int, cols: int) -> int:
        """Bytes of a packed matrix.

        Raises:
            CheckpointError: the format has no kernel, or `cols` is no multiple of its block.
        """
        code = format_code(format)
        size = _UNKNOWN_FORMAT if code is None else self._library.packed_bytes(code, rows, cols)
        if size == _UNKNOWN_FORMAT:
            raise CheckpointError(f"format {format!r} has no native kernel (there are: {', '.join(self.formats())})")
        if size < 0:
            raise CheckpointError(f"{cols} columns do not fit the blocks of format {format!r}")
        return size

    def formats(self) -> tuple[str, ...]:
        """Names of the formats that the library packs, but for those with spans."""
        names = [code.name.lower() for code in Format]
        return tuple(name for name in names if (code := format_code(name)) is not None and self._fits(code))

    def _fits(self, code: int) -> bool:
        """Whether the library has a format; 256 is a multiple of every block."""
        return self._library.packed_bytes(code, 16, 256) >= 0

    def pack_into(self, stored: StoredTensor, destination: Bytes) -> None:
        """Pack one matrix into `destination`: packed_bytes(...) bytes, 64-byte aligned.

        Raises:
            CheckpointError: as `matrix`.
        """
        rows, cols = _matrix_shape(stored)
        size = self._packed_size(stored)
        code = format_code(stored.format)
        assert code is not None
        self._require_whole(stored, code)
        source = np.ascontiguousarray(stored.data)
        if destination.nbytes != size or not destination.flags.c_contiguous or not is_aligned(destination):
            raise ValueError(f"{stored.name} needs {size} contiguous bytes, 64-byte aligned")
        call = self._library.call.octavo_pack_finite if self._check else self._library.call.octavo_pack
        done = call(self._team.handle, code, source.ctypes.data, rows, cols, destination.ctypes.data)
        if done < 0:
            raise CheckpointError(f"{stored.name}: cannot pack {stored.shape} of format {stored.format!r} ({done})")
        if self._check and done < rows:
            raise _not_finite(stored.name, done)
        if stored.order is not None:
            destination[-4 * cols :] = np.ascontiguousarray(stored.order, np.int32).view(np.uint8)

    def page_sums(self, data: Bytes, alone: bool = False) -> NDArray[np.uint64]:
        """The sum of each page of 4,096 bytes, as abi.h says it: as quick as memory, it finds any changed word, page or
        length, and words that changed places unless they differ in their nine highest bits alone.

        Args:
            data: contiguous, whole pages. alone: on the calling thread, while others use the team.
        """
        sums = np.empty(data.nbytes // PAGE, np.uint64)
        team = None if alone else self._team.handle
        self._library.call.octavo_page_sums(team, data.ctypes.data, len(sums), sums.ctypes.data)
        return sums

    def _require_finite(self, name: str, code: int, source: Bytes, rows: int, cols: int) -> None:
        """Refuse damaged values, when asked to look."""
        if not self._check:
            return
        row = self._library.call.octavo_find_invalid(self._team.handle, code, source.ctypes.data, rows, cols)
        if row >= 0:
            raise _not_finite(name, row)

    def _packed_size(self, stored: StoredTensor) -> int:
        """packed_bytes of a tensor, its name in the error."""
        rows, cols = _matrix_shape(stored)
        try:
            return self.packed_bytes(stored.format, rows, cols)
        except CheckpointError as error:
            raise CheckpointError(f"{stored.name}: {error}") from None

    def _require_whole(self, stored: StoredTensor, code: int) -> None:
        """Refuse a tensor whose data is not as long as its shape says: native code would read past it."""
        expected = self._library.source_bytes(code, *_matrix_shape(stored))
        if stored.data.nbytes != expected:
            raise CheckpointError(
                f"{stored.name}: {stored.shape} of format {stored.format!r} takes {expected} bytes, "
                f"the file has {stored.data.nbytes}"
            )


def _not_finite(name: str, row: int) -> CheckpointError:
    return CheckpointError(f"{name}: row {row} holds a NaN or an infinity; the file is damaged")


def _matrix_shape(stored: StoredTensor) -> tuple[int, int]:
    """(rows, cols) of a matrix.

    Raises:
        CheckpointError: it is none, or empty.
    """
    if len(stored.shape) != 2 or math.prod(stored.shape) <= 0:
        raise CheckpointError(f"{stored.name}: a matrix is expected, its shape is {stored.shape}")
    return stored.shape[0], stored.shape[1]
