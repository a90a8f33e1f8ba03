"""What the next step computes: the only message from the scheduler to the executor."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from octavo.flow.pooling import Pooling
from octavo.flow.request import Sampling


# A msgspec struct, because one is made per row and step: a frozen dataclass takes ten times as long to construct.
class PlannedRow(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step.

    `new_blocks[g]` are the block ids that group g's table gained for this step, in order; a window group's table keeps
    its length (slid-out blocks stay as stale entries that are never read). Of a group of recurrent states it is the
    pages that take the state from this step on, when they change: after those that the state is read from, when the
    device does not know them.
    """

    sequence: int
    slot: int  # permanent device row, until the sequence ends or is preempted
    start: int  # position of the first token to compute
    count: int  # tokens to compute: 1 in decode, more in prefill
    new_blocks: tuple[tuple[int, ...], ...]
    samples: bool  # a token follows (false for all but the last prefill chunk)
    output_index: int = 0  # index of the token to be sampled among the sequence's outputs: position of the draw
    suppress_stop: bool = False  # min_tokens not reached: stop and eos ids must not be drawn


@dataclass(frozen=True, slots=True)
class SlotArrival:
    """A sequence that takes a slot now: its tokens so far (prompt, then outputs when it was preempted before)."""

    slot: int
    sequence: int
    token_ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()  # stop and eos ids, for `suppress_stop`
    pooling: Pooling | None = None  # nothing is drawn of it
    mirostat_mu: float | None = None  # the state of its draws, when it was preempted before


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a block's contents before the forward; ids are of one pool."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class BlockSpill:
    """Keep a block's contents in host memory as `key`, before anything of the step is written."""

    block: int
    key: bytes
    ticket: int = 0  # which TierEvent tells how it went


@dataclass(frozen=True, slots=True)
class BlockFetch:
    """Bring the contents that host memory keeps as `key` into a block, before the forward."""

    key: bytes
    block: int
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class TierOrder:
    """What happens between host memory and a slower tier, in its own time; no step waits for it.

    load: from `tier` into host memory. store: from host memory to `tier`. drop: forget `key` in `tier` ("host" is host
    memory). clear: forget everything; what is stored from now on is of `generation`.
    """

    kind: Literal["load", "store", "drop", "clear"]
    tier: str
    key: bytes = b""
    ticket: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Complete: the executor asks nobody else.

    Order: released, arrivals, spills, copies, fetches, then the rows' forward; orders are begun after the spills.
    """

    step: int
    rows: tuple[PlannedRow, ...]
    arrivals: tuple[SlotArrival, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    released: tuple[int, ...] = ()  # slots that are free from now on
    preempted: tuple[int, ...] = ()  # sequences, for metrics; their slots are in `released`
    spills: tuple[BlockSpill, ...] = ()
    fetches: tuple[BlockFetch, ...] = ()
    orders: tuple[TierOrder, ...] = ()
    awaits: bool = False  # without rows: nothing can be done before a tier has news, so wait (briefly) for them

    @property
    def num_tokens(self) -> int:
        """Tokens the forward computes."""
        return sum(row.count for row in self.rows)

    @property
    def runs(self) -> bool:
        """There is something to do in it."""
        return bool(self.rows or self.spills or self.fetches or self.orders or self.awaits)
