"""Decides when an engine process hangs: how long it may neither answer nor work, and how long work may take."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A process that works without answering (a long step, a model that is loaded) has so many times the limit.
_WORKING = 10.0
# Loading again may take so many times what it took at first.
_LOADING = 3.0
# Less of a processor than this is what a process uses that waits for ever.
_WORK_SHARE = 0.01
# Readings within the limit, and the longest time between two.
_READINGS = 8
_MOST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process has done since it began."""

    processor_seconds: float
    disk_bytes: int  # read and written
    traced: bool  # a debugger has it


class Watch:
    """The patience with one life of an engine. Only time in which the watcher itself ran counts: of a server that was
    stopped or frozen as a whole nothing follows. Owner: the life's.

    Args:
        limit: seconds without an answer and without work; 0: there is no limit.
        first_start: seconds until the first engine was ready; None: this one is the first, and may take any time.
        clock: monotonic seconds.
    """

    def __init__(
        self, limit: float, first_start: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.period = min(_MOST_SECONDS, limit / _READINGS)
        self._first_start = first_start
        self._clock = clock
        self._loading = True
        self._last = clock()
        self._known: Activity | None = None
        self._silent = self._still = 0.0

    def heard(self, ready: bool) -> None:
        """A message came; `ready`: the engine takes requests from now on at the latest."""
        self._loading = self._loading and not ready
        self._silent = self._still = 0.0

    def look(self, activity: Activity | None) -> str | None:
        """Count the time since the last look. Returns why the process is to be ended, when it is.

        Args:
            activity: of the process; None when that cannot be told: then it counts as working.
        """
        now = self._clock()
        passed, self._last = min(now - self._last, 2 * self.period), now
        known, self._known = self._known, activity
        if not self.limit or (self._loading and self._first_start is None):
            return None
        if activity is not None and activity.traced:
            self._silent = self._still = 0.0
            return None
        self._silent += passed
        self._still = 0.0 if _worked(known, activity, passed) else self._still + passed
        if self._still >= self.limit:
            return f"it hung: no answer and no work for {self._still:.0f} s (--engine-timeout {self.limit:g})"
        if self._silent >= self._longest():
            return f"it hung: no answer for {self._silent:.0f} s, though it worked (--engine-timeout {self.limit:g})"
        return None

    @property
    def suspicion(self) -> str | None:
        """What there is to tell of a process that is half the way to its end."""
        if not self.limit or self._still < self.limit / 2:
            return None
        return f"the engine has neither answered nor worked for {self._still:.0f} s"

    def _longest(self) -> float:
        working = _WORKING * self.limit
        return max(working, _LOADING * (self._first_start or 0.0)) if self._loading else working


def _worked(before: Activity | None, now: Activity | None, seconds: float) -> bool:
    if before is None or now is None:
        return True
    used = now.processor_seconds - before.processor_seconds
    return used > _WORK_SHARE * seconds or now.disk_bytes != before.disk_bytes


def activity_of(process_id: int) -> Activity | None:
    """What a process has done, from proc(5); None on systems without that, and when the process is gone."""
    if sys.platform != "linux":
        return None
    directory = Path("/proc", str(process_id))
    try:
        # The name of the program, in brackets, may hold anything.
        numbers = (directory / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        traced = _numbers(directory / "status", "TracerPid:")[0] != 0
    except (OSError, IndexError):
        return None
    try:
        disk = sum(_numbers(directory / "io", "read_bytes:", "write_bytes:"))
    except OSError:  # not told everywhere
        disk = 0
    user, system = int(numbers[11]), int(numbers[12])
    return Activity((user + system) / os.sysconf("SC_CLK_TCK"), disk, traced)


def _numbers(file: Path, *names: str) -> list[int]:
    lines = file.read_text("utf-8", "replace").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(names)]
