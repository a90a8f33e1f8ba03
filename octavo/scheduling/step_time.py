"""How long a step will take, learnt from the steps that ran, and how much of a prompt fits into a target."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, sqrt

from octavo.flow.plan import PlannedRow

# Brings the four features to the order of one, so that the estimate is well conditioned.
_SCALES = (1.0, 1.0 / 64, 1.0 / 16, 1.0 / 65536)
_SIZE = len(_SCALES)
_FORGET = 0.99  # a step counts half after about 70 others
_WARM_UP = 8  # steps after which an outlier can be told from ignorance
_UNSURE = 100.0  # the first covariance: a few steps outweigh the first guess
_MOST_UNSURE = 1e4  # forgetting without news must not make it sure of nothing
_FIRST_CHUNK = 64  # tokens that the first guess believes to fill the target
_MARGIN = 1.5  # spreads below the target
LEAST_CHUNK = 8  # tokens a step gives to prompts even where the target cannot be held: they must get on


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes. `pairs` counts, for each token, the positions that its attention reads."""

    tokens: int
    rows: int
    pairs: int

    @classmethod
    def of(cls, rows: Iterable[PlannedRow]) -> "StepLoad":
        """The load of planned rows."""
        tokens = count = pairs = 0
        for row in rows:
            count += 1
            tokens += row.count
            pairs += pairs_of(row.start, row.count)
        return cls(tokens, count, pairs)


def pairs_of(start: int, count: int) -> int:
    """Positions that `count` tokens from `start` on read, themselves included."""
    return count * start + count * (count + 1) // 2


class StepTimeModel:
    """seconds = fixed + a * tokens + b * rows + c * pairs. Mutable; the Scheduler owns it.

    Recursive least squares with exponential forgetting (Ljung, System Identification, 2nd ed., section 11.2): tens of
    microseconds a step. Steps far off the estimate (a page fault, another process) count for no more than usual errors.

    Args:
        target: seconds that a step should take at most; the first guess fills it with a small chunk.
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self.steps = 0
        self._weights = [0.0, target / _FIRST_CHUNK / _SCALES[1], 0.0, 0.0]
        self._covariance = [[_UNSURE * (i == j) for j in range(_SIZE)] for i in range(_SIZE)]
        self._variance = 0.0  # running mean of the squared error

    @property
    def spread(self) -> float:
        """The usual error of an estimate, in seconds."""
        return sqrt(self._variance)

    @property
    def token_seconds(self) -> float:
        """What one more token of a prompt costs, without its attention."""
        return max(self._weights[1] * _SCALES[1], 1e-9)

    @property
    def row_seconds(self) -> float:
        """What one more row costs."""
        return max(self._weights[2] * _SCALES[2], 0.0)

    @property
    def pair_seconds(self) -> float:
        """What it costs that one token reads one position."""
        return max(self._weights[3] * _SCALES[3], 0.0)

    def seconds(self, load: StepLoad) -> float:
        """The estimate for a step."""
        return max(0.0, sum(w * x for w, x in zip(self._weights, _features(load), strict=True)))

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took so long."""
        if not isfinite(seconds) or seconds <= 0.0:
            return
        x = _features(load)
        gain = [sum(p * v for p, v in zip(row, x, strict=True)) for row in self._covariance]
        scale = _FORGET + sum(v * g for v, g in zip(x, gain, strict=True))
        expected = sum(w * v for w, v in zip(self._weights, x, strict=True))
        error = seconds - expected
        self.steps += 1
        if self.steps > _WARM_UP:
            bound = 4 * self.spread + 0.05 * abs(expected)
            error = min(bound, max(-bound, error))
            self._variance += 0.05 * (error * error - self._variance)
        self._weights = [w + g * error / scale for w, g in zip(self._weights, gain, strict=True)]
        # A direction that brings no news is not forgotten: the covariance would grow without bound.
        forget = _FORGET if max(self._covariance[i][i] for i in range(_SIZE)) < _MOST_UNSURE else 1.0
        self._covariance = [
            [(p - gi * gj / scale) / forget for p, gj in zip(row, gain, strict=True)]
            for row, gi in zip(self._covariance, gain, strict=True)
        ]

    def pace(self, running: StepLoad) -> "Pace":
        """What a step that decodes `running` has left for prompts."""
        return Pace(self, self.target - _MARGIN * self.spread - self.seconds(running))


class Pace:
    """The seconds of one step that prompts may take. Mutable; the step's draft owns it."""

    def __init__(self, model: StepTimeModel, seconds: float) -> None:
        self._row = model.row_seconds
        self._token = model.token_seconds
        self._pair = model.pair_seconds
        self._least = max(0.0, self._row + self._token * LEAST_CHUNK)
        self._left = seconds
        self._used = False

    def within(self, start: int) -> int:
        """How many tokens from position `start` on still fit; the first prompt of a step always gets a few."""
        slack = self._left - self._row
        most = 0
        if slack > 0:
            # pair/2 * n^2 + linear * n = slack
            linear = self._token + self._pair * (start + 0.5)
            most = int(2 * slack / (linear + sqrt(linear * linear + 2 * self._pair * slack)))
        return most if self._used else max(most, LEAST_CHUNK)

    def spend(self, start: int, count: int) -> None:
        """A prompt got `count` tokens."""
        self._used = True
        self._left -= self._row + self._token * count + self._pair * pairs_of(start, count)


def _features(load: StepLoad) -> tuple[float, float, float, float]:
    return (1.0, load.tokens * _SCALES[1], load.rows * _SCALES[2], load.pairs * _SCALES[3])
