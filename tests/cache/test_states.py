"""Which recurrent states are kept, what a prefix goes on from, and what a sequence takes while it runs."""

import pytest

from octavo.cache.group import KVCacheGroup, state_interval
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.errors import ConfigError
from octavo.flow.plan import BlockCopy
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, chunked, request, state
from tests.scheduling.driver import Engine

SIZE = 4


HYBRID = (FULL, state(2))


def manager(groups=HYBRID, blocks=64, interval=4, **options):
    return CacheManager(groups, CacheOptions(blocks, SIZE, state_interval=interval, **options))


def compute(cache, tokens, held=None, stop=None):
    """Compute a sequence in steps as the scheduler would plan them, up to `stop` tokens; how the steps were cut."""
    held = held or cache.open()
    stop = stop or len(tokens)
    match = cache.match_prefix(held, tokens)
    start, steps = match.tokens, []
    while start < stop:
        count = cache.until_state(held, start, stop - start)
        assert cache.reserve(held, start, count, match if not steps else None) is not None
        start += count
        steps.append(start)
        cache.publish(held, tokens, start)
        check_blocks(cache, [held])
    return held, match, steps


def test_steps_end_where_a_state_is_kept():
    cache = manager()
    held, match, steps = compute(cache, list(range(50)))
    # Every four blocks; the last whole block is too near to the one before to be worth a step.
    assert (match.tokens, steps) == (0, [16, 32, 48, 50])
    assert len(list(held.held())) == 13 + 2 * 2
    cache.release(held)
    assert cache.match_prefix(cache.open(), list(range(50))).tokens == 48
    assert cache.match_prefix(cache.open(), list(range(47))).tokens == 32


def test_a_prompts_end_is_kept_when_it_saves_enough():
    cache = manager(interval=100)
    tokens = list(range(50))
    held, _, steps = compute(cache, tokens)
    assert steps == [48, 50]
    cache.release(held)
    assert cache.match_prefix(cache.open(), tokens).tokens == 48


def test_where_prompts_part_a_state_is_kept_from_the_second_on():
    cache = manager(interval=100, blocks=200)
    shared = list(range(40))
    for number, found in enumerate([0, 0, 40, 40]):
        held, match, _ = compute(cache, shared + [1000 + 50 * number + place for place in range(50)])
        assert match.tokens == found
        cache.release(held)


def test_a_running_state_stays_in_its_pages_between_kept_ones():
    cache = manager(interval=100)
    tokens = list(range(90))
    held, _, _ = compute(cache, tokens, stop=30)
    pages = held.states[7]
    for start in range(30, 80):
        new = cache.reserve(held, start, 1)
        assert new[1] == ()
        assert list(held.states.values()) == [pages]
    assert len(list(held.held())) == 20 + 2


def test_without_room_a_state_is_overwritten_rather_than_kept():
    cache = manager(blocks=7 + 2, interval=2)
    held, _, steps = compute(cache, list(range(27)))
    assert steps == [8, 16, 24, 27]
    assert len(list(held.held())) == 7 + 2
    cache.release(held)
    assert cache.match_prefix(cache.open(), list(range(27))).tokens in (0, 8, 16)
    assert cache.longest_sequence(True) == 7 * SIZE


def test_a_state_that_others_read_is_never_overwritten():
    cache = manager(blocks=4 + 2 * 2 + 1, interval=2)
    tokens = list(range(14))
    first, _, _ = compute(cache, tokens)
    second = cache.open()
    match = cache.match_prefix(second, tokens)
    assert match.tokens == 12
    assert match.state == first.states[2]
    assert cache.room(second, 12, match) == 0  # a block is left, and no pages for a state of its own
    assert cache.reserve(second, 12, 1, match) is None
    cache.release(first)
    assert cache.room(second, 12, match) > 0


def test_a_fork_copies_the_running_state_and_shares_a_kept_one():
    cache = manager(interval=2)
    tokens = list(range(20))
    donor, _, _ = compute(cache, tokens, stop=13)
    fork = cache.open()
    match = cache.fork(fork, donor, 13)
    new = cache.reserve(fork, 13, 1, match)
    copies = cache.take_copies()
    assert copies[0] == BlockCopy(donor.tables[0].blocks[3], fork.tables[0].blocks[3])
    assert [copy.source for copy in copies[1:]] == list(donor.states[3])
    assert tuple(copy.target for copy in copies[1:]) == new[1] == fork.states[3]
    # What the donor has passed is gone, unless it is kept and still held.
    assert cache.fork(cache.open(), donor, 12, reached=13) is None
    assert cache.fork(cache.open(), donor, 13, reached=14) is None
    other = cache.fork(cache.open(), donor, 8)
    assert (other.state, other.state_moves) == (donor.states[1], False)
    check_blocks(cache, [donor, fork])


def test_a_state_that_lost_a_page_is_forgotten_as_a_whole():
    cache = manager(groups=(FULL, state(5)), blocks=16, interval=2, eviction="lru")
    held, _, _ = compute(cache, list(range(9)))
    cache.release(held)
    other, _, _ = compute(cache, list(range(100, 132)))
    rows = [cache._contents.index.find(row, held.hashes[1]) for row in range(1, 6)]
    assert rows == [None] * 5
    check_blocks(cache, [other])


def test_too_few_blocks_for_a_token_are_refused_with_the_number():
    with pytest.raises(ConfigError, match="a token needs 4"):
        manager(groups=(FULL, state(3)), blocks=3)


@pytest.mark.parametrize(("pages", "blocks"), [(1, 32), (200, 200), (40, 40)])
def test_the_interval_keeps_states_from_outgrowing_keys_and_values(pages, blocks):
    assert state_interval([FULL, state(pages)], 16) == blocks
    assert state_interval([FULL, FULL], 16) == 0


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_a_chunk_is_let_go_of_as_a_whole(block_size):
    group = chunked(8)
    assert [group.first_read(position, block_size) * block_size for position in (0, 7, 8, 15, 16)] == [0, 0, 8, 8, 16]
    for chunk in range(1, 12):
        held = [(start + chunk - 1) // block_size - group.first_read(start, block_size) + 1 for start in range(40, 80)]
        assert max(held) == group.peak(1000, chunk, block_size)


def test_a_chunk_that_ends_within_a_block_is_bounded():
    group = KVCacheGroup("chunked", 6, (0,))
    for chunk in range(1, 12):
        held = [(start + chunk - 1) // 4 - group.first_read(start, 4) + 1 for start in range(40, 80)]
        assert max(held) <= group.peak(1000, chunk, 4)


@pytest.mark.parametrize("pipelined", [False, True])
def test_samples_and_beams_of_a_recurrent_model_say_what_they_say_alone(pipelined):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    engine = Engine((FULL, state(2)), blocks=80, pipelined=pipelined)
    asked = [request("a", prompt, 6, n=3), request("b", prompt[:9], 6, n=2), request("c", prompt, 3)]
    engine.add(*asked).run()
    engine.check_answers(asked)
    assert engine.scheduler.stats().counters.prefix_hits > 0
