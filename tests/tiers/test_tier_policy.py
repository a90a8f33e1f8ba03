"""What tiers are asked for: measured costs, bounds, and rests after failures."""

import pytest

from octavo.cache.block import root_hash
from octavo.cache.prefix import tails_of
from octavo.cache.tier import HostLevel, SlowLevel, tier_key
from octavo.cache.tier_cost import PrefillRate, TransferCost
from octavo.cache.tiers import CacheTiers, TierOptions
from octavo.flow.plan import StepPlan
from octavo.flow.result import TierEvent
from tests.fakes import FULL

KEYS = [root_hash(str(number)) for number in range(12)]


class Device:
    """DeviceBlocks of a pool that never runs out."""

    def __init__(self):
        self.held, self.next, self.takers = {}, 0, []

    def find(self, lane, key):
        return self.held.get((lane, key))

    def idle(self, blocks):
        return len(list(blocks))

    def take(self, taker):
        self.next += 1
        self.takers.append(taker)
        return self.next

    def adopt(self, lane, key, block, depth):
        self.held[lane, key] = block

    def give_back(self, block):
        pass

    def touch(self, blocks):
        pass

    def published(self):
        return [(block, lane, key) for (lane, key), block in self.held.items()]


def tiers(host=8, keeps=True, slow=8, present=()):
    options = TierOptions(tails_of([FULL], 16), 16, 1 << 20)
    books = CacheTiers(options, HostLevel(host, keeps), [SlowLevel("disk", slow, list(present))] if slow else [])
    books.attach(Device())
    books.tick(1.0)
    return books


def settle(books, seconds=0.001, cause="", only=None):
    """Everything that was ordered is done; what kind of it."""
    spills, fetches, orders = books.take()
    done = [spill.ticket for spill in spills] + [fetch.ticket for fetch in fetches]
    events = [TierEvent(ticket, "", seconds) for ticket in done]
    events += [
        TierEvent(order.ticket, cause if only in (None, order.kind) else "", seconds)
        for order in orders
        if order.ticket
    ]
    books.commit(events)
    kinds = [order.kind for order in orders]
    return len(spills), len(fetches), kinds


def reading(books, name):
    return next(one for one in books.readings() if one.name == name)


def stage(books, count=4, have=0):
    return books.stage("reader", KEYS.__getitem__, KEYS[:count], count, have)


def present(count):
    return [tier_key(0, key) for key in KEYS[:count]]


def test_rates_are_running_means():
    rate, cost = PrefillRate(), TransferCost()
    assert rate.seconds(100) is None
    assert cost.worth(10, None)
    rate.observe(4, 4, 1.0)  # too few to tell
    rate.observe(10, 100, 1.0)  # mostly decoding
    assert rate.token_seconds is None
    rate.observe(100, 100, 1.0)
    assert rate.seconds(50) == pytest.approx(0.5)
    rate.observe(100, 100, 2.0)
    assert rate.seconds(50) == pytest.approx(0.6)
    cost.observe(0.1)
    assert cost.worth(5, 0.6)
    assert not cost.worth(7, 0.6)


def test_a_tier_that_is_slower_than_computing_is_left_out_and_tried_again_now_and_then():
    books = tiers(host=4, keeps=False, present=present(4))
    staged = stage(books)
    while books.advance(staged, 50) != "done":
        settle(books, seconds=0.5)  # half a second a block
    assert reading(books, "disk").page_seconds == pytest.approx(0.5)
    books._ledger.device.held.clear()
    books._ledger.empty_host()
    settle(books)
    books.prefill.observe(100, 100, 1.0)  # a block is computed in 0.16 s
    tries = [stage(books) is not None for _ in range(64)]
    assert sum(tries) == 2
    assert reading(books, "disk").bypassed == 4 * 62
    assert not books.comes_back()
    books.evicted(7, 0, KEYS[9])
    assert settle(books) == (0, 0, [])
    assert reading(books, "disk").bypassed == 4 * 62 + 1
    books._slow[0].cost = TransferCost()
    books._slow[0].cost.observe(0.01)
    assert books.comes_back()
    assert stage(books) is not None


def test_what_is_in_host_memory_is_used_though_the_disk_is_too_slow():
    books = tiers(present=present(4))
    for key in KEYS[:2]:
        books.evicted(1, 0, key)
    settle(books)
    books.prefill.observe(100, 100, 1.0)
    books._slow[0].cost.observe(10.0)
    staged = stage(books)
    assert staged.length == 2
    assert books.advance(staged, 50) == "coming"
    assert settle(books) == (0, 2, [])
    assert books._ledger.device.takers == ["reader"] * 2  # others lost their blocks to that request
    assert books.advance(staged, 50) == "done"
    assert reading(books, "host").hits == 2


def test_without_room_on_the_device_blocks_come_as_far_as_host_memory():
    books = tiers(host=3, keeps=False, present=present(4))
    staged = stage(books)
    assert books.advance(staged, 0) == "room"
    assert settle(books) == (0, 0, ["load"] * 3)
    books.tick(1000.0)
    assert books.advance(staged, 0) == "room"  # waiting for a turn is not waiting for blocks
    assert books.advance(staged, 50) == "coming"
    assert settle(books) == (0, 3, [])
    assert books.advance(staged, 50) == "coming"
    assert settle(books) == (0, 0, ["drop", "load"])
    assert books.advance(staged, 50) == "coming"
    assert settle(books) == (0, 1, [])
    assert books.advance(staged, 50) == "done"


def test_nobody_waits_longer_than_computing_takes():
    books = tiers(present=present(4))
    books.prefill.observe(100, 100, 1.0)
    staged = stage(books)
    assert books.advance(staged, 50) == "coming"
    books.tick(1.6)
    assert books.advance(staged, 50) == "coming"
    books.tick(1.7)
    assert books.advance(staged, 50) == "done"
    assert dict(reading(books, "disk").misses)["late"] == 4


def test_every_tier_keeps_to_its_bound_and_forgets_the_least_recent():
    books = tiers(host=2, slow=3)
    for number, key in enumerate(KEYS[:5]):
        books.evicted(number, 0, key)
        settle(books)
    host, disk = books.readings()
    assert (host.blocks, host.evictions, disk.blocks, disk.evictions) == (2, 3, 3, 2)
    assert [books._slow[0].holds(name) for name in present(5)] == [False, False, True, True, True]
    restarted = tiers(slow=2, present=present(4))
    assert settle(restarted) == (0, 0, ["drop", "drop"])
    assert [restarted._slow[0].holds(name) for name in present(4)] == [False, False, True, True]


def test_a_tier_rests_after_failures_and_is_tried_again():
    books = tiers(host=2, keeps=False)
    for number, key in enumerate(KEYS[:3]):
        books.evicted(number, 0, key)
        settle(books, cause="full", only="store")
        books._ledger.empty_host()
        settle(books)
    assert not reading(books, "disk").active
    books.evicted(9, 0, KEYS[5])
    assert settle(books) == (0, 0, [])
    assert dict(reading(books, "disk").refusals) == {"full": 3, "resting": 1}
    books.tick(2.1)
    books.evicted(9, 0, KEYS[5])
    assert settle(books, cause="full", only="store")[2] == ["store"]
    books.tick(3.2)  # the rest is twice as long now
    assert not reading(books, "disk").active
    books.tick(4.2)
    books._ledger.empty_host()
    settle(books)
    books.evicted(9, 0, KEYS[5])
    settle(books)
    assert reading(books, "disk").blocks == 1


@pytest.mark.parametrize("cause", ["missing", "torn", "corrupt", "foreign", "stale", "error"])
def test_a_block_that_does_not_come_is_counted_forgotten_and_not_asked_for_again(cause):
    books = tiers(present=present(4))
    staged = stage(books)
    books.advance(staged, 50)
    settle(books, cause=cause, only="load")
    assert dict(reading(books, "disk").misses) == {cause: 4}
    assert books.advance(staged, 50) == "done"
    assert settle(books) == (0, 0, ["drop"] * 4)
    assert stage(books) is None


def test_a_failed_step_undoes_what_it_ordered():
    books = tiers(present=present(2))
    books.evicted(3, 0, KEYS[5])
    staged = stage(books, 2)
    books.advance(staged, 50)
    spills, fetches, orders = books.take()
    plan = StepPlan(1, (), spills=spills, fetches=fetches, orders=orders)
    books.fail(plan)
    books.commit([TierEvent(part.ticket) for part in (*spills, *orders)])  # late news count for nothing
    assert not books.busy
    assert [one.blocks for one in books.readings()] == [0, 0]
    kinds = settle(books)[2]
    assert kinds.count("drop") == len(kinds) >= 5


def test_nothing_is_ordered_twice():
    books = tiers(present=present(2))
    first, second = stage(books, 2), stage(books, 2)
    assert [books.advance(one, 50) for one in (first, second)] == ["coming", "coming"]
    assert settle(books) == (0, 0, ["load", "load"])
    assert [books.advance(one, 50) for one in (first, second)] == ["coming", "coming"]
    assert settle(books) == (0, 2, [])
    assert [books.advance(one, 50) for one in (first, second)] == ["done", "done"]
    books.evicted(1, 0, KEYS[0])
    assert settle(books) == (0, 0, [])  # it is in host memory still
