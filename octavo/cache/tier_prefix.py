"""How long a prefix could be had when blocks below the device are counted too, and what is missing for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.cache.block import BlockHash
from octavo.cache.group import Tail
from octavo.cache.tier import TierKey

Holds = Callable[[int, BlockHash], bool]  # whether a row's block can be had


@dataclass(slots=True)
class StagedPrefix:
    """A waiting sequence's prefix that is on its way back to the device. The CacheTiers own it.

    `hashes` are the sequence's own, which only grow. `missing`: (row, index) of what is not on the device yet.
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


def needed(tails: Sequence[Tail], length: int) -> list[tuple[int, int]]:
    """(row, index) of every block that a prefix of `length` blocks needs, in the order of the prefix."""
    pairs = [(index, row) for row, tail in enumerate(tails) for index in range(tail.first(length), length)]
    return [(row, index) for index, row in sorted(pairs)]


def longest(tails: Sequence[Tail], holds: Holds, key_at: Callable[[int], BlockHash], limit: int) -> int:
    """The most leading blocks, up to `limit`, of which every row's part can be had.

    Args:
        tails: for each row, what of a prefix it needs.
        key_at: the hash of a sequence's i-th block; asked no further than needed.
    """
    length = limit
    for row, tail in enumerate(tails):
        if tail.whole:
            limit, length = length, 0
            while length < limit and holds(row, key_at(length)):
                length += 1
    others = [(row, tail) for row, tail in enumerate(tails) if not tail.whole]
    while length and (gap := _gap(others, holds, key_at, length)) is not None:
        length = gap
    return length


def _gap(rows: Sequence[tuple[int, Tail]], holds: Holds, key_at: Callable[[int], BlockHash], length: int) -> int | None:
    """A block that some row needs for `length` blocks and that cannot be had."""
    for row, tail in rows:
        for index in range(length - 1, tail.first(length) - 1, -1):
            if not holds(row, key_at(index)):
                return index
    return None
