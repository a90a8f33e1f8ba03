"""Why a prompt was not found in the cache beyond some block, counted by cause and told on demand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from octavo.cache.block import BlockHash
from octavo.cache.branches import Branches
from octavo.cache.history import EvictionHistory
from octavo.cache.prefix_index import PrefixIndex
from octavo.flow.cache_report import CacheMiss, MissCause


class MissJournal:
    """Looks into what the cache remembers. Mutable: it counts; the CacheManager owns it.

    Counting costs a few look-ups a request, whatever its length; only `explain` compares tokens.
    """

    def __init__(self, index: PrefixIndex, history: EvictionHistory, branches: Branches) -> None:
        self._index = index
        self._history = history
        self._branches = branches
        self._counts: Counter[MissCause] = Counter()

    def note(self, cause: MissCause, position: int, tokens: int) -> CacheMiss:
        """Count `tokens` tokens from `position` on that were computed although they could have been found."""
        self._counts[cause] += tokens
        return CacheMiss(cause, position, tokens)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Tokens not found, by cause; they only grow."""
        return tuple(self._counts.items())

    def cause(self, parent: BlockHash, key: BlockHash, first: bool, salted: bool) -> MissCause:
        """Why block `key` after `parent` was not usable.

        Args:
            first: it is a prompt's first block.
            salted: the prompt has a salt of its own.
        """
        if self._index.holds(key):
            return "state" if self._index.has_states else "window"
        if self._history.find(key) is not None:
            return "evicted"
        if self._branches.follows(parent):
            return "new" if first else "diverged"
        return "salt" if first and salted else "new"

    def explain(
        self, miss: CacheMiss, parent: BlockHash, key: BlockHash, token_ids: Sequence[int], now: float
    ) -> CacheMiss:
        """`miss` with all that is known of it.

        Args:
            token_ids: of block `key` and all after it.
        """
        lost = self._history.find(key) if miss.cause in ("evicted", "window", "state") else None
        if lost is not None:
            return replace(miss, by=lost.by, ago=now - lost.at, idle=lost.idle)
        branch = self._branches.nearest(parent, token_ids) if miss.cause in ("new", "diverged") else None
        if branch is None:
            return miss
        cause = "diverged" if branch.common else miss.cause
        return replace(miss, cause=cause, position=miss.position + branch.common, cached=branch.tokens[branch.common :])
