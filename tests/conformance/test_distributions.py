"""Native draws have the distribution that each sampler is defined to give: chi-square tests against plain numpy."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.flow.request import Sampling, Shaping
from octavo.flow.sampler_order import pack
from octavo.flow.sampling_params import SamplingParams
from octavo.ops.conformance import CacheShape, Scene
from octavo.ops.interface import RowRules
from tests.conformance.devices import ISAS, NativeDevice

VOCAB = 40
DRAWS = 3000
TURN = 500  # rows a call
LOGITS = (np.random.default_rng(8).standard_normal(VOCAB) * 2).astype(np.float32)
REPEATS = (1, 2, 3, 4, 9, 1, 2, 3)

Floats = NDArray[np.float64]


def pack_order(*samplers: str) -> int:
    return pack(samplers, SamplingParams(temperature=0.5, top_p=0.5))


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


def top_p_before(share: float, temperature: float) -> Floats:
    return among(top_p(share) > 0, temperature)


def top_k_of(left: Floats, count: int, temperature: float) -> Floats:
    return among(np.isin(np.arange(VOCAB), ranked(left)[:count]), temperature)


def penalized(repetition: float, frequency: float, presence: float) -> Floats:
    """Repetition counts the prompt's tokens, too; the others the answer's."""
    values, answer = LOGITS.astype(np.float64), REPEATS[4:]
    for token in set(REPEATS):
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token in set(answer):
        values[token] -= frequency * answer.count(token) + presence
    return softmax(values)


def biased(bias: dict[int, float]) -> Floats:
    values = LOGITS.astype(np.float64)
    for token, value in bias.items():
        values[token] += value
    return softmax(values)


def less_surprising(mu: float) -> Floats:
    p = among(np.full(VOCAB, True))
    return among(-np.log2(p) <= mu)


def zipf_ranked(mu: float) -> Floats:
    p = among(np.full(VOCAB, True))
    falling = np.sort(p)[::-1]
    ranks = np.arange(1, VOCAB)
    t, b = np.log((ranks + 1) / ranks), np.log(falling[:-1] / falling[1:])
    s = (t * b).sum() / (t * t).sum()
    k = round(((s - 1) * 2**mu / (1 - VOCAB ** (1 - s))) ** (1 / s))
    assert 2 < k < VOCAB - 2
    return among(np.isin(np.arange(VOCAB), ranked(p)[:k]))


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
    "top-p, then the temperature": (
        Sampling(temperature=2.0, top_p=0.8, shaping=Shaping(sampler_order=pack_order("top_p", "temperature"))),
        lambda: top_p_before(0.8, 2.0),
    ),
    "mirostat 1": (Sampling(shaping=Shaping(mirostat=1, mirostat_tau=2.5)), lambda: zipf_ranked(5.0)),
    "mirostat 2": (Sampling(shaping=Shaping(mirostat=2, mirostat_tau=1.6)), lambda: less_surprising(3.2)),
    "penalties": (
        Sampling(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=-0.5),
        lambda: penalized(1.4, 0.3, -0.5),
    ),
    "bias": (Sampling(logit_bias=((5, 3.0), (31, -2.0))), lambda: biased({5: 3.0, 31: -2.0})),
    "allowed tokens": (
        Sampling(allowed_token_ids=(2, 11, 17, 30, 38)),
        lambda: among(np.isin(np.arange(VOCAB), (2, 11, 17, 30, 38))),
    ),
    "padded vocabulary": (
        Sampling(temperature=1.3, known_tokens=23),
        lambda: among(np.arange(VOCAB) < 23, 1.3),
    ),
    "XTC, then top-k, then the temperature": (
        Sampling(
            temperature=0.7,
            top_k=9,
            shaping=Shaping(
                xtc_probability=1.0,
                xtc_threshold=0.05,
                sampler_order=pack(
                    ("xtc", "top_k", "temperature"), SamplingParams(temperature=0.7, top_k=9, xtc_probability=1.0)
                ),
            ),
        ),
        lambda: top_k_of(without_top(1.0, 0.05), 9, 0.7),
    ),
    "DRY": (Sampling(shaping=Shaping(dry_multiplier=1.5, dry_base=2.0)), dry),
}


def drawn(sampling: Sampling, history: tuple[int, ...]) -> NDArray[np.int64]:
    """How often each token was drawn, with other seeds every time."""
    device = NativeDevice(ISAS[-1], CacheShape())
    counts = np.zeros(VOCAB, np.int64)
    start = 2 * sampling.shaping.mirostat_tau
    for first in range(0, DRAWS, TURN):
        rows = tuple(
            RowRules(_seeded(sampling, first + row), history[:4], history[4:], len(history) - 4, mu=start)
            for row in range(TURN)
        )
        ops, _ = device.begin(Scene(sampled_rows=tuple(range(TURN)), rows=rows))
        raw = device.put(np.tile(LOGITS, (TURN, 1)))
        ops.sample(ops.process_logits(raw), raw)
        counts += np.bincount(device.drawn().tokens, minlength=VOCAB)
    return counts


def surprises(shaping: Shaping, count: int) -> Floats:
    """Of so many draws of one sequence, each starting from the state that the last one left; in bits."""
    device, mu = NativeDevice(ISAS[-1], CacheShape()), 2 * shaping.mirostat_tau
    bits = -np.log2(among(np.full(VOCAB, True)))
    found = np.zeros(count)
    for index in range(count):
        rules = RowRules(Sampling(seed=5, shaping=shaping), (1,), (), index, mu=mu)
        ops, _ = device.begin(Scene(sampled_rows=(0,), rows=(rules,)))
        raw = device.put(LOGITS[None])
        ops.sample(ops.process_logits(raw), raw)
        token = int(device.drawn().tokens[0])
        found[index] = bits[token]
        left = device.left()
        assert left == pytest.approx(mu - shaping.mirostat_eta * (bits[token] - shaping.mirostat_tau), abs=1e-4)
        mu = left
    return found


def _seeded(sampling: Sampling, seed: int) -> Sampling:
    return replace(sampling, seed=seed * 7919)


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
