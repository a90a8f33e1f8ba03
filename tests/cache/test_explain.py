"""For what was not found the cache can say why, as long as it remembers."""

import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import CacheTerms
from octavo.flow.cache_report import CacheMiss
from octavo.flow.request import CacheWish
from tests.fakes import FULL, request, window
from tests.scheduling.driver import Engine


def manager(*groups, blocks=16, **options):
    return CacheManager(groups or (FULL,), CacheOptions(blocks, 4, **options))


def compute(cache, tokens, salt="", owner=""):
    held = cache.open(salt, CacheTerms(owner=owner))
    match = cache.match_prefix(held, tokens)
    assert cache.reserve(held, match.tokens, len(tokens) - match.tokens, match) is not None
    cache.publish(held, tokens, len(tokens))
    return held


def report(cache, tokens, salt="", limit=None):
    held = cache.open(salt)
    match = cache.match_prefix(held, tokens, limit)
    return cache.look_back(held, tokens, match, limit, explain=True)


def test_all_that_can_be_found_is_no_miss():
    cache = manager()
    compute(cache, list(range(12)))
    for length in (9, 12):
        told = report(cache, list(range(length)))
        assert (told.hit_tokens, told.tiers, told.miss) == (8, (("device", 2),), None)
    assert report(cache, [1, 2, 3]).miss is None
    assert cache.stats().misses == ()


def test_the_first_token_that_differs():
    cache = manager()
    compute(cache, list(range(16)))
    compute(cache, [*range(9), 70, 71, 72])
    told = report(cache, [*range(10), 99, *range(11, 20)])
    assert told.miss == CacheMiss("diverged", 10, 8, cached=(10, 11))
    told = report(cache, [*range(9), 70, 99, 99, 99])  # nearer to the other one
    assert told.miss == CacheMiss("diverged", 10, 4, cached=(71, 72))
    told = report(cache, [*range(8), 99, 1, 1, 1, 1])  # as near to one as to the other: the younger
    assert told.miss == CacheMiss("diverged", 8, 4, cached=(8, 70, 71, 72))
    assert report(cache, [0, 1, 99, 3, 4]).miss == CacheMiss("diverged", 2, 4, cached=(2, 3))


def test_nothing_in_common_is_new():
    cache = manager()
    assert report(cache, list(range(9))).miss == CacheMiss("new", 0, 8)
    compute(cache, list(range(8)))
    assert report(cache, list(range(13))).miss == CacheMiss("new", 8, 4)
    assert report(cache, [50, 51, 52, 53, 54]).miss == CacheMiss("new", 0, 4, cached=(0, 1, 2, 3))


def test_what_was_evicted_for_whom_and_when():
    cache = manager(blocks=4)
    cache.advance(10.0)
    cache.release(compute(cache, list(range(12)), owner="a"))
    cache.advance(25.0)
    held = cache.open("", CacheTerms(owner="b"))
    assert cache.reserve(held, 0, 12) is not None
    cache.advance(31.0)
    assert report(cache, list(range(13))).miss == CacheMiss("evicted", 4, 8, by="b", ago=6.0, idle=15.0)


def test_a_salt_that_nobody_used():
    cache = manager()
    compute(cache, list(range(12)), salt="a")
    # Nothing is told of what is cached under other salts.
    assert report(cache, list(range(12)), salt="b").miss == CacheMiss("salt", 0, 8)
    assert report(cache, list(range(12))).miss == CacheMiss("new", 0, 8)
    assert report(cache, [7, *range(11)], salt="a").miss.cause == "new"


def test_the_window_is_gone_but_the_history_is_there():
    cache = manager(FULL, window(5), blocks=40)
    held = cache.open()
    for start in range(0, 16, 4):
        cache.reserve(held, start, 4)
    cache.publish(held, list(range(16)), 16)  # by then the window has slid
    assert report(cache, list(range(9))).miss == CacheMiss("window", 0, 8)
    assert report(cache, list(range(17))).miss is None


def test_scored_and_off():
    cache = manager()
    compute(cache, list(range(12)))
    assert report(cache, list(range(12)), limit=0).miss == CacheMiss("scored", 0, 8)
    assert report(cache, list(range(12)), limit=5).miss == CacheMiss("scored", 4, 4)
    assert report(manager(prefix_caching=False), list(range(12))).miss == CacheMiss("off", 0, 8)


def test_misses_are_counted_without_being_asked():
    cache = manager()
    compute(cache, list(range(12)))
    for tokens in ([*range(4), 99, *range(4)], [*range(8), 99, 1, 1, 1, 1], [50] * 9):
        held = cache.open()
        assert cache.look_back(held, tokens, cache.match_prefix(held, tokens)) is None
    assert dict(cache.stats().misses) == {"diverged": 4 + 4, "new": 8}


def test_what_is_remembered_is_bounded():
    cache = manager(blocks=8)
    for start in range(0, 4000, 20):
        cache.release(compute(cache, list(range(start, start + 20))))
    assert len(cache._contents._history) <= 8
    assert len(cache._contents.branches) <= 8


@pytest.mark.parametrize("caching", [True, False])
def test_a_request_is_told_with_its_first_token(caching):
    engine = Engine(caching=caching)
    engine.add(request("a", range(18), 3)).run()
    engine.add(request("b", [*range(10), 99, *range(11, 20)], 3, cache=CacheWish(explain=True), n=2))
    told = {output.index: output.cache_report for _ in range(9) for output in engine.step() if output.cache_report}
    assert set(told) == {0, 1}
    if caching:
        assert told[0].miss == CacheMiss("diverged", 10, 8, cached=(10, 11))
        assert (told[0].prompt_tokens, told[0].hit_tokens, told[0].block_size) == (20, 8, 4)
    else:
        assert told[0].miss.cause == "off"
    assert (told[1].hit_tokens, told[1].miss) == (19, None)
    assert engine.loop.stats().prefix_misses
