"""Layers are divided so that pages have one size and little of them stays unused."""

from dataclasses import dataclass
from itertools import pairwise

import pytest

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import (
    groups_for,
    layer_caches,
    layer_needs,
    layer_offsets,
    page_bytes,
    state_pages,
)
from octavo.errors import UnsupportedError
from octavo.spec.decoder import (
    AttentionSpec,
    BlockSpec,
    BranchSpec,
    CacheNeed,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    LayerSpec,
    NormSpec,
    sequential,
)

NORM = NormSpec("rms", 1e-6)
MLP = DenseMlpSpec(8, "silu")


def attention(window=None, kv_heads=1):
    return AttentionSpec(heads=4, kv_heads=kv_heads, head_dim=8, scale=1.0, rope=None, window=window)


def decoder(windows):
    layers = tuple(sequential(attention(window), MLP, NORM) for window in windows)
    return DecoderSpec(32, layers, EmbeddingSpec(10, 32), NORM, HeadSpec(True), 128)


def test_one_kind_is_one_group():
    spec = decoder([None] * 30)
    (group,) = groups_for(spec)
    assert group == KVCacheGroup("full", None, tuple(range(30)))
    assert page_bytes(spec, [group], lambda _, need: 64 * need.kv_heads * need.key_width) == 30 * 64 * 8


def test_gemma_270m_has_six_groups_of_three():
    windows = [None if index % 6 == 5 else 512 for index in range(18)]
    groups = groups_for(decoder(windows))
    assert groups[0] == KVCacheGroup("full", None, (5, 11, 17))
    assert [len(group.layers) for group in groups] == [3] * 6
    assert all(group.window == 512 for group in groups[1:])


@pytest.mark.parametrize(
    ("window", "full", "size"), [(22, 4, 2), (29, 5, 5), (40, 8, 8), (52, 10, 4), (1, 1, 1), (0, 7, 7), (9, 0, 9)]
)
def test_every_layer_has_a_place_and_padding_is_under_four_percent(window, full, size):
    spec = decoder([None] * full + [64] * window)
    groups = groups_for(spec)
    assert max((len(group.layers) for group in groups), default=0) == size
    assert sorted(layer for group in groups for layer in group.layers) == list(range(window + full))
    assert len(groups) * size <= 1.04 * (window + full)
    places = layer_caches(spec, groups)
    assert len({(place.group, place.index) for place in places.values()}) == window + full
    assert all(groups[place.group].layers[place.index] == layer for layer, place in places.items())


def test_different_windows_do_not_share_a_table():
    groups = groups_for(decoder([4, 8, None, 4]))
    assert {(group.window, group.layers) for group in groups} == {(None, (2,)), (4, (0,)), (4, (3,)), (8, (1,))}


def test_layers_of_unequal_sizes_share_pages_without_waste():
    layers = tuple(sequential(attention(kv_heads=heads), MLP, NORM) for heads in (1, 4, 2))
    spec = DecoderSpec(32, layers, EmbeddingSpec(10, 32), NORM, HeadSpec(True), 128)

    def layer_bytes(layer, need):
        return 64 * need.kv_heads

    (group,) = groups = groups_for(spec, layer_bytes)
    assert group.layers == (0, 1, 2)
    assert page_bytes(spec, groups, layer_bytes) == 7 * 64
    assert layer_offsets(spec, groups, layer_bytes) == {(0, 0): 0, (0, 1): 64, (0, 2): 5 * 64}


def test_two_histories_in_a_layer_are_refused():
    twice = LayerSpec((BlockSpec((BranchSpec(attention(), NORM), BranchSpec(attention(8), NORM))),))
    with pytest.raises(UnsupportedError, match="layer 0"):
        groups_for(DecoderSpec(32, (twice,), EmbeddingSpec(10, 32), NORM, HeadSpec(True), 128))


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_peak_is_the_worst_span_of_a_step(window, block_size):
    group = KVCacheGroup("window", window, (0,))
    for chunk in range(1, 8):
        held = [(start + chunk - 1) // block_size - group.first_read(start, block_size) + 1 for start in range(30, 50)]
        assert max(held) == group.peak(1000, chunk, block_size)


@dataclass(frozen=True)
class Keeps:
    """A body that keeps something."""

    need: CacheNeed

    @property
    def cache_needs(self):
        return (self.need,)


def model(*needs):
    layers = tuple(LayerSpec((BlockSpec((BranchSpec(Keeps(need), NORM),)),)) for need in needs)
    return DecoderSpec(32, layers, EmbeddingSpec(10, 32), NORM, HeadSpec(True), 128)


def layer_bytes(layer, need):
    return 16 * 2 * need.kv_heads * (need.key_width + need.value_width)


def waste(spec):
    """Shares of pages that nothing uses: of a block of every group, and of a state."""
    groups = groups_for(spec, layer_bytes)
    page = page_bytes(spec, groups, layer_bytes)
    needs = layer_needs(spec)
    keys = sum(layer_bytes(layer, needs[layer]) for group in groups if not group.is_state for layer in group.layers)
    states = sum(sum(needs[layer].pieces) for group in groups if group.is_state for layer in group.layers)
    return 1 - keys / (page * sum(not group.is_state for group in groups)), 1 - states / (page * groups[-1].pages)


FULL = CacheNeed("full", 2, 256, 256)
# Shapes of real models: Qwen3-Next (delta-nets), Kimi Linear (with latent layers), LFM2 (short convolutions).
DELTA = CacheNeed("state", pieces=(3 * 8192 * 2,) + (128 * 128 * 4,) * 32)
KIMI = CacheNeed("state", pieces=(3 * 12288 * 2,) + (128 * 128 * 4,) * 32)
LATENT = CacheNeed("latent", 1, 512 + 64, 0)
CONVOLUTION = CacheNeed("state", pieces=(2 * 2048 * 4,))
HYBRIDS = {
    "qwen3-next": [FULL if index % 4 == 3 else DELTA for index in range(48)],
    "kimi-linear": [LATENT if index % 4 == 3 else KIMI for index in range(27)],
    "lfm2": [CacheNeed("full", 8, 64, 64) if index % 3 == 2 else CONVOLUTION for index in range(16)],
}


@pytest.mark.parametrize(
    ("name", "keys", "state"),
    [("qwen3-next", 0.0, 0.01), ("kimi-linear", 0.16, 0.03), ("lfm2", 0.0, 0.46)],  # of lfm2's state: 144 KiB
)
def test_hybrids_waste_little_of_their_pages(name, keys, state):
    unused = waste(model(*HYBRIDS[name]))
    assert unused[0] <= keys
    assert unused[1] <= state


def test_states_alone_are_one_page_each():
    (group,) = groups_for(model(*[DELTA] * 24))
    assert group.pages == 1


def test_pieces_of_states_do_not_overlap_and_stay_inside_pages():
    spec = model(*HYBRIDS["kimi-linear"])
    groups = groups_for(spec, layer_bytes)
    page, places = page_bytes(spec, groups, layer_bytes), layer_caches(spec, groups)
    taken = sorted(
        (piece.page, piece.offset, size)
        for layer, need in layer_needs(spec).items()
        for piece, size in zip(places[layer].pieces, need.pieces, strict=True)
    )
    for (number, offset, size), (next_number, next_offset, _) in pairwise(taken):
        assert offset % 64 == 0
        assert offset + size <= (next_offset if next_number == number else page)
    assert {number for number, _, _ in taken} == set(range(groups[-1].pages))
    assert state_pages(groups) == (0,) * (len(groups) - 1) + (groups[-1].pages,)


def test_a_layer_that_shares_has_its_owners_place_and_no_pages():
    owner = CacheNeed("window", 1, 8, 8, 64)
    spec = model(FULL, owner, CacheNeed("window", 1, 8, 8, 64, shares=1), owner)
    groups = groups_for(spec)
    places = layer_caches(spec, groups)
    assert places[2] == places[1]
    assert sorted(layer for group in groups for layer in group.layers) == [0, 1, 3]


@pytest.mark.parametrize("shares", [0, 2, 9])
def test_sharing_with_a_layer_that_keeps_nothing_is_refused(shares):
    spec = model(DELTA, CacheNeed("full", 1, 8, 8, shares=shares), CacheNeed("full", 1, 8, 8, shares=1))
    with pytest.raises(UnsupportedError, match=f"layer 1 reads keys and values of layer {shares}"):
        groups_for(spec)


def test_chunked_latent_and_full_layers_have_tables_of_their_own():
    spec = model(
        CacheNeed("chunked", 2, 8, 8, 32), CacheNeed("full", 2, 8, 8), LATENT, CacheNeed("window", 2, 8, 8, 32)
    )
    assert sorted((group.kind, group.window) for group in groups_for(spec, layer_bytes)) == [
        ("chunked", 32),
        ("full", None),
        ("latent", None),
        ("window", 32),
    ]
