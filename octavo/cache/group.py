"""Which layers share a block table, so that every group's pages have one byte size and come from one pool."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.errors import UnsupportedError
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import CacheNeed, DecoderSpec

# Page slots that no layer uses, as a share of the layers: the price of fewer groups.
_MAX_PADDING = 0.04


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that need the same history and share a table.

    Layer `layers[i]` is slot i of the group's pages. A page has as many slots as the largest group has layers; a
    smaller group leaves its last slots unused. `window` counts the query itself.
    """

    kind: Literal["full", "window"]
    window: int | None
    layers: tuple[int, ...]

    def tail(self, block_size: int) -> int | None:
        """How many of a prefix's last blocks the next token reads; None when it reads all."""
        return None if self.window is None else -(-(self.window - 1) // block_size)

    def first_read(self, position: int, block_size: int) -> int:
        """Index of the first block that a query at `position` reads."""
        return 0 if self.window is None else max(0, position - self.window + 1) // block_size

    def peak(self, length: int, chunk: int, block_size: int) -> int:
        """Most blocks that a sequence of `length` tokens ever holds when at most `chunk` are computed at once."""
        whole = -(-length // block_size)
        if self.window is None:
            return whole
        # The span of a step's reads and writes, at its worst alignment.
        return min(whole, (self.window - 1 + chunk + block_size - 2) // block_size + 1)


def layer_needs(spec: DecoderSpec) -> dict[int, CacheNeed]:
    """What each layer keeps; layers that keep nothing are absent.

    Raises:
        UnsupportedError: a layer has more than one need.
    """
    needs: dict[int, CacheNeed] = {}
    for index, layer in enumerate(spec.layers):
        for block in layer.blocks:
            for branch in block.branches:
                for need in getattr(branch.body, "cache_needs", ()):
                    if index in needs:
                        raise UnsupportedError(f"layer {index} keeps more than one kind of history")
                    needs[index] = need
    return needs


def groups_for(spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
    """Divide a model's layers into groups of (nearly) equal numbers of layers: full ones first, then windows.

    Raises:
        UnsupportedError: a layer has more than one need.
    """
    by_kind: dict[tuple[Literal["full", "window"], int | None], list[int]] = defaultdict(list)
    for index, need in layer_needs(spec).items():
        by_kind[need.kind, need.window].append(index)
    kinds = sorted(by_kind.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    size = _group_size([len(layers) for _, layers in kinds])
    return tuple(
        KVCacheGroup(kind, window, tuple(layers[start : start + size]))
        for (kind, window), layers in kinds
        for start in range(0, len(layers), size)
    )


def _group_size(counts: Sequence[int]) -> int:
    """The most layers a page can hold while little of it stays unused: few tables, and no waste worth naming."""
    total = sum(counts)
    return max(
        (
            size
            for size in range(1, max(counts, default=1) + 1)
            if sum(-(-count // size) * size for count in counts) <= total * (1 + _MAX_PADDING)
        ),
        default=1,
    )


def layers_per_page(groups: Sequence[KVCacheGroup]) -> int:
    """Layer slots of every page."""
    return max((len(group.layers) for group in groups), default=0)


def layer_elements(spec: DecoderSpec) -> int:
    """Elements that a layer slot keeps per token: keys and values of the layer that needs most."""
    needs = layer_needs(spec).values()
    return max((need.kv_heads * (need.key_width + need.value_width) for need in needs), default=0)


def page_elements(spec: DecoderSpec, groups: Sequence[KVCacheGroup], block_size: int) -> int:
    """Elements of one page, the unit of the pool; times the element's bytes, it is a block's size in memory."""
    return layers_per_page(groups) * block_size * layer_elements(spec)


def layer_caches(groups: Sequence[KVCacheGroup]) -> dict[int, LayerCache]:
    """Where each layer's keys and values live."""
    return {
        layer: LayerCache(group, index)
        for group, member in enumerate(groups)
        for index, layer in enumerate(member.layers)
    }
