"""Native draws have the distribution that each sampler is defined to give: chi-square tests against plain numpy."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.flow.request import Sampling, Shaping
from octavo.ops.conformance import CacheShape, Scene
from octavo.ops.interface import RowRules
from tests.conformance.devices import ISAS, NativeDevice

VOCAB = 40
DRAWS = 3000
TURN = 500  # rows a call
LOGITS = (np.random.default_rng(8).standard_normal(VOCAB) * 2).astype(np.float32)
REPEATS = (1, 2, 3, 4, 9, 1, 2, 3)

Floats = NDArray[np.float64]


def softmax(values: Floats) -> Floats:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def among(kept: NDArray[np.bool_], temperature: float = 1.0) -> Floats:
    return softmax(np.where(kept, LOGITS.astype(np.float64) / temperature, -np.inf))


def ranked(probabilities: Floats) -> NDArray[np.int64]:
    return np.argsort(-probabilities, kind="stable")


def top_p(share: float) -> Floats:
    p = among(np.full(VOCAB, True))
    order = ranked(p)
    count = int(np.searchsorted(np.cumsum(p[order]), share)) + 1
    return among(np.isin(np.arange(VOCAB), order[:count]))


def typical(share: float) -> Floats:
    p = among(np.full(VOCAB, True))
    expected = -(p * np.log(p)).sum()
    order = np.argsort(np.abs(-np.log(p) - expected), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), share)) + 1
    return among(np.isin(np.arange(VOCAB), order[:count]))


def sigma(n: float) -> Floats:
    values = LOGITS.astype(np.float64)
    return among(values >= values.max() - n * values.std(), 1.5)


def without_top(probability: float, threshold: float) -> Floats:
    p = among(np.full(VOCAB, True))
    above = np.flatnonzero(p >= threshold)
    assert len(above) > 2
    kept = np.full(VOCAB, True)
    kept[np.setdiff1d(above, above[np.argmin(p[above])])] = False
    return probability * among(kept) + (1 - probability) * p


def dynamic(spread: float, exponent: float) -> Floats:
    p = among(np.full(VOCAB, True))
    part = -(p * np.log(p)).sum() / np.log(VOCAB)
    low, high = max(0.0, 1 - spread), 1 + spread
    return among(np.full(VOCAB, True), low + (high - low) * part**exponent)


def dry() -> Floats:
    values = LOGITS.astype(np.float64)
    values[4] -= 1.5 * 2.0 ** (3 - 2)  # 1 2 3 was followed by 4
    return softmax(values)


CASES: dict[str, tuple[Sampling, Callable[[], Floats]]] = {
    "plain": (Sampling(), lambda: among(np.full(VOCAB, True))),
    "temperature": (Sampling(temperature=0.7), lambda: among(np.full(VOCAB, True), 0.7)),
    "top-k": (Sampling(top_k=7), lambda: among(np.isin(np.arange(VOCAB), ranked(LOGITS.astype(np.float64))[:7]))),
    "top-p": (Sampling(top_p=0.8), lambda: top_p(0.8)),
    "min-p": (Sampling(min_p=0.1), lambda: among(LOGITS.max() + np.log(0.1) <= LOGITS)),
    "typical": (Sampling(shaping=Shaping(typical_p=0.6)), lambda: typical(0.6)),
    "top-n-sigma": (Sampling(temperature=1.5, shaping=Shaping(top_n_sigma=1.0)), lambda: sigma(1.0)),
    "XTC": (
        Sampling(shaping=Shaping(xtc_probability=0.4, xtc_threshold=0.05)),
        lambda: without_top(0.4, 0.05),
    ),
    "dynamic temperature": (
        Sampling(shaping=Shaping(dynatemp_range=0.8, dynatemp_exponent=1.5)),
        lambda: dynamic(0.8, 1.5),
    ),
    "DRY": (Sampling(shaping=Shaping(dry_multiplier=1.5, dry_base=2.0)), dry),
}


def drawn(sampling: Sampling, history: tuple[int, ...]) -> NDArray[np.int64]:
    """How often each token was drawn, with other seeds every time."""
    device = NativeDevice(ISAS[-1], CacheShape())
    counts = np.zeros(VOCAB, np.int64)
    for first in range(0, DRAWS, TURN):
        rows = tuple(
            RowRules(_seeded(sampling, first + row), history[:4], history[4:], len(history) - 4) for row in range(TURN)
        )
        ops, _ = device.begin(Scene(sampled_rows=tuple(range(TURN)), rows=rows))
        raw = device.put(np.tile(LOGITS, (TURN, 1)))
        ops.sample(ops.process_logits(raw), raw)
        counts += np.bincount(device.drawn().tokens, minlength=VOCAB)
    return counts


def _seeded(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed=seed * 7919, shaping=sampling.shaping
    )


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_distribution_of_their_sampler(name: str) -> None:
    sampling, distribution = CASES[name]
    expected = distribution() * DRAWS
    counts = drawn(sampling, REPEATS)
    assert counts[expected == 0].sum() == 0
    # Rare tokens are taken together, so that every class has enough.
    common = expected >= 8
    rest = expected[~common].sum()
    statistic = ((counts[common] - expected[common]) ** 2 / expected[common]).sum()
    classes = int(common.sum())
    if rest >= 8:
        statistic += (counts[~common].sum() - rest) ** 2 / rest
        classes += 1
    assert classes > 2
    assert statistic < critical(classes - 1)


def critical(freedom: int) -> float:
    """What chi-square exceeds once in 10,000 times (Wilson and Hilferty, 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3
