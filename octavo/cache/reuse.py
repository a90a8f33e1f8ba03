"""How likely cached blocks are to be used again: learnt by kind while the cache runs."""

from math import log2
from typing import Literal

# How a request began: nothing of its prompt was found; it left a cached prefix that others went on from; it went on
# from the end of what was cached, as a conversation does; it says itself that it will come again.
Beginning = Literal["new", "branches", "continues", "returns"]

_BEGINNINGS: dict[Beginning, int] = {"new": 0, "branches": 1, "continues": 2, "returns": 3}
_SIZES = 20  # powers of two
_KINDS = (len(_BEGINNINGS) + 1) * _SIZES
_REUSED = len(_BEGINNINGS) * _SIZES
# Blocks after which an old observation counts half, of a kind.
_MEMORY = 4096.0
# A kind that little is known of is taken for an average one: as if so many blocks of it had been seen.
_UNKNOWN = 16.0
# Chances beyond these count as these: what probably comes back is kept in the order of its use alone.
_LEAST, _MOST = 0.01, 0.7


def kind_of_request(beginning: Beginning, tokens: int) -> int:
    """The kind of blocks that nobody has reused yet, by the request that filled them.

    Args:
        tokens: of the prompt that had to be computed: whole documents come back less often than questions.
    """
    return _BEGINNINGS[beginning] * _SIZES + min(_SIZES - 1, tokens.bit_length())


def kind_of_reuse(hits: int) -> int:
    """The kind of blocks that were reused."""
    return _REUSED + min(_SIZES - 1, hits.bit_length())


class ReuseModel:
    """Counts, of each kind, how many blocks came back and how many were forgotten first. Mutable; the pool owns it.

    What is forgotten and then computed again did come back, too late: a cache that is too small still learns.
    """

    def __init__(self) -> None:
        self._reused = [0.0] * _KINDS
        self._seen = [0.0] * _KINDS
        self._all_reused, self._all_seen = 0.5, 1.0
        self._bonus: list[float | None] = [None] * _KINDS

    def note(self, kind: int, reused: bool) -> None:
        """A block of a kind was used again, or was forgotten."""
        self._bonus[kind] = None
        self._seen[kind] += 1.0
        self._all_seen += 1.0
        if reused:
            self._reused[kind] += 1.0
            self._all_reused += 1.0
        if self._seen[kind] > 2 * _MEMORY:
            self._seen[kind] /= 2
            self._reused[kind] /= 2
        if self._all_seen > 8 * _MEMORY:
            self._all_seen /= 2
            self._all_reused /= 2

    def regret(self, kind: int) -> None:
        """A block that was noted as forgotten would have been used again."""
        self._bonus[kind] = None
        self._reused[kind] += 1.0
        self._all_reused += 1.0

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
