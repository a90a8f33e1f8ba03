"""Which token blocks follow each cached prefix: to tell where a prompt left what is cached."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from octavo.cache.block import BlockHash

# A popular prefix may have any number of followers; so many, the youngest, are compared with.
_MOST_COMPARED = 1024


@dataclass(frozen=True, slots=True)
class Branch:
    """A cached block that begins like a prompt: `common` tokens are equal, `tokens` are all of its own."""

    common: int
    tokens: tuple[int, ...]


class Branches:
    """The tokens of cached blocks by the hash of the block before. Mutable; the CacheManager owns it."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, tuple[BlockHash, bytes]] = {}  # parent and tokens
        # Most blocks have one follower: a dictionary for each would take more room than all the rest.
        self._followers: dict[BlockHash, BlockHash | dict[BlockHash, None]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, parent: BlockHash, key: BlockHash, token_ids: Sequence[int]) -> None:
        """A block became findable."""
        if key in self._blocks:
            return
        self._blocks[key] = (parent, array("I", token_ids).tobytes())
        others = self._followers.get(parent)
        if others is None:
            self._followers[parent] = key
        elif isinstance(others, dict):
            others[key] = None
        else:
            self._followers[parent] = {others: None, key: None}

    def remove(self, key: BlockHash) -> None:
        """A block is not findable any more."""
        found = self._blocks.pop(key, None)
        if found is None:
            return
        others = self._followers[found[0]]
        if isinstance(others, dict) and len(others) > 1:
            del others[key]
        else:
            del self._followers[found[0]]

    def follows(self, parent: BlockHash) -> bool:
        """Something that follows `parent` is cached."""
        return parent in self._followers

    def nearest(self, parent: BlockHash, token_ids: Sequence[int]) -> Branch | None:
        """Of the cached blocks that follow `parent` the one that has most leading tokens in common with these."""
        best: Branch | None = None
        for key in islice(self._after(parent), _MOST_COMPARED):
            tokens = array("I")
            tokens.frombytes(self._blocks[key][1])
            common = _common(tokens, token_ids)
            if best is None or common > best.common:
                best = Branch(common, tuple(tokens))
        return best

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._followers.clear()

    def _after(self, parent: BlockHash) -> Iterable[BlockHash]:
        others = self._followers.get(parent)
        if others is None:
            return ()
        return reversed(others) if isinstance(others, dict) else (others,)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items are equal."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
