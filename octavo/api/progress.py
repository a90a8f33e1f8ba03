"""The progress bar of offline generation, with tokens a second in and out."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from octavo.telemetry.bar import open_bar

_REFRESH_SECONDS = 0.1


class Progress:
    """Counts finished prompts. `make` is called like tqdm; None shows nothing."""

    def __init__(self, make: Callable[..., Any] | None, total: int) -> None:
        self._began = time.perf_counter()
        self._prompt_tokens = 0
        self._generated = 0
        self._bar: Any = None
        if make is not None:
            self._bar = make(
                total=total,
                desc="Processed prompts",
                dynamic_ncols=True,
                mininterval=_REFRESH_SECONDS,
                postfix=_rates(0.0, 0.0),
            )

    def finished(self, prompt_tokens: int, generated: int) -> None:
        """One prompt more is done."""
        self._prompt_tokens += prompt_tokens
        self._generated += generated
        if self._bar is None:
            return
        seconds = max(time.perf_counter() - self._began, 1e-9)
        self._bar.postfix = _rates(self._prompt_tokens / seconds, self._generated / seconds)
        self._bar.update(1)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def open_progress(use_tqdm: bool | Callable[..., Any], total: int) -> Progress:
    """A bar of tqdm's (or of what is given instead), or none."""
    if not use_tqdm or not total:
        return Progress(None, total)
    if callable(use_tqdm):
        return Progress(use_tqdm, total)
    return Progress(open_bar, total)


def _rates(prompt: float, generated: float) -> str:
    return f"est. speed input: {prompt:.2f} toks/s, output: {generated:.2f} toks/s"
