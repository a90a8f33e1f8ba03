"""How much of a prefix can be used when each kind of history needs another part of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.cache.block import BlockHash
from octavo.cache.group import KVCacheGroup, state_interval

KeyAt = Callable[[int], BlockHash]  # the hash of a sequence's i-th block; asked no further than needed
Has = Callable[[BlockHash], bool]  # whether a lane's block of this hash can be had


@dataclass(frozen=True, slots=True)
class Tail:
    """What the token after a prefix reads of a lane.

    A lane is one page of every block: of a group of keys and values there is one, of a group of recurrent states one
    for each page that a state takes. In each lane a block is found, stored and brought back by itself.

    Attributes:
        pages: which are needed together for anything to be gained.
        tokens: that need not be computed then.
    """

    group: KVCacheGroup
    block_size: int
    pages: int
    tokens: int

    @property
    def whole(self) -> bool:
        """It is all blocks."""
        return self.group.is_whole

    def first(self, length: int) -> int:
        """The first of a prefix's `length` blocks that is read; `length` when none is."""
        return self.group.first_needed(length, self.block_size)


def tails_of(groups: Sequence[KVCacheGroup], block_size: int, interval: int = 0) -> tuple[Tail, ...]:
    """One entry for each lane.

    Args:
        interval: blocks between two states that are kept; 0: see `state_interval`.
    """
    keeping = sum(not group.is_state for group in groups)
    span = (interval or state_interval(groups, block_size)) * block_size
    return tuple(
        Tail(group, block_size, group.pages, span) if group.is_state else Tail(group, block_size, keeping, block_size)
        for group in groups
        for _ in range(group.pages)
    )


class PrefixRule:
    """Which blocks of a prefix must be there for it to be used.

    Args:
        tails: for each lane, what of a prefix it needs.
    """

    def __init__(self, tails: Sequence[Tail]) -> None:
        lanes = list(enumerate(tails))
        self._tails = tuple(tails)
        self._whole = tuple(lane for lane, tail in lanes if tail.whole)
        self._sliding = tuple((lane, tail) for lane, tail in lanes if not tail.whole and not tail.group.is_state)
        self._states = tuple(lane for lane, tail in lanes if tail.group.is_state)

    @property
    def has_states(self) -> bool:
        """Some lanes keep recurrent states."""
        return bool(self._states)

    def needed(self, length: int) -> list[tuple[int, int]]:
        """(lane, index) of every block that a prefix of `length` blocks needs, in the order of the prefix."""
        pairs = [(index, lane) for lane, tail in enumerate(self._tails) for index in range(tail.first(length), length)]
        return [(lane, index) for index, lane in sorted(pairs)]

    def longest(self, has: Sequence[Has], key_at: KeyAt, limit: int) -> int:
        """The most leading blocks, up to `limit`, of which every lane has what it needs.

        Args:
            has: for each lane.
        """
        length = self.longest_keys(has, key_at, limit)
        while length and self._states:
            state = self._last_state(has, key_at, length)
            if state == length:
                break
            length = self._without_gaps(has, key_at, state)
        return length

    def longest_keys(self, has: Sequence[Has], key_at: KeyAt, limit: int) -> int:
        """As `longest`, whatever recurrent states there are."""
        length = limit
        for lane in self._whole:
            limit, length, there = length, 0, has[lane]
            while length < limit and there(key_at(length)):
                length += 1
        return self._without_gaps(has, key_at, length)

    def _last_state(self, has: Sequence[Has], key_at: KeyAt, length: int) -> int:
        """The most blocks, up to `length`, after which there is a state."""
        while length:
            key = key_at(length - 1)
            if all(has[lane](key) for lane in self._states):
                break
            length -= 1
        return length

    def _without_gaps(self, has: Sequence[Has], key_at: KeyAt, length: int) -> int:
        """The most blocks, up to `length`, of which lanes of windows and chunks have all that they need."""
        while length and (gap := self._gap(has, key_at, length)) is not None:
            length = gap  # nothing between is possible either: every length above the gap needs the missing block
        return length

    def _gap(self, has: Sequence[Has], key_at: KeyAt, length: int) -> int | None:
        """A block that some lane needs for `length` blocks and does not have."""
        for lane, tail in self._sliding:
            for index in range(length - 1, tail.first(length) - 1, -1):
                if not has[lane](key_at(index)):
                    return index
        return None
