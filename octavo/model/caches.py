"""Where each layer's cache needs live: turns cache groups into the handles a Decoder passes to its ops."""

from collections.abc import Sequence

from octavo.cache.group import KVCacheGroup
from octavo.ops.interface import LayerCache


def layer_caches(groups: Sequence[KVCacheGroup], num_layers: int) -> tuple[tuple[LayerCache, ...], ...]:
    """Of each layer, the handle of each of its needs; a layer without any has ()."""
    caches: list[list[LayerCache]] = [[] for _ in range(num_layers)]
    for group_index, group in enumerate(groups):
        for place, layer in enumerate(group.layers):
            caches[layer].append(LayerCache(group_index, place))
    return tuple(tuple(needs) for needs in caches)
