"""What a pooled request asks for, and what comes of it."""

from dataclasses import dataclass

import msgspec

from octavo.spec.pooling import PoolingType, Squashing


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a request's hidden states become its answer; every value is final.

    Attributes:
        how: which states are taken.
        normalize: the answer gets the length 1, after it was cut to `dimensions` (0: not cut).
        squashing: of the numbers of a classifier.
        second_at: position of the first token of the second text of a pair; 0: there is one text.
        skipped: of "all": tokens whose states are left out.
        step_tag, returned: of "step": the token whose states are taken, and which of their numbers; (): all.
    """

    how: PoolingType
    normalize: bool = False
    squashing: Squashing = "none"
    dimensions: int = 0
    second_at: int = 0
    step_tag: int = -1
    returned: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()

    @property
    def needs_all(self) -> bool:
        """States of all the prompt's tokens, or of the first: none of them may come out of the prefix cache."""
        return self.how != "last"


class Pooled(msgspec.Struct, frozen=True, gc=False):
    """An answer: `rows` vectors of `width` float32 numbers, as little-endian bytes."""

    data: bytes
    rows: int
    width: int
