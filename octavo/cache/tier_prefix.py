"""How long a prefix could be had when blocks below the device are counted too, and what is missing for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.cache.block import BlockHash
from octavo.cache.tier import TierKey

Holds = Callable[[int, BlockHash], bool]  # whether a group's block can be had


@dataclass(slots=True)
class StagedPrefix:
    """A waiting sequence's prefix that is on its way back to the device. The CacheTiers own it.

    `hashes` are the sequence's own, which only grow. `missing`: (group, index) of what is not on the device yet.
    """

    generation: int
    hashes: Sequence[BlockHash]
    length: int  # blocks
    patience: float  # seconds that it may take once there is room on the device
    setbacks: int  # of the TierLedger, when `missing` was made
    evictions: int  # of the CacheTiers, likewise
    deadline: float = 0.0  # 0: there was no room yet
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    fetched: set[TierKey] = field(default_factory=set[TierKey])  # each comes back once


def first_needed(tail: int | None, length: int) -> int:
    """The first of a prefix's `length` blocks that a group reads which needs the last `tail` (None: all)."""
    return 0 if tail is None else max(0, length - tail)


def needed(tails: Sequence[int | None], length: int) -> list[tuple[int, int]]:
    """(group, index) of every block that a prefix of `length` blocks needs, in the order of the prefix."""
    pairs = [(index, group) for group, tail in enumerate(tails) for index in range(first_needed(tail, length), length)]
    return [(group, index) for index, group in sorted(pairs)]


def longest(tails: Sequence[int | None], holds: Holds, key_at: Callable[[int], BlockHash], limit: int) -> int:
    """The most leading blocks, up to `limit`, of which every group's part can be had.

    Args:
        tails: for each group, how many of a prefix's last blocks it needs; None when it needs all.
        key_at: the hash of a sequence's i-th block; asked no further than needed.
    """
    length = limit
    for group, tail in enumerate(tails):
        if tail is None:
            limit, length = length, 0
            while length < limit and holds(group, key_at(length)):
                length += 1
    while length:
        gaps = [
            index
            for group, tail in enumerate(tails)
            if tail is not None and (index := _last_gap(group, tail, holds, key_at, length)) is not None
        ]
        if not gaps:
            return length
        length = min(gaps)
    return 0


def _last_gap(group: int, tail: int, holds: Holds, key_at: Callable[[int], BlockHash], length: int) -> int | None:
    for index in range(length - 1, first_needed(tail, length) - 1, -1):
        if not holds(group, key_at(index)):
            return index
    return None
