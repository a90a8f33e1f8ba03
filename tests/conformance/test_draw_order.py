"""A draw over a whole vocabulary is the same on every instruction set and number of threads, whatever filters it."""

import numpy as np
import pytest

from octavo.flow.request import Sampling, Shaping
from octavo.ops.conformance import CacheShape, Scene
from octavo.ops.interface import RowRules
from tests.conformance.devices import ISAS, NativeDevice

VOCAB, ROWS = 20_011, 8
RULES = {
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.01},
    "many of top-k, top-p": {"top_k": 9_000, "top_p": 0.9},
    "typical": {"shaping": Shaping(typical_p=0.7)},
    "mirostat 1": {"shaping": Shaping(mirostat=1, mirostat_tau=8.0)},
    "mirostat 2": {"shaping": Shaping(mirostat=2, mirostat_tau=8.0)},
    "the order turned round": {"top_p": 0.9, "shaping": Shaping(0.9, 2.5, 0.5, 0.001, 0.3, sampler_order=0x1357246)},
}
LOGITS = {
    "flat": lambda numbers: 0.5 * numbers,
    "peaked": lambda numbers: 4.0 * numbers,
    "ties": lambda numbers: np.round(2.0 * numbers),
}


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", RULES)
def test_every_build_and_team_draws_the_same(name: str, logits: str) -> None:
    values = LOGITS[logits](np.random.default_rng(6).standard_normal((ROWS, VOCAB), np.float32)).astype(np.float32)
    rules = [RowRules(Sampling(seed=row, **RULES[name]), [1], [2], row, mu=9.0) for row in range(ROWS)]
    drawn = {}
    for isa in ISAS:
        for threads in (1, 3):
            device = NativeDevice(isa, CacheShape(), threads)
            ops, _ = device.begin(Scene(sampled_rows=tuple(range(ROWS)), rows=tuple(rules)))
            raw = device.put(values)
            ops.sample(ops.process_logits(raw), raw)
            drawn[isa, threads] = (device.drawn().tokens.tolist(), device.left() if "mirostat" in name else 0.0)
    first = next(iter(drawn.values()))
    assert len(set(first[0])) > 3
    assert all(found == first for found in drawn.values())
