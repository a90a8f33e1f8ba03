"""What a benchmark is asked for, and how what it found is summed up and shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: `requests` prompts of `prompt_tokens`, each continued by `output_tokens`."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int  # of a server's clients
    rate: float  # requests a second of a server's clients; 0: as fast as concurrency allows


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the result. Times in seconds, rates in tokens a second; None where it makes no sense."""

    what: str
    requests: int
    first_token: float | None
    first_token_p99: float | None
    per_token: float | None
    per_token_p99: float | None
    prompt_rate: float
    output_rate: float
    seconds: float


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The result for people."""
    yield (
        f"{'':22} {'requests':>8} {'first token ms':>16} {'per token ms':>16} {'prompt tok/s':>13} {'output tok/s':>13}"
    )
    yield f"{'':22} {'':>8} {'median     p99':>16} {'median     p99':>16}"
    for line in lines:
        yield (
            f"{line.what:22} {line.requests:>8} {_pair(line.first_token, line.first_token_p99):>16} "
            f"{_pair(line.per_token, line.per_token_p99):>16} {line.prompt_rate:>13.1f} {line.output_rate:>13.1f}"
        )


def _pair(median: float | None, high: float | None) -> str:
    if median is None or high is None:
        return "-"
    return f"{median * 1e3:.1f} {high * 1e3:>7.1f}"


def summary(
    what: str, firsts: Sequence[float], per_tokens: Sequence[float], tokens: tuple[int, int], seconds: float
) -> Line:
    """One row from each request's time to first token and mean time per further token; tokens: prompt, output."""
    return Line(
        what,
        len(firsts),
        quantile(firsts, 0.5),
        quantile(firsts, 0.99),
        quantile(per_tokens, 0.5),
        quantile(per_tokens, 0.99),
        tokens[0] / max(seconds, 1e-9),
        tokens[1] / max(seconds, 1e-9),
        seconds,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all are at most; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
