"""A short soak: see benchmarks/simulate/soak.py, which runs as long as it is told to."""

from benchmarks.simulate.soak import Soak


def test_everything_at_once_ends_with_every_block_free():
    seen = Soak(seed=8).run(600).seen
    happened = {name for name, count in seen.items() if count}
    assert happened >= {
        "answers compared",
        "beams",
        "blocks fetched",
        "blocks spilled",
        "cancels",
        "copied blocks",
        "ended: abort",
        "ended: error",
        "ended: timeout",
        "evictions",
        "failed steps",
        "pauses",
        "pins broken or refused",
        "preempted for a more urgent one",
        "preemptions",
        "resets",
        "things done to a tier",
    }
