"""Whether bringing cached blocks back is quicker than computing them again: both rates are measured while serving."""

from dataclasses import dataclass

_WEIGHT = 0.2  # of a new reading in the running means
_PROBE = 32  # every so many refusals one is let through, so that a tier that became faster is noticed
# A step with fewer prompt tokens says more about its fixed costs than about prefill.
_LEAST_PREFILL = 8


@dataclass(slots=True)
class Rate:
    """A running mean of seconds per unit; None before the first reading."""

    seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Enter a reading."""
        known = self.seconds
        self.seconds = seconds if known is None else known + _WEIGHT * (seconds - known)


class PrefillRate:
    """Seconds that a prompt token takes to compute, learnt from steps that mostly compute prompts."""

    def __init__(self) -> None:
        self._token = Rate()

    @property
    def token_seconds(self) -> float | None:
        """The present mean; None before the first reading."""
        return self._token.seconds

    def observe(self, prompt_tokens: int, all_tokens: int, seconds: float) -> None:
        """A step computed `all_tokens`, `prompt_tokens` of them of prompts."""
        if prompt_tokens >= _LEAST_PREFILL and 2 * prompt_tokens >= all_tokens and seconds > 0:
            self._token.observe(seconds / all_tokens)

    def seconds(self, tokens: float) -> float | None:
        """What computing so many tokens takes; None when unknown."""
        return None if self._token.seconds is None else tokens * self._token.seconds


class TransferCost:
    """What it takes to read one page of a tier, and whether that is worth it."""

    def __init__(self) -> None:
        self._page = Rate()
        self._refused = 0

    @property
    def page_seconds(self) -> float | None:
        """The present mean; None before the first reading."""
        return self._page.seconds

    def observe(self, seconds: float) -> None:
        """A page was read in so many seconds."""
        self._page.observe(seconds)

    def worth(self, pages: float, recompute: float | None) -> bool:
        """Reading `pages` takes no longer than the `recompute` seconds of computing them; unknown counts as yes."""
        if self.expects(pages, recompute):
            return True
        self._refused += 1
        return self._refused % _PROBE == 0

    def expects(self, pages: float, recompute: float | None) -> bool:
        """As `worth`, but only to know: nothing is let through for a look."""
        return recompute is None or self._page.seconds is None or pages * self._page.seconds <= recompute
