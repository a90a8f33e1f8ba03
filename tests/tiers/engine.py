"""The test engine of the scheduler with tiers: contents of fake blocks travel as bytes through the real ones."""

from dataclasses import replace

import numpy as np

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.prefix import tails_of
from octavo.cache.table import BlockTable
from octavo.cache.tier import HostLevel, SlowLevel, split_key
from octavo.cache.tiers import CacheTiers, TierOptions
from octavo.engine.loop import EngineLoop
from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.transfers import TierTransfers
from octavo.flow.plan import StepPlan
from octavo.flow.result import StepResult
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.scheduling.driver import Engine

FINGERPRINT = bytes(range(32))
_NOTHING = -1


class FakePages:
    """DevicePages over a FakeExecutor's cells, three integers a position."""

    def __init__(self, cells, block_size):
        self._cells = cells
        self.page_bytes = block_size * 24

    def read_page(self, block, into):
        cells = [cell or (_NOTHING,) * 3 for cell in self._cells[block]]
        into[:] = np.array(cells, np.int64).reshape(-1).view(np.uint8)

    def release(self):
        for cells in self._cells:
            cells[:] = [None] * len(cells)

    def write_page(self, block, page):
        cells = page.view(np.int64).reshape(-1, 3).tolist()
        self._cells[block] = [None if cell[0] == _NOTHING else tuple(cell) for cell in cells]


class TieredExecutor:
    """A FakeExecutor behind TierTransfers, in the order of `Worker.run_step`.

    `work` is asked before each step how many things every tier does meanwhile; None: tiers have threads of their own.
    """

    def __init__(self, inner, transfers, work=None):
        self.inner, self.transfers, self.work = inner, transfers, work
        self.plans = inner.plans
        self.spilled = self.fetched = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def submit(self, plan):
        self.spilled += len(plan.spills)
        self.fetched += len(plan.fetches)
        self.transfers.spill(plan)
        for copy in plan.copies:  # twice does no harm
            self.inner._cells[copy.target] = list(self.inner._cells[copy.source])
        self.transfers.fetch(plan)
        if plan.rows:
            done = self.inner.submit(plan)
            result = replace(done.wait(), seconds=0.0)
        else:
            self.plans.append(plan)
            result = StepResult(plan.step, ())
        if self.work is not None:
            for one in self.transfers.works.values():
                for _ in range(self.work()):
                    one.run_next()
        return _Done(replace(result, tier_events=self.transfers.events(wait=plan.awaits and self.work is None)))

    def close(self):
        self.transfers.close()
        self.inner.close()


class _Done:
    def __init__(self, result):
        self._result = result

    def wait(self):
        return self._result


def build_tiers(groups, block_size, page_bytes, tiers, host=4, keeps=True, generation=0):
    """CacheTiers for what `tiers` hold already."""
    options = TierOptions(tails_of(groups, block_size, 2), block_size, page_bytes, generation=generation)
    slow = [SlowLevel(tier.name, tier.capacity, tier.keys()) for tier in tiers]
    return CacheTiers(options, HostLevel(host, keeps), slow)


class TieredEngine(Engine):
    """`tiers`: slow ones; `host`: pages of host memory, kept as a tier or only passed through.

    Steps take no time by their own account, so that no cost model comes between; a step is a millisecond of the clock.
    """

    def __init__(
        self,
        groups=(FULL,),
        blocks=64,
        block_size=4,
        tiers=(),
        host=4,
        keeps=True,
        work=None,
        pipelined=False,
        eviction="lru",
        **more,
    ):
        super().__init__(groups, blocks, block_size, **more)
        generation = max((tier.generation for tier in tiers), default=0)
        books = build_tiers(groups, block_size, block_size * 24, tiers, host, keeps, generation)
        options = CacheOptions(blocks, block_size, eviction=eviction, state_interval=2)
        self.cache = CacheManager(groups, options, books)
        self.scheduler = Scheduler(self.cache, self.limits)
        inner = FakeExecutor(groups, blocks, block_size)
        inner.on_submit = self.check_plan
        pages = FakePages(inner._cells, block_size)
        self.executor = TieredExecutor(
            inner,
            TierTransfers(pages, Envelope(FINGERPRINT, pages.page_bytes), host, tiers, threaded=work is None),
            work,
        )
        self.loop = EngineLoop(self.scheduler, self.executor, lambda: self.now / 1000, pipelined)

    def check_blocks(self):
        """As above; blocks that contents are on their way to belong to the tiers' books."""
        coming = [[] for _ in tails_of(self.groups, self.cache.block_size)]
        for ticket in self.cache.tiers._ledger._tickets.values():
            if ticket.kind == "fetch":
                coming[split_key(ticket.key)[0]].append(ticket.block)
        length = max(map(len, coming))
        tables = tuple(BlockTable([0] * (length - len(one)) + one, length - len(one)) for one in coming)
        self.others = [replace(self.cache.open(), tables=tables, capacity=length * self.cache.block_size)]
        super().check_blocks()

    def reading(self, name="host"):
        """What one tier tells of itself."""
        return next(one for one in self.cache.tiers.readings() if one.name == name)

    def check_books(self):
        """At rest: what the books say of host memory is what is there."""
        books, host = self.cache.tiers._host, self.executor.transfers._host
        assert not self.cache.tiers.busy
        assert {key for key, page in books._pages.items() if page.ready} == {
            key for key, page in host._pages.items() if page.ready
        }
        assert all(page.ready and not page.users for page in books._pages.values())
        assert len(books) + len(host._free) == host._data.shape[0]

    def settle(self):
        """Let tiers finish, and the books hear of it, until neither has anything to say."""
        transfers, books = self.executor.transfers, self.cache.tiers
        while True:
            spills, fetches, orders = books.take()
            assert not fetches
            transfers.spill(StepPlan(0, (), spills=spills, orders=orders))
            if self.executor.work is not None:
                for one in transfers.works.values():
                    while one.run_next():
                        pass
            transfers.settle(5.0)
            books.commit(events := transfers.events())
            if not (spills or orders or events):
                return

    def close(self):
        self.loop.close()
