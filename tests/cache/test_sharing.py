"""Samples of one prompt share all of it; the block that is not full is copied, once, when it is written."""

import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.flow.plan import BlockCopy
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, request, window
from tests.scheduling.driver import Engine


def computed(cache, tokens, salt=""):
    held = cache.open(salt)
    assert cache.reserve(held, 0, len(tokens)) is not None
    cache.publish(held, tokens, len(tokens))
    return held


def copies(engine):
    return [copy for plan in engine.executor.plans for copy in plan.copies]


def test_a_fork_shares_whole_blocks_and_copies_the_started_one():
    cache = CacheManager((FULL, window(6)), CacheOptions(20, 4))
    tokens = list(range(11))
    donor = computed(cache, tokens)
    held = cache.open()
    match = cache.fork(held, donor, 10)
    assert (match.tokens, match.firsts) == (10, (0, 1))
    gained = cache.reserve(held, 10, 1, match)
    assert held.tables[0].blocks[:2] == donor.tables[0].blocks[:2]
    assert held.tables[0].blocks[2] != donor.tables[0].blocks[2]
    expected = [BlockCopy(donor.tables[group].blocks[2], gained[group][2]) for group in range(2)]
    assert cache.take_copies() == tuple(expected)
    assert cache.take_copies() == ()
    check_blocks(cache, [donor, held])
    cache.release(donor)
    cache.publish(held, [*tokens, 11], 12)
    check_blocks(cache, [donor, held])
    assert cache.match_prefix(cache.open(), list(range(13))).tokens == 12


def test_a_fork_at_a_block_border_copies_nothing():
    cache = CacheManager((FULL,), CacheOptions(20, 4))
    donor, held = computed(cache, list(range(11))), cache.open()
    assert cache.reserve(held, 8, 2, cache.fork(held, donor, 8)) is not None
    assert cache.take_copies() == ()
    check_blocks(cache, [donor, held])


def test_what_a_window_has_passed_cannot_be_forked():
    cache = CacheManager((window(5),), CacheOptions(20, 4))
    donor = computed(cache, list(range(8)))
    cache.reserve(donor, 8, 4)
    assert cache.fork(cache.open(), donor, 3) is None
    assert cache.fork(cache.open(), donor, 8) is not None


def test_nothing_is_forked_across_a_reset():
    cache = CacheManager((FULL,), CacheOptions(20, 4))
    donor = computed(cache, list(range(6)))
    cache.reset_prefix_cache()
    assert cache.fork(cache.open(), donor, 5) is None


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("groups", [(FULL,), (FULL, window(6))], ids=["full", "window"])
def test_samples_compute_only_the_token_they_draw_from(groups, caching):
    engine = Engine(groups, caching=caching)
    asked = request("a", range(18), 3, n=4, seed=7)
    engine.add(asked).run()
    engine.check_answers([asked])
    assert [engine.streams["a", index].end.num_cached_tokens for index in range(4)] == [0, 17, 17, 17]
    assert engine.loop.stats().prompt_tokens == 18 + 3
    assert len(copies(engine)) == 3 * len(groups)


def test_the_last_sample_alone_copies_nothing_that_is_not_there():
    engine = Engine(max_num_seqs=1)  # the others start when the first has ended: only whole blocks are left
    asked = request("a", range(18), 3, n=2)
    engine.add(asked).run()
    engine.check_answers([asked])
    assert engine.streams["a", 1].end.num_cached_tokens == 16
    assert copies(engine) == []


def test_a_preempted_sample_comes_back_to_the_same_answer():
    engine = Engine(blocks=12, max_num_seqs=4)
    asked = [request("a", range(18), 12, n=3, seed=3), request("b", [5] * 9, 12, n=2)]
    engine.add(*asked).run()
    engine.check_answers(asked)
    assert engine.loop.stats().preemptions > 0
