"""What the prefix cache did for a request: how much of its prompt was found, and why not more."""

from dataclasses import dataclass
from typing import Literal

# new: what follows the prefix found was never cached, or is long forgotten.
# diverged: what is cached there goes on with other tokens.
# evicted: it was cached, and others needed the room.
# salt: nothing at all is cached under the request's cache_salt.
# window: the whole prefix is there, but not all that sliding-window layers read of it.
# state: the whole prefix is there, but no recurrent state was kept after it.
# scored: prompt log-probabilities were asked for, so the positions had to be computed.
# off: prefix caching is switched off.
MissCause = Literal["new", "diverged", "evicted", "salt", "window", "state", "scored", "off"]


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why the tokens from `position` on were not found.

    Attributes:
        cause: see MissCause.
        position: of the first token that was not found; where a cached prompt diverged, the first that differs.
        tokens: how many were computed although the cache could have held them.
        cached: tokens that are cached from `position` on instead, in the nearest prefix.
        by: the request that needed the room of what was evicted.
        ago: seconds since it was evicted.
        idle: seconds that it had not been used for by then.
    """

    cause: MissCause
    position: int
    tokens: int
    cached: tuple[int, ...] = ()
    by: str = ""
    ago: float = 0.0
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheReport:
    """One request's look-up. `tiers`: how many whole blocks were found, by the tier they were found in."""

    prompt_tokens: int
    hit_tokens: int
    block_size: int
    tiers: tuple[tuple[str, int], ...] = ()
    miss: CacheMiss | None = None
