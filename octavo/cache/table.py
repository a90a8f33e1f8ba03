"""Which blocks hold one sequence's tokens and recurrent states, in each cache group."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from octavo.cache.block import BlockHash, BlockId, CacheScope
from octavo.cache.reuse import Fill

NewBlocks = tuple[tuple[BlockId, ...], ...]  # per group, recurrent states last


@dataclass(slots=True)
class BlockTable:
    """One sequence's blocks in one group: entry i holds the tokens from i * block_size on.

    Entries before `first` are stale: the sequence slid past them (or never had them) and nobody reads them.
    """

    blocks: list[BlockId] = field(default_factory=list[BlockId])
    first: int = 0

    def held(self) -> list[BlockId]:
        """The blocks that the sequence holds a reference to."""
        return self.blocks[self.first :]

    def clear(self) -> None:
        """Hold nothing."""
        self.blocks.clear()
        self.first = 0


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """How a sequence's blocks are treated while they are cached.

    Attributes:
        owner: names the sequence's request where others ask what became of their blocks.
        urgency: higher is more urgent.
        returns: its prefix is known to come again.
        retention: seconds for which the first `pinned` tokens shall stay after their last use.
    """

    owner: str = ""
    urgency: int = 0
    returns: bool = False
    retention: float = 0.0
    pinned: int = 0


@dataclass(slots=True)
class SequenceBlocks:
    """What the cache knows of one sequence. Written by the CacheManager only.

    There is a table for each group of keys and values; all have the same length. `states`: the pages that hold the
    recurrent state after the last computed token of a block, by the block's index; the last one is written to, another
    one was read by the last step. `marks`: after so many blocks a state is kept.

    `capacity` and `publish_at` are what the scheduler reads in every step, so that it calls the manager only when a
    block border is crossed.
    """

    tables: tuple[BlockTable, ...]
    scope: CacheScope
    terms: CacheTerms
    fill: Fill  # what the blocks are that it fills
    publish_at: int  # tokens that must be computed before another full block can be published
    capacity: int = 0  # tokens that the tables have room for
    generation: int = -1  # of the prefix cache that `hashes` belong to
    root: BlockHash = b""
    hashes: list[BlockHash] = field(default_factory=list[BlockHash])  # of the leading full blocks, as far as known
    states: dict[int, tuple[BlockId, ...]] = field(default_factory=dict[int, tuple[BlockId, ...]])
    marks: tuple[int, ...] = ()

    def held(self) -> Iterator[BlockId]:
        """The blocks that the sequence holds a reference to."""
        return chain(chain.from_iterable(table.held() for table in self.tables), *self.states.values())

    def count(self) -> int:
        """How many blocks it holds."""
        return sum(len(table.blocks) - table.first for table in self.tables) + sum(map(len, self.states.values()))


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached blocks for the first `tokens` tokens of a sequence; an observation, nothing is held by it.

    `blocks[g]` is group g's table up to there, in whole blocks; `firsts[g]` its first entry that must be held.
    `started[g]` is the block that holds the tokens after the last whole block, when there are any: it is copied, not
    shared, because whoever takes the match over writes on into it. `state` is the recurrent state after the last token,
    to be copied if `state_moves`: its owner writes on into these pages.
    """

    tokens: int
    blocks: NewBlocks
    firsts: tuple[int, ...]
    started: tuple[BlockId, ...] = ()
    forked: bool = False  # the blocks are those of a sequence that lives
    state: tuple[BlockId, ...] = ()
    state_moves: bool = False

    def held(self) -> Iterator[BlockId]:
        """The blocks that whoever takes the match over shares."""
        tables = (blocks[first:] for blocks, first in zip(self.blocks, self.firsts, strict=True))
        return chain(chain.from_iterable(tables), () if self.state_moves else self.state)
