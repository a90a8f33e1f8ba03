"""A model file in memory: mapped, never copied, and given back page by page once it was read."""

import mmap
from pathlib import Path

import numpy as np

from octavo.errors import CheckpointError, ModelNotFoundError
from octavo.ops.weight import Bytes


class MappedFile:
    """A whole file as read-only bytes. The mapping lives as long as any view of it.

    Raises:
        ModelNotFoundError: no such file.
        CheckpointError: it is empty or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"{path} does not exist") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is empty") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        self.bytes: Bytes = np.frombuffer(self._mapping, np.uint8)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.bytes.nbytes

    def holds(self, view: Bytes) -> bool:
        """Whether `view` is a view of this file."""
        offset = view.ctypes.data - self.bytes.ctypes.data
        return 0 <= offset < self.size

    def release(self, view: Bytes) -> None:
        """Give the pages of `view` back to the system: they no longer count as this process's memory. Reading them
        again is allowed, and reads the file again."""
        start = view.ctypes.data - self.bytes.ctypes.data
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(start + view.nbytes, self.size)
        if end > first and hasattr(self._mapping, "madvise"):
            self._mapping.madvise(mmap.MADV_DONTNEED, first, end - first)
