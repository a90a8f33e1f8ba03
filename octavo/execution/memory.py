"""How large the cache's pages are and how many one sequence takes: what the choice of their number depends on.

The number itself, with its reason, is chosen by octavo/config/resolve.py from these and from the memory that is free.
"""

from collections.abc import Callable, Sequence

from octavo.cache.group import KVCacheGroup, layer_needs
from octavo.spec.decoder import CacheNeed, DecoderSpec

_ALIGNMENT = 64  # bytes: every page starts on a cache line


def page_bytes(spec: DecoderSpec, groups: Sequence[KVCacheGroup], layer_bytes: Callable[[CacheNeed], int]) -> int:
    """Bytes of a page: the block of every layer of a group, for the group that needs most.

    Args:
        layer_bytes: what one layer with a need takes in a page.
    """
    needs = layer_needs(spec)
    largest = max((sum(layer_bytes(needs[layer]) for layer in group.layers) for group in groups), default=_ALIGNMENT)
    return -(-largest // _ALIGNMENT) * _ALIGNMENT


def sequence_blocks(groups: Sequence[KVCacheGroup], max_len: int, max_tokens: int, block_size: int) -> int:
    """Most blocks that one sequence of `max_len` tokens ever holds, when a step computes at most `max_tokens`."""
    return sum(group.peak(max_len, max_tokens, block_size) for group in groups)
