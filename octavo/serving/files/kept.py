"""What the server knows of files: the store, behind a thread of its own, opened when it is first needed."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from octavo.errors import UnsupportedError
from octavo.serving.files.store import FileStore

T = TypeVar("T")


class Files:
    """Owner: the event loop.

    Args:
        root: the directory; None keeps nothing.
        most_bytes: of all files together.
        largest: bytes of one file.
    """

    def __init__(self, root: Path | None = None, most_bytes: int = 0, largest: int = 0) -> None:
        self.largest = largest
        self._root, self._most_bytes = root, most_bytes
        self._store: FileStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-files")

    @property
    def keeps(self) -> bool:
        """Anything is kept."""
        return self._root is not None

    @property
    def exists(self) -> bool:
        """There may be something from before."""
        return self._root is not None and self._root.is_dir()

    def open(self) -> FileStore:
        """The store.

        Raises:
            UnsupportedError: nothing is kept.
            ConfigError: it cannot be used.
        """
        if self._root is None:
            raise UnsupportedError("this server keeps no files and runs no batches (--file-store none)")
        if self._store is None:
            self._store = FileStore(self._root, self._most_bytes)
        return self._store

    async def call(self, work: Callable[[FileStore], T]) -> T:
        """The result of work on the store; one at a time.

        Raises:
            OctavoError: as `open` and the work do.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self.open()))

    async def close(self) -> None:
        """No more is kept or read."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(Exception):
                await asyncio.get_running_loop().run_in_executor(self._thread, store.close)
        self._thread.shutdown(wait=False)
