"""How many pages one sequence takes: what the choice of their number depends on.

The number itself, with its reason, is chosen by octavo/config/resolve.py from this and from the memory that is free.
"""

from collections.abc import Sequence

from octavo.cache.group import KVCacheGroup


def sequence_blocks(groups: Sequence[KVCacheGroup], max_len: int, max_tokens: int, block_size: int) -> int:
    """Most blocks that one sequence of `max_len` tokens ever holds, when a step computes at most `max_tokens`."""
    return sum(group.peak(max_len, max_tokens, block_size) for group in groups)
