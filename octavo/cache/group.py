"""What one sequence holds of each kind of history: which blocks are read, which are let go, how many there can be."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.ops.interface import StatePiece
from octavo.spec.decoder import CacheKind

# Tokens between two states that are kept, at least: each costs a step of its own, and steps should not get small.
_LEAST_SPAN = 512


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that need the same history and share a table.

    Layer `layers[i]` is slot i of the group's pages. A page has as many slots as its bytes allow; what is left of it
    stays unused. A group of recurrent states has `pages` pages for each state: the states of all its layers, of which
    layer `layers[i]` has `pieces[i]`.

    Attributes:
        window: of "window", tokens, the query itself included; of "chunked", tokens of a chunk.
    """

    kind: CacheKind
    window: int | None
    layers: tuple[int, ...]
    pages: int = 1
    pieces: tuple[tuple[StatePiece, ...], ...] = ()

    @property
    def is_state(self) -> bool:
        """It keeps a state after a token instead of something for every token."""
        return self.kind == "state"

    @property
    def is_whole(self) -> bool:
        """Nothing of it is ever let go of."""
        return self.kind in ("full", "latent", "step")

    @property
    def keeps(self) -> str:
        """What, in words."""
        return {
            "full": "every token",
            "window": f"the last {self.window} tokens",
            "chunked": f"the tokens of a chunk of {self.window}",
            "latent": "a compressed vector of every token",
            "state": "a state of all tokens",
            "step": "the tokens of a step",
        }[self.kind]

    def first_read(self, position: int, block_size: int) -> int:
        """Index of the first block that a query at `position` reads. Position 0 reads no state."""
        if self.kind == "state":
            return max(0, position - 1) // block_size
        if self.window is None:
            return 0
        if self.kind == "chunked":
            return position // self.window * self.window // block_size
        return max(0, position - self.window + 1) // block_size

    def first_needed(self, length: int, block_size: int) -> int:
        """The first of a prefix's `length` blocks that the token after it reads; `length` when it reads none."""
        return min(length, self.first_read(length * block_size, block_size))

    def peak(self, length: int, chunk: int, block_size: int) -> int:
        """Most pages that a sequence of `length` tokens ever needs when at most `chunk` are computed at once.

        A state is kept besides the running one only where there is room, so that counts for nothing.
        """
        whole = -(-length // block_size)
        if self.kind == "state":
            return self.pages if length else 0
        if self.window is None:
            return whole
        if self.kind == "chunked" and self.window % block_size == 0:
            # At worst the step begins with a chunk's last token.
            return min(whole, (self.window + chunk - 2) // block_size + 1)
        # The span of a step's reads and writes, at its worst alignment.
        return min(whole, (self.window - 1 + chunk + block_size - 2) // block_size + 1)


def state_interval(groups: Sequence[KVCacheGroup], block_size: int) -> int:
    """Blocks between two recurrent states that are kept: so many that these take no more than keys and values do.

    Where a state was needed is known only afterwards; Marconi (arXiv:2411.19379) therefore keeps few. Here their number
    is bounded by bytes: with the interval that is returned half of what a cached prefix takes are states. 0: no states.
    """
    state = sum(group.pages for group in groups if group.is_state)
    growing = sum(group.is_whole for group in groups)
    least = -(-_LEAST_SPAN // block_size)
    return max(least, -(-state // max(1, growing))) if state else 0
