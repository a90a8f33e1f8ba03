"""The scheduler as the engine sees it: requests come in, steps are planned and committed, requests end."""

from dataclasses import replace

from octavo.cache.manager import CacheManager
from octavo.errors import InvalidRequestError
from octavo.flow.plan import BlockCopy, StepPlan
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, StepResult
from octavo.scheduling.admission import Admission
from octavo.scheduling.budget import SchedulerLimits, StepDraft
from octavo.scheduling.deadlines import Deadlines
from octavo.scheduling.intake import Intake
from octavo.scheduling.outcome import Outcome
from octavo.scheduling.planner import Planner
from octavo.scheduling.policy import POLICIES, level_of
from octavo.scheduling.preemption import Preemption
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import Place, SequenceState, open_blocks, open_sequence
from octavo.scheduling.staging import Staging
from octavo.scheduling.stats import SchedulerCounters, SchedulerStats
from octavo.scheduling.step_time import StepLoad, StepTimeModel


class Scheduler:
    """Continuous batching: decode first, then prompts in chunks, within the limits; preemption when blocks run out.

    A step may be planned while the one before it is under way: what is planned counts as computed, and `commit` brings
    the tokens. At most one step may be under way when another is planned.

    Raises:
        ConfigError: the limits contradict each other, or no sequence could ever run.
    """

    def __init__(self, cache: CacheManager, limits: SchedulerLimits) -> None:
        capacity = cache.longest_sequence(limits.enable_chunked_prefill)
        size = f"{cache.num_blocks} blocks of {cache.block_size} tokens"
        self._admission = Admission(limits, capacity, size)
        self._cache = cache
        # The last token is drawn but never stored.
        self._longest = min(limits.max_model_len, capacity + 1)
        self._counters = SchedulerCounters()
        self._deadlines = Deadlines()
        policy = POLICIES[limits.policy]
        self._rank_of = policy.rank_of
        self._roster = Roster(cache, policy.line(self._prefix_of, limits.tenant_weights), limits.max_num_seqs)
        self._model = None if limits.target_itl is None else StepTimeModel(limits.target_itl)
        self._tiers = cache.tiers
        preemption = Preemption(cache, self._roster, self._counters)
        self._intake = Intake(cache, limits, self._roster, preemption, self._counters)
        self._staging = None if self._tiers is None else Staging(cache, self._tiers, self._roster, self._intake)
        self._planner = Planner(cache, limits, self._roster, self._intake, preemption, self._model)
        self._outcome = Outcome(cache, self._roster, self._admission, self._deadlines, self._counters)
        self._frozen = False
        self._under_way = 0  # planned steps that have not been committed
        self._next_step = 0
        self._told: tuple[int, ...] = ()  # slots that the last plan with rows released itself, and left free

    @property
    def has_work(self) -> bool:
        """Something is unfinished."""
        return bool(self._roster.streams)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the requests that have not ended."""
        return tuple(self._roster.streams)

    @property
    def paused(self) -> bool:
        """No new requests are started."""
        return self._intake.paused

    def add(self, request: GenerationRequest, now: float = 0.0) -> None:
        """Take a request on.

        Raises:
            InvalidRequestError: the id is in use, or there is nothing to continue.
            PromptTooLongError: it could never run; the message has the numbers.
            OverloadedError: too much waits.
            DeadlineExceededError: it is too late for it already.
        """
        roster = self._roster
        if request.id in roster.streams:
            raise InvalidRequestError(f"request id {request.id!r} is in use", "request_id")
        self._admission.check(request, self._num_queued(), roster.waiting_tokens)
        arrived = request.arrival or now
        end, first_token = self._admission.deadlines(request, arrived, now)
        count = request.n if request.beam is None else 1
        streams = [self._open(request, index, arrived) for index in range(count)]
        # The first stream computes the prompt; the others share it.
        roster.enter(request, streams, park=len(request.prompt_token_ids) > self._cache.block_size)
        self._deadlines.add(request.id, end, first_token)
        if request.beam is not None:
            self._outcome.beams.open(streams[0])

    def plan(self, now: float) -> StepPlan:
        """What the next step computes. It has no rows when nothing can be done."""
        self._next_step += 1
        self._cache.advance(now)
        if self._frozen:
            return StepPlan(self._next_step, ())
        if self._staging is not None:
            self._staging.begin(now)
        return self._with_tiers(self._complete(self._planner.fill(now, settled=not self._under_way)))

    def plan_save(self, now: float, into_host: bool = False) -> StepPlan:
        """A step without rows, which stores cached blocks where they outlive this process (or, `into_host`, the cache);
        none is left when it does not run."""
        self._next_step += 1
        tiers = self._tiers
        if tiers is None:
            return StepPlan(self._next_step, ())
        tiers.tick(now)
        tiers.save(into_host)
        return self._with_tiers(StepPlan(self._next_step, (), awaits=tiers.busy))

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceOutput]:
        """Record what a step computed; return what it added to each stream, and the ends.

        Raises:
            InternalError: the result does not belong to the plan. Nothing was changed.
        """
        outputs = self._outcome.take(plan, result, now)
        self._under_way -= 1
        if self._model is not None and plan.rows:
            self._model.observe(StepLoad.of(plan.rows), result.seconds)
        if self._tiers is not None:
            self._tiers.tick(now)
            self._tiers.commit(result.tier_events)
            prompt_tokens = sum(row.count for row in plan.rows if row.count > 1)
            self._tiers.prefill.observe(prompt_tokens, plan.num_tokens, result.seconds)
        return outputs

    def fail(self, plan: StepPlan, error: str) -> list[SequenceOutput]:
        """End what a failed step was to compute. Everything else goes on."""
        self._under_way -= 1
        if self._tiers is not None:
            self._tiers.fail(plan)
        return self._outcome.fail(plan, error)

    def cancel(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        """End a request's unfinished streams at once; nothing when the id is unknown or finished.

        Args:
            index: of the one stream that is to end.
        """
        streams = self._roster.streams.get(request_id, ())
        ending = [one for one in streams if index is None or (one.index == index and one.request.beam is None)]
        return self._outcome.end(ending, FinishReason.ABORT)

    def expire(self, now: float) -> list[SequenceOutput]:
        """End what is too late by now, wherever it is: also what has not started, before it costs anything."""
        outputs: list[SequenceOutput] = []
        for expiry in self._deadlines.due(now):
            streams = self._roster.streams.get(expiry.request_id, ())
            late = [one for one in streams if not (expiry.first_token and one.first_token)]
            outputs += self._outcome.end(late, FinishReason.TIMEOUT)
        self._counters.expired += len(outputs)
        return outputs

    def pause(self, freeze: bool = False) -> None:
        """Start no new requests; they are still taken on, within the limits. With `freeze`, plan nothing at all."""
        self._intake.paused = True
        self._frozen = freeze

    def resume(self) -> None:
        """Go on."""
        self._intake.paused = self._frozen = False

    def stats(self) -> SchedulerStats:
        """A reading; the counters are a copy."""
        roster, counters = self._roster, replace(self._counters)
        return SchedulerStats(
            running=len(roster.running),
            waiting=roster.num_waiting,
            cache=self._cache.stats(),
            counters=counters,
            waiting_tokens=roster.waiting_tokens,
            under_way=len(roster.streams) - len(roster.unstarted),
            tenants=roster.line.tenants,
            paused=self._intake.paused,
            prompt_room=self._planner.prompt_room,
            retry_after=self._admission.retry_after(self._num_queued()),
            tiers=() if self._tiers is None else self._tiers.readings(),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; what runs goes on."""
        return self._cache.reset_prefix_cache()

    def empty_device(self) -> None:
        """Nothing in the device's memory can be found any more: it is let go of. Nothing may run or wait."""
        self._cache.forget_device()
        if self._tiers is not None:
            self._tiers.empty_host()

    def _complete(self, draft: StepDraft) -> StepPlan:
        """A draft as a plan, with what else the executor has to know."""
        preempted, copies = tuple(draft.preempted), self._cache.take_copies()
        if not draft.rows:  # slots are told of with the next rows
            return StepPlan(self._next_step, (), preempted=preempted)
        if copies and preempted:  # who was started and preempted in the same plan needs none
            needed = {block for row in draft.rows.values() for blocks in row.new_blocks for block in blocks}
            kept: list[BlockCopy] = []
            for copy in reversed(copies):
                if copy.target in needed:
                    kept.append(copy)
                    needed.add(copy.source)  # which may be a copy itself
            copies = tuple(reversed(kept))
        released, again = self._roster.take_released(), self._told if self._under_way else ()
        arrivals = tuple(draft.arrivals.values())
        taken = {arrival.slot for arrival in arrivals}
        self._told = tuple(slot for slot in released if slot not in taken)
        return StepPlan(
            self._next_step,
            tuple(draft.rows.values()),
            arrivals,
            copies=copies,
            # A step under way that fails may not get as far as its releases.
            released=tuple(dict.fromkeys(released + again)),
            preempted=preempted,
        )

    def _with_tiers(self, plan: StepPlan) -> StepPlan:
        """The plan with what tiers have to do, counted as under way if there is anything in it."""
        if self._tiers is not None and self._staging is not None:
            spills, fetches, orders = self._tiers.take()
            awaits = plan.awaits or (not plan.rows and self._staging.waits)
            plan = replace(plan, spills=spills, fetches=fetches, orders=orders, awaits=awaits)
        self._under_way += plan.runs
        return plan

    def _num_queued(self) -> int:
        """Requests of which nothing has started, beyond those that free slots are there for."""
        return len(self._roster.unstarted) - len(self._roster.free_slots)

    def _prefix_of(self, sequence: SequenceState) -> int:
        return self._cache.match_prefix(sequence.blocks, sequence.token_ids, sequence.match_limit).tokens

    def _open(self, request: GenerationRequest, index: int, arrived: float) -> SequenceState:
        number = self._roster.new_id()
        rank = self._rank_of(request, number, arrived + request.lag)
        place = Place(rank, level_of(rank), arrived)
        return open_sequence(number, index, request, place, open_blocks(self._cache, request), self._longest)
