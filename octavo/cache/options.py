"""How a cache is laid out, and what it tells of itself."""

from dataclasses import dataclass

from octavo.cache.eviction import EvictionName, EvictionPolicy


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How a cache is laid out.

    `fingerprint` names what else changes the numbers in a block: the model's content, the cache's element type.
    `pin_budget` is the share of the blocks that may be pinned. `state_interval`: blocks between two recurrent states
    that are kept; 0: see group.state_interval.
    """

    num_blocks: int
    block_size: int = 16
    prefix_caching: bool = True
    eviction: EvictionName | EvictionPolicy = "priority-frequency"
    fingerprint: str = ""
    pin_budget: float = 0.25
    state_interval: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A reading; used + cached + free == num_blocks. Counters only grow."""

    num_blocks: int
    used: int  # referenced by sequences
    cached: int  # not referenced, contents kept
    free: int
    evictions: int
    pinned: int = 0  # of the used and the cached ones
    pins_refused: int = 0  # blocks there was no budget for
    pins_broken: int = 0  # blocks that a sequence could not do without
    misses: tuple[tuple[str, int], ...] = ()  # prompt tokens not found, by cause; see flow/cache_report.py
