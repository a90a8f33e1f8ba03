"""What the cache promises the scheduler, case by case."""

import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.errors import ConfigError
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, window


def manager(*groups, blocks=16, block_size=4, **options):
    return CacheManager(groups or (FULL,), CacheOptions(blocks, block_size, **options))


def compute(cache, tokens, salt=""):
    """A sequence whose tokens are all computed, in one chunk."""
    held = cache.open(salt)
    match = cache.match_prefix(held, tokens)
    assert cache.reserve(held, match.tokens, len(tokens) - match.tokens, match) is not None
    cache.publish(held, tokens, len(tokens))
    return held


def matched(cache, tokens, salt="", limit=None):
    return cache.match_prefix(cache.open(salt), tokens, limit).tokens


def test_blocks_come_as_tokens_come_and_go_back():
    cache = manager(FULL, FULL, blocks=6)
    held = cache.open()
    assert [len(blocks) for blocks in cache.reserve(held, 0, 5)] == [2, 2]
    assert cache.reserve(held, 5, 3) == ((), ())
    assert [len(blocks) for blocks in cache.reserve(held, 8, 1)] == [1, 1]
    assert cache.stats().used == 6
    cache.release(held)
    assert cache.stats().free == 6
    check_blocks(cache, [held])


def test_all_groups_or_none():
    cache = manager(FULL, FULL, blocks=5)
    held, other = cache.open(), cache.open()
    cache.reserve(held, 0, 4)
    assert cache.room(other, 0) == 4
    assert cache.reserve(other, 0, 5) is None
    check_blocks(cache, [held, other])
    assert cache.available == 3


def test_too_few_blocks_for_a_token_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"2 cache blocks .* needs 3"):
        manager(FULL, FULL, window(4), blocks=2)


def test_a_prefix_is_found_in_whole_blocks_and_never_all_of_the_prompt():
    cache = manager()
    compute(cache, list(range(11)))
    assert matched(cache, [*range(8), 99, 98]) == 8
    assert matched(cache, list(range(8))) == 4  # one token is left to compute
    assert matched(cache, list(range(9))) == 8
    assert matched(cache, [*range(7), 99, 98]) == 4
    assert matched(cache, [99, *range(1, 11)]) == 0
    assert matched(cache, list(range(11)), limit=7) == 4
    assert matched(cache, list(range(8)), limit=8) == 4


def test_a_partial_block_is_never_shared():
    cache = manager()
    first = compute(cache, [1, 2, 3, 4, 5, 6])
    second = compute(cache, [1, 2, 3, 4, 5, 6])
    assert first.tables[0].blocks[0] == second.tables[0].blocks[0]
    assert first.tables[0].blocks[1] != second.tables[0].blocks[1]
    assert cache.stats().used == 3
    check_blocks(cache, [first, second])


def test_a_match_holds_nothing_until_it_is_reserved():
    cache = manager(blocks=3)
    held = compute(cache, list(range(8)))
    cache.release(held)
    other = cache.open()
    match = cache.match_prefix(other, list(range(9)))
    assert match.tokens == 8
    assert (cache.available, cache.shared(match), cache.room(other, 8, match)) == (3, 0, 4)
    assert cache.reserve(other, 8, 5, match) is None
    assert cache.stats().used == 0
    assert cache.reserve(other, 8, 4, match) is not None
    check_blocks(cache, [other])


def test_salts_never_see_each_other():
    cache = manager()
    compute(cache, list(range(8)), salt="a")
    assert matched(cache, list(range(9)), salt="a") == 8
    for salt in ("", "b", "aa", "a\0"):
        assert matched(cache, list(range(9)), salt=salt) == 0


def test_another_model_or_block_size_has_other_hashes():
    roots = set()
    for fingerprint, block_size in [("m1", 4), ("m2", 4), ("m1", 8)]:
        cache = manager(fingerprint=fingerprint, block_size=block_size)
        roots.add(compute(cache, list(range(9))).root)
    assert len(roots) == 3


def test_without_prefix_caching_nothing_is_kept():
    cache = manager(prefix_caching=False)
    held = compute(cache, list(range(8)))
    assert matched(cache, list(range(9))) == 0
    cache.release(held)
    assert cache.stats().cached == 0


def test_the_deep_end_of_the_oldest_prefix_is_forgotten_first():
    cache = manager(blocks=6)
    for start in (0, 100):
        cache.release(compute(cache, list(range(start, start + 12))))
    filler = cache.open()
    cache.reserve(filler, 0, 8)
    assert matched(cache, list(range(13))) == 4
    assert matched(cache, list(range(100, 113))) == 12
    assert cache.stats().evictions == 2
    check_blocks(cache, [filler])


def test_reuse_makes_a_prefix_young():
    cache = manager(blocks=4)
    for start in (0, 100):
        cache.release(compute(cache, list(range(start, start + 4))))
    cache.release(compute(cache, [*range(4), 7]))
    filler = cache.open()
    cache.reserve(filler, 0, 12)
    assert matched(cache, list(range(5))) == 4
    assert matched(cache, list(range(100, 105))) == 0


def test_another_policy_keeps_what_is_reused():
    cache = manager(blocks=4, eviction=lambda *_: lambda use: (use.hits, use.last))
    for start in (0, 100):
        cache.release(compute(cache, list(range(start, start + 4))))
    reader = compute(cache, [*range(4), 7])
    cache.publish(reader, [*range(4), 7, 8, 9, 10], 8)
    cache.release(reader)
    cache.release(compute(cache, list(range(100, 104))))  # younger, but not a hit: it was computed whole
    filler = cache.open()
    cache.reserve(filler, 0, 12)
    assert matched(cache, list(range(5))) == 4


def test_a_window_lets_go_of_what_it_has_passed():
    cache = manager(FULL, window(6), blocks=20)
    held = cache.open()
    for start in range(40):
        assert cache.reserve(held, start, 1) is not None
        full, sliding = held.tables
        assert len(full.held()) == start // 4 + 1
        assert sliding.first <= max(0, start - 5) // 4
        assert len(sliding.held()) <= 3
    check_blocks(cache, [held])
    cache.release(held)
    assert cache.available == 20


def test_a_window_needs_only_the_last_blocks_of_a_prefix():
    tokens = list(range(32))
    cache = manager(FULL, window(6), blocks=13)  # 8 for the full group, 3 for the window, 2
    held = cache.open()
    for start in range(0, 32, 4):
        assert cache.reserve(held, start, 4) is not None
        cache.publish(held, tokens, start + 4)
    match = cache.match_prefix(cache.open(), [*tokens, 99])
    assert match.tokens == 32
    assert match.firsts == (0, 6)
    assert match.blocks[1][:6] == (0,) * 6
    follower = cache.open()
    assert len(cache.reserve(follower, 32, 1, match)[0]) == 9
    assert follower.tables[1].first == 6
    check_blocks(cache, [held, follower])


def test_what_a_window_has_let_go_is_not_published_late():
    cache = manager(window(5), blocks=4)
    held = cache.open()
    for start in range(0, 16, 4):
        assert cache.reserve(held, start, 4) is not None
    cache.publish(held, list(range(16)), 16)
    assert matched(cache, list(range(5))) == 0
    assert matched(cache, list(range(17))) == 16
    check_blocks(cache, [held])


def test_a_prefix_that_a_window_has_lost_is_not_used():
    tokens = list(range(17))
    cache = manager(FULL, window(9), blocks=9)
    held = compute(cache, tokens[:16])
    lost = held.tables[1].blocks[1]
    cache.release(held)
    cache._contents.index.remove(lost)
    cache._contents.pool.drop(lost)
    assert matched(cache, tokens) == 16  # does not need it
    assert matched(cache, tokens[:13]) == 4  # 12 and 8 tokens do


def test_reset_forgets_what_is_cached_and_what_runs():
    cache = manager()
    done, running = compute(cache, list(range(8))), cache.open()
    cache.release(done)
    cache.reserve(running, 0, 10)
    cache.publish(running, list(range(50, 60)), 6)
    assert cache.reset_prefix_cache()
    assert cache.stats().cached == 0
    assert matched(cache, list(range(9))) == 0
    cache.publish(running, list(range(50, 60)), 10)  # begun before: not to be found
    assert matched(cache, list(range(50, 61))) == 0
    check_blocks(cache, [running])
    cache.release(running)
    assert cache.stats().free == 16
    assert matched(cache, list(range(50, 61))) == 0
    compute(cache, list(range(8)))
    assert matched(cache, list(range(9))) == 8


def test_what_was_spoilt_is_not_offered_again():
    cache = manager()
    reader, spoilt = compute(cache, list(range(8))), compute(cache, list(range(9)))
    cache.release(spoilt, forget=True)
    assert matched(cache, list(range(9))) == 0
    check_blocks(cache, [reader, spoilt])
    cache.release(reader)
    assert cache.stats().free == 16


@pytest.mark.parametrize("groups", [(FULL,), (window(5),), (FULL, window(6)), (FULL, window(1), window(9))])
@pytest.mark.parametrize("blocks", [3, 4, 5, 7, 12])
def test_the_longest_sequence_can_be_computed_and_no_longer_one(groups, blocks):
    cache = manager(*groups, blocks=blocks, block_size=2)
    longest = min(cache.longest_sequence(chunked=True), 100)
    held = cache.open()
    for start in range(longest):
        assert cache.reserve(held, start, 1) is not None
    if longest < 100:
        assert cache.reserve(held, longest, 1) is None
    cache.release(held)
    whole = cache.longest_sequence(chunked=False)
    assert cache.reserve(held, 0, whole) is not None
    cache.release(held)
    assert cache.reserve(held, 0, whole + 1) is None
