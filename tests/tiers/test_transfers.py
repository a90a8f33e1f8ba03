"""What the worker's side of the tiers does with pages and orders."""

import numpy as np

from octavo.cache.tier import HOST
from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.memory import MemoryTier
from octavo.execution.tiers.transfers import TierTransfers
from octavo.flow.plan import BlockSpill, StepPlan, TierOrder

PAGE, PAGES = 64, 4
KEYS = [bytes([number]) * 34 for number in range(PAGES)]


class Device:
    """DevicePages: a block's bytes are its number."""

    page_bytes = PAGE

    def read_page(self, block, into):
        into[:] = block

    def write_page(self, block, page):
        raise AssertionError("nothing is fetched here")

    def release(self):
        raise AssertionError("nothing sleeps here")


class CountingTier(MemoryTier):
    """Counts what is written."""

    puts = 0

    def put(self, key, blob):
        self.puts += 1
        super().put(key, blob)


def storing(first_ticket):
    """A plan that copies every key to host memory, and on to the tier."""
    numbers = range(PAGES)
    spills = tuple(BlockSpill(number, KEYS[number], first_ticket + number) for number in numbers)
    orders = tuple(TierOrder("store", "memory", KEYS[number], first_ticket + PAGES + number) for number in numbers)
    return StepPlan(0, (), spills=spills, orders=orders)


def test_what_was_forgotten_before_it_was_stored_gives_its_room_back_unstored():
    tier = CountingTier(8)
    transfers = TierTransfers(Device(), Envelope(bytes(32), PAGE), PAGES, [tier], threaded=False)
    (work,) = transfers.works.values()
    transfers.spill(storing(1))
    assert work.run_next()  # one was begun in time
    transfers.spill(StepPlan(1, (), orders=(TierOrder("clear", HOST, generation=1),)))
    while work.run_next():
        pass
    causes = {event.ticket: event.cause for event in transfers.events()}
    assert [causes[ticket] for ticket in (5, 6, 7, 8)] == ["", "stale", "stale", "stale"]
    assert (tier.puts, tier.generation, tier.keys()) == (1, 1, [])
    transfers.spill(storing(11))  # all pages are free again
    while work.run_next():
        pass
    assert {event.cause for event in transfers.events()} == {""}
    assert (tier.puts, len(tier.keys())) == (1 + PAGES, PAGES)
    blob = np.zeros(Envelope(bytes(32), PAGE).blob_bytes, np.uint8)
    assert tier.get(KEYS[3], blob)
    assert blob[-1] == 3
    transfers.close()
