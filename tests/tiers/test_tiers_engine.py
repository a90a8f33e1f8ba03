"""Whole loops with small pools: blocks go below the device and come back, and nothing changes an answer."""

import random

import pytest

from octavo.execution.tiers.memory import MemoryTier
from octavo.flow.request import CacheWish
from octavo.flow.result import FinishReason
from tests.fakes import FULL, request, window
from tests.tiers.engine import TieredEngine

LAYOUTS = [(FULL,), (FULL, window(6)), (window(5),), (FULL, FULL)]


def prompts(count, length=22, seed=1, heads=3):
    """Prompts of a few common beginnings."""
    rng = random.Random(seed)
    common = [[rng.randrange(40) for _ in range(length - 4)] for _ in range(heads)]
    return [common[index % heads] + [rng.randrange(40) for _ in range(4)] for index in range(count)]


def rounds(engine, rounds=3, count=6, **options):
    """The same prompts again and again, one request at a time, so that each evicts what others left."""
    asked = []
    for turn in range(rounds):
        for index, prompt in enumerate(prompts(count, heads=5)):
            one = request(f"{turn}-{index}", prompt, 3, **options)
            asked.append(one)
            engine.add(one).run()
    engine.check_answers(asked)
    return asked


@pytest.mark.parametrize("groups", LAYOUTS, ids=lambda groups: "-".join(str(group.window) for group in groups))
@pytest.mark.parametrize(("host", "keeps", "slow"), [(24, True, False), (6, False, True), (8, True, True)])
def test_evicted_blocks_come_back(groups, host, keeps, slow):
    tiers = [MemoryTier(64)] if slow else []
    engine = TieredEngine(groups, blocks=9 * len(groups), tiers=tiers, host=host * len(groups), keeps=keeps)
    rounds(engine)
    assert engine.executor.spilled
    assert engine.executor.fetched
    plain = TieredEngine(groups, blocks=9 * len(groups), host=1, keeps=False)
    rounds(plain)
    assert engine.loop.stats().prefix_hits > plain.loop.stats().prefix_hits
    assert engine.loop.stats().prompt_tokens < plain.loop.stats().prompt_tokens
    engine.settle()
    engine.check_books()
    assert sum(one.hits for one in engine.cache.tiers.readings()) == engine.executor.fetched
    if slow and groups[0].window is None:  # few blocks of a window find room in host memory
        assert engine.reading("memory").hits
    engine.close()
    plain.close()


def test_cached_tokens_count_what_came_back():
    engine = TieredEngine(blocks=9, host=40)
    rounds(engine, rounds=1)
    engine.add(request("again", prompts(1, heads=5)[0], 2)).run()
    assert engine.streams["again", 0].end.num_cached_tokens == 20
    engine.close()


def test_others_start_while_one_waits_for_its_blocks():
    tier = MemoryTier(64)
    engine = TieredEngine(blocks=16, host=6, keeps=False, tiers=[tier], max_num_seqs=2)
    rounds(engine, rounds=1)
    engine.settle()
    old, new = request("old", prompts(1, heads=5)[0], 3), request("new", [45, 46, 47, 48, 49], 3)
    engine.add(old, new)
    engine.step()
    started = [row.sequence for row in engine.executor.plans[-1].rows]
    assert len(started) == 1
    engine.run().check_answers([old, new])
    assert engine.streams["old", 0].end.num_cached_tokens == 20
    engine.close()


def test_a_cancelled_sequence_does_not_wait_on():
    engine = TieredEngine(blocks=9, host=4, keeps=False, tiers=[MemoryTier(64)])
    rounds(engine, rounds=1)
    engine.settle()
    engine.add(request("gone", prompts(1, heads=5)[0], 3))
    engine.step()
    engine.loop.cancel(["gone"])
    engine.run()
    assert engine.streams["gone", 0].reason is FinishReason.ABORT
    engine.settle()
    engine.check_books()
    engine.close()


def test_salts_never_meet():
    engine = TieredEngine(blocks=9, host=30, tiers=[MemoryTier(64)])
    for salt in ("a", "b", "a"):
        for index, prompt in enumerate(prompts(3)):
            engine.add(request(f"{salt}{index}-{engine.now}", prompt, 2, cache_salt=salt)).run()
    cached = [stream.end.num_cached_tokens for stream in engine.streams.values()]
    assert cached[:6] == [0] * 6
    assert cached[6:] == [20] * 3
    engine.close()


def test_a_reset_reaches_every_tier():
    tier = MemoryTier(64)
    engine = TieredEngine(blocks=9, host=24, tiers=[tier])
    rounds(engine, rounds=1)
    engine.settle()
    assert tier.blobs
    assert engine.loop.reset_prefix_cache()
    engine.add(request("again", prompts(1, heads=5)[0], 2)).run()
    assert engine.streams["again", 0].end.num_cached_tokens == 0
    engine.settle()
    assert (tier.generation, len(tier.blobs)) == (1, engine.reading("memory").blocks)
    engine.check_books()
    engine.close()


def test_what_a_tier_keeps_survives_a_restart():
    tier = MemoryTier(64)
    engine = TieredEngine(blocks=30, host=4, keeps=False, tiers=[tier])
    rounds(engine, rounds=1)
    engine.loop.save_cache(5.0)
    engine.close()
    again = TieredEngine(blocks=30, host=4, keeps=False, tiers=[tier])
    asked = request("again", prompts(1, heads=5)[0], 2)
    again.add(asked).run().check_answers([asked])
    assert again.streams["again", 0].end.num_cached_tokens == 20
    again.close()


def test_blocks_with_spoilt_contents_are_forgotten_everywhere():
    tier = MemoryTier(64)
    engine = TieredEngine(blocks=9, host=24, tiers=[tier])
    rounds(engine, rounds=1)
    engine.executor.inner.is_invalid = lambda _row: True
    engine.add(request("bad", prompts(1, heads=5)[0], 2)).run()
    engine.executor.inner.is_invalid = lambda _row: False
    engine.add(request("next", prompts(1, heads=5)[0], 2)).run()
    assert engine.streams["next", 0].end.num_cached_tokens == 0
    engine.close()


def test_preempted_sequences_get_their_blocks_back():
    asked = [request(str(index), prompt, 24) for index, prompt in enumerate(prompts(4, 14, heads=4))]
    computed = {}
    for host in (1, 40):
        engine = TieredEngine(blocks=14, host=host, keeps=host > 1, max_num_seqs=4)
        engine.add(*asked).run().check_answers(asked)
        stats = engine.scheduler.stats().counters
        assert stats.preemptions
        assert (stats.spilled > 0) == (host > 1)
        computed[host] = engine.loop.stats().prompt_tokens
        engine.close()
    assert computed[40] <= computed[1]


def test_a_report_says_where_a_prefix_was_found():
    engine = TieredEngine(blocks=9, host=40)
    rounds(engine, rounds=1)

    def found_in(name):
        engine.add(request(name, prompts(1, heads=5)[0], 2, cache=CacheWish(explain=True)))
        while not (reports := [one.cache_report for one in engine.step() if one.cache_report]):
            pass
        engine.run()
        return dict(reports[0].tiers)

    first = found_in("first")
    assert sum(first.values()) == 5
    assert first["host"] >= 1
    assert found_in("second") == {"device": 5}
    engine.close()
