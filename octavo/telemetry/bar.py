"""What a progress bar on standard error is: moving on a terminal, a line at its start and one at its end in a log."""

import io
import math
import sys
from typing import Any, TextIO


def open_bar(**options: Any) -> Any:
    """A bar of tqdm's, with these options of its."""
    from tqdm import tqdm  # 20 ms that silent callers need not wait for

    stream = sys.stderr
    if not _is_log(stream):
        return tqdm(file=stream, **options)
    seldom: dict[str, Any] = {**options, "mininterval": math.inf, "maxinterval": math.inf}
    return tqdm(file=_Lines(stream), **seldom)


def _is_log(stream: TextIO) -> bool:
    """A file or a pipe; notebooks have streams of their own kind, which show bars and are no terminals."""
    return isinstance(stream, io.TextIOWrapper) and not stream.isatty()


class _Lines:
    """Every state of the bar as a line, where tqdm would write over the last one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a state; what only moves or clears is left out."""
        shown = text.replace("\r", "").rstrip()
        if shown:
            self._stream.write(f"{shown}\n")

    def flush(self) -> None:
        """Write what is held."""
        self._stream.flush()
