"""How large the cache's pages are and how many of them one sequence takes: what the choice of their number needs.

The number itself, with its reason, is chosen by octavo/config/resolve.py from these and from the memory that is free.
"""

from collections.abc import Callable, Sequence

from octavo.cache.group import KVCacheGroup
from octavo.spec.decoder import AttentionSpec, CacheNeed, DecoderSpec

_ALIGNMENT = 64  # bytes: every page starts on a cache line


def page_bytes(spec: DecoderSpec, groups: Sequence[KVCacheGroup], layer_bytes: Callable[[CacheNeed], int]) -> int:
    """Bytes of a page: the block of every layer of a group, for the group that needs most.

    Args:
        layer_bytes: what one layer takes in a page.
    """
    needs = cache_needs(spec)
    largest = max((sum(layer_bytes(needs[layer]) for layer in group.layers) for group in groups), default=_ALIGNMENT)
    return -(-largest // _ALIGNMENT) * _ALIGNMENT


def sequence_blocks(groups: Sequence[KVCacheGroup], max_len: int, block_size: int) -> int:
    """Blocks that one sequence of `max_len` tokens takes at most, all groups together."""
    return len(groups) * -(-max_len // block_size)


def cache_needs(spec: DecoderSpec) -> dict[int, CacheNeed]:
    """The need of each layer that has one, by layer."""
    needs: dict[int, CacheNeed] = {}
    for index, layer in enumerate(spec.layers):
        for block in layer.blocks:
            for branch in block.branches:
                if isinstance(branch.body, AttentionSpec):
                    (needs[index],) = branch.body.cache_needs
    return needs
