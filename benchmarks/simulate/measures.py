"""Figures of merit: percentiles, shares, fairness."""

from collections.abc import Iterable, Sequence
from math import exp, log

_GRAIN = 0.005  # relative width of a histogram's buckets: half a per cent


class Histogram:
    """Weighted values above 0 in buckets of equal ratio. Exact to half a per cent, whatever their number."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.longest = 0.0

    def add(self, value: float, count: int) -> None:
        """Note a value `count` times."""
        if count > 0 and value > 0.0:
            bucket = round(log(value) / _GRAIN)
            self.counts[bucket] = self.counts.get(bucket, 0) + count
            self.total += count
            self.longest = max(self.longest, value)

    def percentile(self, share: float) -> float:
        """The value that `share` (0 to 1) of all do not exceed; 0 when there are none."""
        left = share * self.total
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return exp(bucket * _GRAIN)
        return self.longest

    def curve(self) -> tuple[list[float], list[float]]:
        """Values, and the share that exceeds each."""
        values, shares, above = [], [], self.total
        for bucket in sorted(self.counts):
            above -= self.counts[bucket]
            values.append(exp(bucket * _GRAIN))
            shares.append(above / self.total)
        return values, shares


def percentile(values: Sequence[float], share: float) -> float:
    """Of all values, by the nearest rank; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """0 when there are none."""
    return sum(values) / len(values) if len(values) else 0.0


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe, 1984)."""
    parts = list(values)
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0
