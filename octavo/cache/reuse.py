"""How likely cached blocks are to be used again: learnt by kind while the cache runs."""

from math import log2
from typing import Literal, NamedTuple

# How a request began: nothing of its prompt was found; it left a cached prefix that others went on from; it went on
# from the end of what was cached, as a conversation does; it says itself that it will come again.
Beginning = Literal["new", "branches", "continues", "returns"]

_BEGINNINGS: dict[Beginning, int] = {"new": 0, "branches": 1, "continues": 2, "returns": 3}
_SIZES = 8  # powers of eight: finer ones see too few requests each to tell chance from reason
_COUNTS = 20  # powers of two
_REUSED = len(_BEGINNINGS) * _SIZES
_KINDS = _REUSED + _COUNTS
# All in requests. A kind's past counts half when it has been seen so often again ...
_MEMORY = 512.0
# ... and a kind that little is known of is taken for an average one, as if it had been seen so often.
_UNKNOWN = 4.0
# Chances beyond these count as these: what probably comes back is kept in the order of its use alone.
_LEAST, _MOST = 0.01, 0.7


class Fill(NamedTuple):
    """What a request's blocks are: their kind, and the weight of each of them as evidence for it."""

    kind: int
    weight: float


UNKNOWN = Fill(0, 0.0)  # of a sequence that was never looked up


def kind_of_request(beginning: Beginning, tokens: int) -> int:
    """The kind of blocks that nobody has reused yet, by the request that filled them.

    Args:
        tokens: of the prompt that had to be computed: whole documents come back less often than questions.
    """
    return _BEGINNINGS[beginning] * _SIZES + min(_SIZES - 1, tokens.bit_length() // 3)


def kind_of_reuse(hits: int) -> int:
    """The kind of blocks that were reused."""
    return _REUSED + min(_COUNTS - 1, hits.bit_length())


class ReuseModel:
    """Counts, of each kind, how much came back and how much was forgotten first. Mutable; the CacheManager owns it.

    The blocks of a request share one fate, nearly: each is a part of one observation, its `weight`. What is forgotten
    and then computed again did come back, too late: a cache that is too small still learns.
    """

    def __init__(self) -> None:
        self._reused = [0.0] * _KINDS
        self._seen = [0.0] * _KINDS
        self._all_reused, self._all_seen = 0.5, 1.0
        self._bonus: list[float | None] = [None] * _KINDS

    def note(self, kind: int, reused: bool, weight: float = 1.0) -> None:
        """A block of a kind was used again, or was forgotten."""
        self._bonus[kind] = None
        self._seen[kind] += weight
        self._all_seen += weight
        if reused:
            self._reused[kind] += weight
            self._all_reused += weight
        if self._seen[kind] > 2 * _MEMORY:
            self._seen[kind] /= 2
            self._reused[kind] /= 2
        if self._all_seen > 8 * _MEMORY:
            self._all_seen /= 2
            self._all_reused /= 2

    def regret(self, kind: int, weight: float = 1.0) -> None:
        """A block that was noted as forgotten would have been used again."""
        self._bonus[kind] = None
        self._reused[kind] += weight
        self._all_reused += weight

    def chance(self, kind: int) -> float:
        """That a block of a kind is used again, 0 to 1."""
        mean = self._all_reused / self._all_seen
        return min(1.0, (self._reused[kind] + _UNKNOWN * mean) / (self._seen[kind] + _UNKNOWN))

    def bonus(self, kind: int) -> float:
        """Binary logarithm of the chance; less than 0."""
        known = self._bonus[kind]
        if known is None:
            self._bonus[kind] = known = log2(min(_MOST, max(_LEAST, self.chance(kind))))
        return known
