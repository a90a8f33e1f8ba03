"""What is pinned stays for its time, within the budget, and is never in the way of the last sequence."""

import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import CacheTerms
from octavo.flow.request import CacheWish
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, request, window
from tests.scheduling.driver import Engine


def manager(*groups, blocks=16, budget=0.5):
    return CacheManager(groups or (FULL,), CacheOptions(blocks, 4, pin_budget=budget))


def compute(cache, tokens, seconds=0.0, **terms):
    held = cache.open("", CacheTerms(retention=seconds, pinned=len(tokens), **terms))
    match = cache.match_prefix(held, tokens)
    assert cache.reserve(held, match.tokens, len(tokens) - match.tokens, match) is not None
    cache.publish(held, tokens, len(tokens))
    return held


def matched(cache, tokens):
    return cache.match_prefix(cache.open(), tokens).tokens


def flood(cache, keep_out=0):
    """Fill the cache with something else, as far as it may be."""
    held = cache.open()
    while cache.available > keep_out:
        assert cache.reserve(held, held.capacity, 4) is not None
    return held


def test_a_pinned_prefix_outlives_a_flood_until_its_time_is_over():
    cache = manager()
    cache.advance(100.0)
    other = cache.open()
    cache.reserve(other, 0, 1)
    cache.release(compute(cache, list(range(13)), seconds=300.0))
    assert cache.stats().pinned == 3
    for now in (150.0, 399.0):
        cache.advance(now)
        filler = flood(cache)
        check_blocks(cache, [other, filler])
        assert matched(cache, list(range(13))) == 12
        cache.release(filler)
    cache.advance(400.0)
    assert cache.stats().pinned == 0
    flood(cache)
    assert matched(cache, list(range(13))) == 0


def test_every_use_begins_the_time_anew():
    cache = manager()
    cache.release(compute(cache, list(range(9)), seconds=300.0))
    cache.advance(200.0)
    reader = compute(cache, list(range(9)))
    cache.advance(1000.0)  # while it is read no time passes
    cache.release(reader)
    cache.advance(1299.0)
    assert cache.stats().pinned == 2
    cache.advance(1300.0)
    assert cache.stats().pinned == 0
    check_blocks(cache, [])


def test_only_the_prompt_is_pinned():
    cache = manager()
    held = cache.open("", CacheTerms(retention=60.0, pinned=6))
    cache.reserve(held, 0, 16)
    cache.publish(held, list(range(16)), 16)
    assert cache.stats().pinned == 1


@pytest.mark.parametrize(("budget", "pinned"), [(0.0, 0), (0.25, 4), (1.0, 10)])
def test_a_pin_of_everything_is_clamped_to_the_budget(budget, pinned):
    cache = manager(budget=budget)
    held = compute(cache, list(range(40)), seconds=1e9)
    assert (cache.stats().pinned, cache.stats().pins_refused) == (pinned, 10 - pinned)
    cache.release(held)
    check_blocks(cache, [])
    # The front of the prompt is what was pinned: it is of use without the rest.
    flood(cache, keep_out=0)
    assert matched(cache, list(range(40))) <= 4 * pinned


def test_the_last_sequence_gets_on_over_pins():
    cache = manager(blocks=8, budget=1.0)
    for start in (0, 100):
        cache.release(compute(cache, list(range(start, start + 13)), seconds=1e9))
    assert (cache.available, cache.stats().cached) == (2, 6)
    lonely, other = cache.open(), cache.open()
    assert cache.room(lonely, 0) == 32
    assert cache.reserve(other, 0, 4) is not None
    assert cache.room(lonely, 0) == 4  # not while someone else holds something
    assert cache.reserve(lonely, 0, 5) is None
    cache.release(other)
    assert cache.reserve(lonely, 0, 20) is not None
    check_blocks(cache, [lonely, other])
    stats = cache.stats()
    assert (stats.pinned, stats.pins_broken) == (3, 3)


def test_a_match_of_pinned_blocks_keeps_them():
    cache = manager(blocks=8, budget=1.0)
    tokens = list(range(24))
    cache.release(compute(cache, tokens[:13], seconds=1e9))
    cache.release(compute(cache, list(range(50, 63)), seconds=1e9))
    held = cache.open()
    match = cache.match_prefix(held, tokens)
    assert (match.tokens, cache.room(held, 12, match)) == (12, 20)
    assert cache.reserve(held, 12, 21, match) is None
    assert cache.reserve(held, 12, 20, match) is not None
    check_blocks(cache, [held])
    assert cache.stats().pinned == 3


def test_pins_of_a_window_and_after_a_reset():
    cache = manager(FULL, window(6), blocks=32, budget=1.0)
    held = compute(cache, list(range(17)), seconds=1e9)
    assert cache.stats().pinned == 8
    cache.reset_prefix_cache()
    assert cache.stats().pinned == 0
    cache.release(held)
    assert cache.stats().free == 32


def test_what_was_spoilt_is_not_pinned():
    cache = manager()
    cache.release(compute(cache, list(range(9)), seconds=1e9), forget=True)
    assert cache.stats().pinned == 0
    assert cache.stats().free == 16
    check_blocks(cache, [])


def test_a_request_asks_and_the_engine_keeps():
    engine = Engine(blocks=32, max_num_seqs=2)
    engine.add(request("a", range(17), 1, cache=CacheWish(retention=50.0))).run()
    engine.add(*(request(f"b{n}", range(n * 100, n * 100 + 40), 3) for n in range(1, 6))).run()
    engine.add(request("c", range(18), 1)).run()
    assert engine.streams["c", 0].end.num_cached_tokens == 16
    engine.now += 51.0
    engine.add(*(request(f"d{n}", range(n * 100, n * 100 + 40), 3) for n in range(6, 12))).run()
    engine.add(request("e", range(18), 1)).run()
    assert engine.streams["e", 0].end.num_cached_tokens == 0


def test_pins_of_everything_never_stop_the_engine():
    engine = Engine(blocks=10, max_num_seqs=3)
    engine.cache._contents.pool.pins.budget = 10
    asked = [request(str(n), range(n * 50, n * 50 + 30), 8, cache=CacheWish(retention=1e9)) for n in range(6)]
    engine.add(*asked).run()
    engine.check_answers(asked)


def test_what_was_cached_already_is_pinned_as_well():
    cache = manager()
    cache.release(compute(cache, list(range(17))))
    cache.release(compute(cache, list(range(9)), seconds=60.0))
    assert cache.stats().pinned == 2
    flood(cache)
    assert matched(cache, list(range(17))) == 8
