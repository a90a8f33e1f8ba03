"""Records what an engine's steps do, between a start and a stop: when, how long, how much; and which Python ran.

Two files: a trace of steps in the Trace Event Format (for chrome://tracing or ui.perfetto.dev), and Python's own
profile of the engine's thread (for `python -m pstats`). Python's profiler makes the engine slower while it runs.
"""

import cProfile
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.config.environment import read_environment
from octavo.engine.client import EngineStats
from octavo.errors import ConfigError, InvalidRequestError

# Of each the newest are kept: hours of a busy engine, some 100 MB.
_MOST_STEPS = 500_000
_FILE_MODE = 0o600
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """What one turn of the engine did. Seconds of the profile's clock."""

    begin: float
    end: float
    stats: EngineStats  # after it
    steps: int
    prompt_tokens: int
    generation_tokens: int


class EngineProfile:
    """Owner: the engine's thread, which is the one whose Python is recorded.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._directory: Path | None = None
        self._python: cProfile.Profile | None = None
        self._prefix = ""
        self._steps: deque[ProfiledStep] = deque(maxlen=_MOST_STEPS)
        self._began = 0.0
        self._turn = 0.0

    @property
    def running(self) -> bool:
        """Steps are recorded."""
        return self._directory is not None

    def start(self, directory: str, prefix: str = "octavo") -> None:
        """Record from now on; the files' names will begin with `prefix`.

        Raises:
            InvalidRequestError: it records already, or another profiler watches this thread.
            ConfigError: nothing can be written there.
        """
        if self.running:
            raise InvalidRequestError("a profile is being recorded already: end it first (stop_profile)")
        if not _PREFIX.fullmatch(prefix):
            raise InvalidRequestError("a profile's prefix has letters, digits, dots, dashes and underscores only")
        path = Path(directory)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot hold profiles: {error.strerror}") from error
        python = cProfile.Profile()
        try:
            python.enable()
        except ValueError as error:  # since Python 3.12 there may be only one
            raise InvalidRequestError(f"the engine's thread cannot be profiled: {error}") from error
        self._directory, self._python, self._began = path, python, self._clock()
        self._prefix = prefix
        self._steps.clear()

    def begin_turn(self) -> None:
        """The engine begins to step."""
        self._turn = self._clock()

    def end_turn(self, before: EngineStats, after: EngineStats) -> None:
        """It has; nothing is kept of a turn without a step."""
        if after.steps > before.steps:
            self._steps.append(
                ProfiledStep(
                    self._turn - self._began,
                    self._clock() - self._began,
                    after,
                    after.steps - before.steps,
                    after.prompt_tokens - before.prompt_tokens,
                    after.generation_tokens - before.generation_tokens,
                )
            )

    def stop(self) -> tuple[tuple[str, ...], int]:
        """Write the files, readable by this user only: their paths, and the number of steps in them.

        Raises:
            InvalidRequestError: nothing is being recorded.
            ConfigError: they cannot be written; what was recorded is lost.
        """
        if self._directory is None or self._python is None:
            raise InvalidRequestError("no profile is being recorded: begin one first (start_profile)")
        directory, python = self._directory, self._python
        self._directory = self._python = None
        python.disable()
        steps = list(self._steps)
        self._steps.clear()
        stem = (
            directory
            / f"{self._prefix}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**6:06}"
        )
        trace, calls = f"{stem}.trace.json", f"{stem}.pstats"
        try:
            _write(trace, json.dumps({"traceEvents": _events(steps), "displayTimeUnit": "ms"}).encode())
            _write(calls, b"")
            python.dump_stats(calls)
        except OSError as error:
            raise ConfigError(f"{directory} cannot hold profiles: {error.strerror}") from error
        return (trace, calls), len(steps)


def profile_directory(config: EngineConfig) -> str:
    """Where profiles are written unless somebody says otherwise."""
    return config.telemetry.profiler_dir or str(read_environment().cache_dir / "profiles")


def _write(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb") as file:
        file.write(data)


def _events(steps: list[ProfiledStep]) -> list[dict[str, Any]]:
    """Each turn as a complete event ("X"), and what was held after it as counters ("C"); microseconds."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "octavo engine"}}
    ]
    for step in steps:
        kind = "prompt" if not step.generation_tokens else "mixed" if step.prompt_tokens else "decode"
        told = {"prompt_tokens": step.prompt_tokens, "generation_tokens": step.generation_tokens, "steps": step.steps}
        place = {"pid": 1, "tid": 1, "ts": round(step.begin * 1e6, 1)}
        events.append({"ph": "X", "name": kind, "dur": round((step.end - step.begin) * 1e6, 1), "args": told, **place})
        held = {"running": step.stats.running, "waiting": step.stats.waiting}
        events.append({"ph": "C", "name": "requests", "args": held, **place})
        events.append({"ph": "C", "name": "blocks", "args": {"used": step.stats.used_blocks}, **place})
    return events
