"""Layers are divided so that pages have one size and little of them stays unused."""

import pytest

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import groups_for, layer_caches, page_bytes
from octavo.errors import UnsupportedError
from octavo.spec.decoder import (
    AttentionSpec,
    BlockSpec,
    BranchSpec,
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
    assert page_bytes(spec, [group], lambda need: 64 * need.kv_heads * need.key_width) == 30 * 64 * 8


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


def test_a_page_slot_fits_the_layer_that_needs_most():
    layers = (sequential(attention(kv_heads=1), MLP, NORM), sequential(attention(kv_heads=4), MLP, NORM))
    spec = DecoderSpec(32, layers, EmbeddingSpec(10, 32), NORM, HeadSpec(True), 128)
    assert page_bytes(spec, groups_for(spec), lambda need: 64 * need.kv_heads) == 4 * 64


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
