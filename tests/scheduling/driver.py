"""Runs a scheduler to the end over the fake executor and checks every plan on the way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import SequenceBlocks
from octavo.engine.loop import EngineLoop
from octavo.flow.plan import StepPlan
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, TokenLogprobs
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, FakeExecutor, LateExecutor, oracle


@dataclass
class Stream:
    """What came for one sample stream."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: SequenceOutput | None = None

    @property
    def reason(self) -> FinishReason | None:
        return None if self.end is None else self.end.finish_reason


class Engine:
    """A loop over the real scheduler and cache, with a fake executor and a clock that counts steps."""

    others: Sequence[SequenceBlocks] = ()  # who holds blocks besides sequences

    def __init__(
        self,
        groups: Sequence[KVCacheGroup] = (FULL,),
        blocks: int = 64,
        block_size: int = 4,
        caching: bool = True,
        pipelined: bool = False,
        **limits: object,
    ) -> None:
        numbers = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 64} | limits
        self.limits = SchedulerLimits(**numbers)  # type: ignore[arg-type]
        self.groups = tuple(groups)
        self.cache = CacheManager(groups, CacheOptions(blocks, block_size, caching, state_interval=2))
        self.scheduler = Scheduler(self.cache, self.limits)
        self.executor = (LateExecutor if pipelined else FakeExecutor)(groups, blocks, block_size)
        self.executor.on_submit = self.check_plan
        self.now = 1.0
        self.loop = EngineLoop(self.scheduler, self.executor, lambda: self.now, pipelined)
        self.streams: dict[tuple[str, int], Stream] = {}
        self.empty_steps = 0

    def add(self, *requests: GenerationRequest) -> "Engine":
        for asked in requests:
            self.loop.submit(asked)
            self.streams |= {(asked.id, index): Stream() for index in range(asked.n)}
        return self

    def step(self) -> list[SequenceOutput]:
        """One step, its outputs noted and the blocks counted."""
        outputs = self.loop.step()
        waits = self.loop.stalled and self.loop.has_work and not self.loop.paused
        self.empty_steps = self.empty_steps + 1 if waits else 0
        assert self.empty_steps < 3, "nothing runs although something waits"
        self.now += 1.0
        self.take(outputs)
        self.check_blocks()
        return outputs

    def run(self, most: int = 10_000) -> "Engine":
        """Step until everything has ended."""
        for _ in range(most):
            if not self.loop.has_work:
                self.check_idle()
                return self
            self.step()
        raise AssertionError(f"not finished after {most} steps")

    def take(self, outputs: Iterable[SequenceOutput]) -> None:
        for output in outputs:
            stream = self.streams[output.request_id, output.index]
            assert stream.end is None, "nothing comes after the end"
            stream.token_ids += output.token_ids
            stream.logprobs += output.logprobs
            stream.prompt_logprobs += output.prompt_logprobs
            if output.finish_reason is not None:
                assert output.times is not None
                stream.end = output

    def check_plan(self, plan: StepPlan) -> None:
        limits = self.limits
        assert 0 < plan.num_tokens <= limits.max_num_batched_tokens
        assert len(plan.rows) <= limits.max_num_seqs
        slots = [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < limits.max_num_seqs for slot in slots)
        assert not {row.sequence for row in plan.rows} & set(plan.preempted)
        rows = {row.sequence: row.slot for row in plan.rows}
        assert all(rows[arrival.sequence] == arrival.slot for arrival in plan.arrivals)
        for row in plan.rows:
            if not limits.enable_chunked_prefill:
                assert row.samples

    def check_blocks(self) -> None:
        roster = self.scheduler._roster
        streams = [member for streams in roster.streams.values() for member in streams]
        running, queued = set(roster.running.values()), set(roster.line)
        parked = {member for members in roster.parked.values() for member in members}
        assert not running & queued
        assert not parked & (running | queued)
        assert running | queued | parked == set(streams)
        assert set(roster.members.values()) == set(streams)
        assert len(streams) == len(running) + len(roster.line) + len(parked)
        assert roster.waiting_tokens == sum(roster.unstarted.values())
        begun = [member for member in queued if member.request.id not in roster.unstarted]
        assert roster.first(begun=True) is min(begun, key=lambda one: one.rank, default=None)
        slots = [member.slot for member in running]
        assert sorted([*slots, *roster.free_slots]) == list(range(self.limits.max_num_seqs))
        assert all(member.slot == -1 and not member.blocks.capacity for member in queued | parked)
        check_blocks(self.cache, [*(member.blocks for member in streams), *self.others])

    def check_idle(self) -> None:
        stats = self.loop.stats()
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
        roster = self.scheduler._roster
        assert not roster.streams
        assert not roster.parked
        assert not roster.unstarted
        assert not len(self.scheduler._deadlines)
        cached = self.cache.stats()
        assert cached.free + cached.cached == self.cache.num_blocks

    def check_answers(self, requests: Iterable[GenerationRequest]) -> None:
        """Every stream says what the oracle says, or, when it was cancelled, how that begins."""
        longest = self.scheduler._longest
        for asked in requests:
            for index in range(asked.n):
                stream = self.streams[asked.id, index]
                expected = oracle(asked, index, self.groups, self.executor.vocab, longest)
                if stream.reason is FinishReason.ABORT:
                    assert stream.token_ids == expected[0][: len(stream.token_ids)]
                else:
                    assert (stream.token_ids, stream.reason) == expected
