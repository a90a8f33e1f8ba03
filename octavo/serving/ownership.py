"""Tells which server a stored thing belongs to, and whether that server has ended: a lock held for as long as it lives.

Whoever opens a store that several servers share can so tell which of what is under way has lost its server, also when
that was killed.
"""

import fcntl
import os
import uuid
from contextlib import suppress
from pathlib import Path


class Ownership:
    """This server's lock beside a store.

    Args:
        path: the store's file; None: nobody shares it.

    Raises:
        OSError: no file can be made there.
    """

    def __init__(self, path: Path | None) -> None:
        self.owner = uuid.uuid4().hex
        self._path = path
        self._lock: int | None = None
        if path is not None:
            self._lock = os.open(self._file(self.owner), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def ended(self, owner: str) -> bool:
        """Another server, by its name, has ended; its lock goes."""
        if owner == self.owner or self._path is None:
            return False
        file = self._file(owner)
        try:
            with open(file, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        with suppress(OSError):
            file.unlink()
        return True

    def close(self) -> None:
        """This server ends."""
        if self._lock is not None:
            self._file(self.owner).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _file(self, owner: str) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}.{owner}.lock")
