"""How a model's layers are divided into groups whose pages have one byte size, so that all come from one pool."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from octavo.cache.group import KVCacheGroup
from octavo.config.cache_types import ROTATED_TYPES, CacheTypes
from octavo.errors import UnsupportedError
from octavo.ops.interface import LayerCache, StatePiece
from octavo.spec.decoder import CacheKind, CacheNeed, DecoderSpec

LayerBytes = Callable[[int, CacheNeed], int]  # of one layer in a page of keys and values

# Bytes of pages that no layer uses, as a share of those used: the price of fewer groups.
_MAX_PADDING = 0.04
_ALIGNMENT = 64  # bytes, of pieces
_LEAST_BLOCKS = 32  # of keys and values for one recurrent state, when the page's size is chosen


def layer_needs(spec: DecoderSpec) -> dict[int, CacheNeed]:
    """What each layer keeps; layers that keep nothing, or read what another one keeps, are absent.

    Raises:
        UnsupportedError: a layer has more than one need, or reads one that keeps nothing.
    """
    return {index: need for index, need in _all_needs(spec).items() if need.shares is None}


def kept_types(spec: DecoderSpec, types: CacheTypes) -> dict[int, str]:
    """The type in which each layer's keys and values are kept; layers that keep something else are absent.

    Raises:
        ConfigError: a layer that is to be skipped is not there.
        UnsupportedError: int8 or int4 for latents that cannot be rotated without the key beside them.
    """
    needs = {index: need for index, need in layer_needs(spec).items() if need.kind != "state"}
    kept = types.of_layers(needs, len(spec.layers))
    for index, need in needs.items():
        if kept[index] in ROTATED_TYPES and not need.can_rotate:
            raise UnsupportedError(
                f"kv_cache_dtype {kept[index]} rotates what is kept, which does not fit the latents of layer {index}, "
                f"{need.key_width} wide with their key: use fp8_e4m3, fp8_e5m2 or {types.plain}"
            )
    return kept


def groups_for(spec: DecoderSpec, layer_bytes: LayerBytes | None = None) -> tuple[KVCacheGroup, ...]:
    """Divide a model's layers into groups: those that keep everything first, recurrent states last.

    Layers of one group need the same history; they may take different numbers of bytes. The pages' size is the largest
    with which little of them stays unused, and a recurrent state takes as many of them as it needs.

    Args:
        layer_bytes: what a layer takes in a page; without it elements are counted, which is right when they are of
            one size and there are no recurrent layers.

    Raises:
        UnsupportedError: a layer has more than one need, or reads one that keeps nothing.
    """
    by_history: dict[tuple[CacheKind, int], dict[int, int]] = defaultdict(dict)
    states: dict[int, tuple[int, ...]] = {}
    for index, need in layer_needs(spec).items():
        if need.kind == "state":
            states[index] = tuple(-(-size // _ALIGNMENT) * _ALIGNMENT for size in need.pieces)
        else:
            by_history[need.kind, need.window or 0][index] = max(1, (layer_bytes or _elements)(index, need))
    page = _page_size([list(sizes.values()) for sizes in by_history.values()], list(states.values()))
    groups = [
        KVCacheGroup(kind, window or None, layers)
        for (kind, window), sizes in sorted(by_history.items())
        for layers in _divide(sizes, page)
    ]
    if states:
        pages, pieces = _pack(list(states.values()), page)
        groups.append(KVCacheGroup("state", None, tuple(states), pages, tuple(pieces)))
    return tuple(groups)


def page_bytes(spec: DecoderSpec, groups: Sequence[KVCacheGroup], layer_bytes: LayerBytes) -> int:
    """Bytes of a page: what the group takes that needs most, whole cache lines.

    Args:
        layer_bytes: as given to `groups_for`.
    """
    needs = layer_needs(spec)
    largest = max(
        (
            _state_extent(needs, group)
            if group.is_state
            else sum(layer_bytes(layer, needs[layer]) for layer in group.layers)
            for group in groups
        ),
        default=_ALIGNMENT,
    )
    return -(-largest // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Where in a page a layer's keys and values begin, bytes, and how they are kept."""

    offset: int
    type: str


@dataclass(frozen=True, slots=True)
class PageLayout:
    """A page: its size, and the layers of keys and values in it, by group and index in that."""

    page_bytes: int
    layers: Mapping[tuple[int, int], LayerPart]


def page_layout(
    spec: DecoderSpec, groups: Sequence[KVCacheGroup], layer_bytes: LayerBytes, kept: Mapping[int, str]
) -> PageLayout:
    """What pages are made of.

    Args:
        layer_bytes: as given to `groups_for`.
        kept: the type of each layer.
    """
    offsets = layer_offsets(spec, groups, layer_bytes)
    layers = {place: LayerPart(at, kept[groups[place[0]].layers[place[1]]]) for place, at in offsets.items()}
    return PageLayout(page_bytes(spec, groups, layer_bytes), layers)


def layer_offsets(
    spec: DecoderSpec, groups: Sequence[KVCacheGroup], layer_bytes: LayerBytes
) -> dict[tuple[int, int], int]:
    """At which byte of a page each layer of keys and values begins, by group and index in it.

    Args:
        layer_bytes: as given to `groups_for`; multiples of 64.
    """
    needs, offsets = layer_needs(spec), dict[tuple[int, int], int]()
    for number, group in enumerate(groups):
        start = 0
        for index, layer in enumerate(() if group.is_state else group.layers):
            offsets[number, index] = start
            start += layer_bytes(layer, needs[layer])
    return offsets


def layer_caches(spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> dict[int, LayerCache]:
    """Where each layer's history lies; that of a layer which shares is its owner's."""
    places = {
        layer: LayerCache(group, index, member.pieces[index] if member.is_state else ())
        for group, member in enumerate(groups)
        for index, layer in enumerate(member.layers)
    }
    shared = {index: need.shares for index, need in _all_needs(spec).items() if need.shares is not None}
    return places | {index: places[owner] for index, owner in shared.items()}


def state_pages(groups: Sequence[KVCacheGroup]) -> tuple[int, ...]:
    """For each group the pages of a recurrent state; 0 where it keeps keys and values."""
    return tuple(group.pages if group.is_state else 0 for group in groups)


def _all_needs(spec: DecoderSpec) -> dict[int, CacheNeed]:
    needs: dict[int, CacheNeed] = {}
    for index, layer in enumerate(spec.layers):
        for block in layer.blocks:
            for branch in block.branches:
                for need in getattr(branch.body, "cache_needs", ()):
                    if index in needs:
                        raise UnsupportedError(f"layer {index} keeps more than one kind of history")
                    needs[index] = need
    first: dict[CacheNeed, int] = {}
    for index, need in list(needs.items()):
        # What a step alone needs is read before the next layer writes: alike layers use the same place.
        if need.kind == "step" and first.setdefault(need, index) != index:
            needs[index] = replace(need, shares=first[need])
    for index, need in needs.items():
        owner = None if need.shares is None else needs.get(need.shares)
        if need.shares is not None and (owner is None or owner.shares is not None or owner.kind == "state"):
            raise UnsupportedError(f"layer {index} reads keys and values of layer {need.shares}, which keeps none")
    return needs


def _elements(layer: int, need: CacheNeed) -> int:
    return need.kv_heads * (need.key_width + need.value_width)


def _divide(sizes: Mapping[int, int], page: int) -> list[tuple[int, ...]]:
    """Layers into pages: each, the largest first, into the first page with room for it."""
    pages: list[list[int]] = []
    room: list[int] = []
    for layer in sorted(sizes, key=lambda layer: (-sizes[layer], layer)):
        at = next((number for number, left in enumerate(room) if left >= sizes[layer]), len(pages))
        if at == len(pages):
            pages.append([])
            room.append(page)
        pages[at].append(layer)
        room[at] -= sizes[layer]
    return sorted(tuple(sorted(layers)) for layers in pages)


def _page_size(kinds: Sequence[Sequence[int]], states: Sequence[tuple[int, ...]]) -> int:
    """Bytes of a page: the most of which little stays unused, or else those of which least does.

    Args:
        kinds: bytes of each layer, for each kind of keys and values.
        states: bytes of each recurrent layer's pieces.
    """
    largest = max((piece for pieces in states for piece in pieces), default=0)
    least = max([largest, *(max(layers) for layers in kinds)])
    sizes = {total for layers in kinds for ordered in _orders(layers) for total in accumulate(ordered)} | {least}
    for piece in {piece for pieces in states for piece in pieces}:
        sizes.update(piece * count for count in range(1, 2 * max(sizes) // piece + 1))
    if not kinds:
        sizes.add(sum(map(sum, states)))
    padding = {size: _padding(size, kinds, states) for size in sizes if size >= max(1, least)}
    fine = [size for size, share in padding.items() if share <= _MAX_PADDING]
    return max(fine) if fine else min(padding, key=lambda size: (padding[size], -size), default=1)


def _orders(layers: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Orders in which sums of the first layers are sizes that pages may have."""
    return (layers,) if len(set(layers)) == 1 else (layers, sorted(layers), sorted(layers, reverse=True))


def _padding(page: int, kinds: Sequence[Sequence[int]], states: Sequence[tuple[int, ...]]) -> float:
    """Bytes unused per byte used, of one state and the blocks up to the next one that is kept; see state_interval."""
    keys, state = sum(map(sum, kinds)), sum(map(sum, states))
    blocks = max(_LEAST_BLOCKS, state / keys) if keys else 0
    taken = blocks * sum(_pages_of(layers, page) * page for layers in kinds)
    if states:
        taken += _pack(states, page)[0] * page
    used = blocks * keys + state
    return taken / used - 1 if used else 0.0


def _pages_of(layers: Sequence[int], page: int) -> int:
    if len(set(layers)) == 1:
        return -(-len(layers) // (page // layers[0]))
    return len(_divide(dict(enumerate(layers)), page))


def _pack(states: Sequence[tuple[int, ...]], page: int) -> tuple[int, list[tuple[StatePiece, ...]]]:
    """Lay pieces into pages, each into the first one with room; how many pages that takes, and where each piece is."""
    smallest = min((piece for pieces in states for piece in pieces), default=1)
    used: list[int] = []  # bytes of each page
    open_pages: list[int] = []  # those that a piece may still fit into
    places: list[tuple[StatePiece, ...]] = []
    for pieces in states:
        own: list[StatePiece] = []
        for size in pieces:
            at = next((number for number in open_pages if used[number] + size <= page), len(used))
            if at == len(used):
                used.append(0)
                open_pages.append(at)
            own.append(StatePiece(at, used[at]))
            used[at] += size
            if used[at] + smallest > page:
                open_pages.remove(at)
        places.append(tuple(own))
    return len(used), places


def _state_extent(needs: dict[int, CacheNeed], group: KVCacheGroup) -> int:
    """Bytes of a page up to the end of the last piece."""
    return max(
        piece.offset + size
        for layer, pieces in zip(group.layers, group.pieces, strict=True)
        for piece, size in zip(pieces, needs[layer].pieces, strict=True)
    )
