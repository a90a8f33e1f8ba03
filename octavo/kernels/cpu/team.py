"""Owns one native thread team: persistent threads, parked when idle."""

import ctypes
import os
import weakref
from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.kernels.cpu.library import NativeLibrary


class ThreadTeam:
    """`threads` native threads, the caller included. One caller at a time.

    Args:
        threads: how many.
        cpus: CPU number each thread is pinned to; None leaves placement to the system.

    Raises:
        ConfigError: a number is out of range, or no thread can be started.
    """

    def __init__(self, library: NativeLibrary, threads: int, cpus: Sequence[int] | None = None) -> None:
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, not {threads}")
        if cpus is not None and len(cpus) != threads:
            raise ConfigError(f"{threads} threads cannot be pinned to {len(cpus)} CPUs: give one CPU a thread")
        pinned = None if cpus is None else (ctypes.c_int32 * threads)(*cpus)
        handle = library.call.octavo_team_create(threads, pinned)
        if not handle:
            raise ConfigError(f"cannot start {threads} native threads; ask for fewer with --threads")
        self.handle: int = handle
        self.threads: int = library.call.octavo_team_threads(handle)
        # Runs at close(), at garbage collection or at exit: whichever comes first.
        self._finalizer = weakref.finalize(self, _destroy, library, handle, os.getpid())

    def close(self) -> None:
        """Stop the threads; the team must not be used after. May be called twice."""
        self._finalizer()


def _destroy(library: NativeLibrary, handle: int, process: int) -> None:
    """End the threads; in a process that was forked off there are none, and waiting for them would take for ever."""
    if os.getpid() == process:
        library.call.octavo_team_destroy(handle)
