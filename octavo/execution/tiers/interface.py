"""What a tier behind host memory is: a place that keeps blobs by key, and may fail, lose or spoil them at any time."""

import errno
from typing import Protocol

from octavo.ops.weight import Bytes


class TierError(Exception):
    """A tier could not do what it was asked for. `cause` is a word of `TierEvent.cause`."""

    def __init__(self, cause: str, message: str = "") -> None:
        super().__init__(message or cause)
        self.cause = cause


class Tier(Protocol):
    """A directory, a store on another machine, memory elsewhere. One thread calls it, and waits for it.

    A blob holds everything that is needed to know whether it can be trusted (see envelope.py), so a tier need not
    check anything; it must never mix two blobs into one without that being seen: `put` is all or nothing. Whoever calls
    it keeps it within its size.

    Every call may raise TierError or OSError; the engine goes on without the blob.
    """

    @property
    def name(self) -> str:
        """For metrics and messages; unique among the tiers of an engine, and not "host"."""
        ...

    @property
    def generation(self) -> int:
        """Of what it holds; 0 at first. Survives a restart when the blobs do."""
        ...

    @property
    def capacity(self) -> int:
        """Most blobs that it may hold."""
        ...

    def keys(self) -> list[bytes]:
        """What it holds of its generation, least recently used first. Called once, when it is opened."""
        ...

    def put(self, key: bytes, blob: Bytes) -> None:
        """Keep a blob, instead of an older one of this key if there is one."""
        ...

    def get(self, key: bytes, into: Bytes) -> int:
        """Read a blob. Returns its length, which may be more than `into` has room for.

        Raises:
            TierError: cause "missing": there is none.
        """
        ...

    def delete(self, key: bytes) -> None:
        """Forget a blob, if it is there."""
        ...

    def clear(self, generation: int) -> None:
        """Forget everything, for good: also after a restart nothing put before is found. Sets `generation`."""
        ...

    def close(self) -> None:
        """Nothing more will be asked for."""
        ...


_CAUSES = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EFBIG: "full"}


def cause_of(error: Exception) -> str:
    """The word for what went wrong."""
    if isinstance(error, TierError):
        return error.cause
    if isinstance(error, FileNotFoundError | KeyError):
        return "missing"
    return _CAUSES.get(error.errno or 0, "error") if isinstance(error, OSError) else "error"
