"""Decides how Octavo logs: one line an event, to stderr, and a throughput line while something is going on."""

import logging
import sys
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from typing import TextIO

from octavo.telemetry.metrics import (
    CACHE_USAGE,
    GENERATION_TOKENS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROMPT_TOKENS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    MetricsStore,
)

ROOT = "octavo"


def logger(name: str) -> logging.Logger:
    """The logger of one part, e.g. "engine"; silent until `configure` was called."""
    return logging.getLogger(f"{ROOT}.{name}")


class LineFormatter(logging.Formatter):
    """`INFO 11-30 08:00:01 engine: message key=value`. Fields come from `extra={"fields": {...}}`, in their order.

    Control characters in a value are escaped: an event is one line, whatever a client sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception's traceback follows on lines of its own."""
        part = record.name.removeprefix(ROOT).lstrip(".") or ROOT
        time = self.formatTime(record, "%m-%d %H:%M:%S")
        fields: dict[str, object] = getattr(record, "fields", {})
        pairs = "".join(f" {key}={_plain(value)}" for key, value in fields.items())
        line = f"{record.levelname} {time} {part}: {printable(record.getMessage())}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(level: str = "info", stream: TextIO | None = None, file: str | None = None) -> None:
    """Send Octavo's log lines of at least `level` to `stream` (stderr), or to the end of `file`, which may be rotated.
    Calling again replaces the earlier setting.

    Other libraries' loggers are left alone.

    Raises:
        OSError: the file cannot be written.
    """
    root = logging.getLogger(ROOT)
    handler = WatchedFileHandler(file, encoding="utf-8") if file else logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _plain(value: object) -> str:
    text = printable(str(value))
    return f'"{text}"' if " " in text or not text else text


def printable(text: str) -> str:
    """Without control characters: what a client sent neither breaks a line nor speaks to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ThroughputLog:
    """Writes vLLM's throughput line every interval in which tokens were computed or sequences were live.

    Args:
        store: where the engine's counters are.
        clock: monotonic seconds.
    """

    def __init__(self, store: MetricsStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._log = logger("engine")
        self._last = self._counters()
        self._last_time = clock()
        self._was_active = False

    def tick(self) -> str | None:
        """Log the line for the time since the last tick; None (and silence) when there was nothing to tell."""
        now = self._clock()
        elapsed = max(now - self._last_time, 1e-9)
        counters = self._counters()
        prompt, generated, queries, hits = (new - old for new, old in zip(counters, self._last, strict=True))
        running, waiting = self._store.value(REQUESTS_RUNNING), self._store.value(REQUESTS_WAITING)
        active = bool(prompt or generated or running or waiting)
        self._last, self._last_time = counters, now
        # One idle line after the last active one tells that the work is done.
        tell, self._was_active = active or self._was_active, active
        if not tell:
            return None
        line = (
            f"Avg prompt throughput: {prompt / elapsed:.1f} tokens/s, "
            f"Avg generation throughput: {generated / elapsed:.1f} tokens/s, "
            f"Running: {running:.0f} reqs, Waiting: {waiting:.0f} reqs, "
            f"GPU KV cache usage: {self._store.value(CACHE_USAGE) * 100:.1f}%, "
            f"Prefix cache hit rate: {100 * hits / queries if queries else 0:.1f}%"
        )
        self._log.info(line)
        return line

    def _counters(self) -> tuple[float, float, float, float]:
        value = self._store.value
        return value(PROMPT_TOKENS), value(GENERATION_TOKENS), value(PREFIX_QUERIES), value(PREFIX_HITS)
