"""Which tokens of which sequences the next step computes, and what its result means for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.cache.manager import CacheManager, CacheStats
from octavo.cache.table import NewBlocks, PrefixMatch
from octavo.errors import InternalError, InvalidRequestError
from octavo.flow.plan import PlannedRow, StepPlan
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, StepResult, TokenLogprobs
from octavo.scheduling.admission import Admission
from octavo.scheduling.beam import Beams
from octavo.scheduling.budget import SchedulerLimits, StepDraft
from octavo.scheduling.preemption import choose_victim
from octavo.scheduling.queue import POLICIES, WaitingQueue
from octavo.scheduling.sequence import SequenceState, open_sequence

# How many waiting sequences are looked at to find short prompts that fit beside a long one.
_LOOK_AHEAD = 16


@dataclass(slots=True)
class SchedulerCounters:
    """Counters since the start; they only grow. `prompt_tokens` counts what was computed, again after a preemption."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A reading. Sequences run or wait; blocks are used (referenced by sequences) or could be given out."""

    running: int
    waiting: int
    cache: CacheStats
    counters: SchedulerCounters


class Scheduler:
    """Continuous batching: decode first, then prompts in chunks, within the limits; preemption by recomputation.

    Every sequence has a rank, which orders admission and, backwards, preemption. A running sequence of the best rank
    always gets the blocks that it needs, so there is progress in every step and everything ends.

    Raises:
        ConfigError: the limits contradict each other, or no sequence could ever run.
    """

    def __init__(self, cache: CacheManager, limits: SchedulerLimits) -> None:
        capacity = cache.longest_sequence(limits.enable_chunked_prefill)
        self._counters = SchedulerCounters()
        self._cache = cache
        self._limits = limits
        # The last token is drawn but never stored.
        self._longest = min(limits.max_model_len, capacity + 1)
        size = f"{cache.num_blocks} blocks of {cache.block_size} tokens"
        self._admission = Admission(limits, capacity, size)
        self._rank_of = POLICIES[limits.policy]
        self._waiting = WaitingQueue()
        self._running: dict[int, SequenceState] = {}  # by id, in order of admission
        self._streams: dict[str, list[SequenceState]] = {}  # unfinished ones, by request
        self._parked: dict[str, list[SequenceState]] = {}  # streams that wait for the first one's prompt
        self._unstarted: set[str] = set()
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._released: list[int] = []  # slots that the executor does not know to be free
        self._beams = Beams(cache)
        self._next_id = 0
        self._next_step = 0
        # Free blocks that admission leaves to running sequences, so that they need not be preempted at once.
        self._headroom = cache.num_blocks // 100

    @property
    def has_work(self) -> bool:
        """Something is unfinished."""
        return bool(self._streams)

    def add(self, request: GenerationRequest) -> None:
        """Take a request on.

        Raises:
            InvalidRequestError: the id is in use, or there is nothing to continue.
            PromptTooLongError: it could never run; the message has the numbers.
            OverloadedError: too many requests wait.
        """
        if request.id in self._streams:
            raise InvalidRequestError(f"request id {request.id!r} is in use", "request_id")
        self._admission.check(request, len(self._unstarted) - len(self._free_slots))
        streams = [self._open(request, index) for index in range(request.n if request.beam is None else 1)]
        self._streams[request.id] = streams
        if request.beam is not None:
            self._beams.open(streams[0])
        self._unstarted.add(request.id)
        # The first stream computes the prompt; the others share it.
        shares = len(request.prompt_token_ids) > self._cache.block_size
        if shares and len(streams) > 1:
            self._parked[request.id] = streams[1:]
        for sequence in streams:
            sequence.parked = shares and sequence.index > 0
            if not sequence.parked:
                self._waiting.push(sequence)

    def plan(self, now: float) -> StepPlan:
        """What the next step computes. It has no rows when nothing can be done."""
        draft = StepDraft(self._limits.max_num_batched_tokens)
        if not self._limits.enable_chunked_prefill:
            self._admit_whole_first(draft, now)
        prefills = self._plan_decodes(draft)
        for sequence in sorted(prefills, key=lambda member: member.rank):
            if sequence.slot >= 0 and draft.tokens_left:
                self._continue_prefill(draft, sequence, now)
        if not draft.preempted:
            self._admit_waiting(draft, now)
        while not draft.rows and len(self._waiting) and (idle := self._idle_beams()):
            self._preempt(draft, choose_victim(idle))  # it has done its part: others of its request need the place
            self._admit_waiting(draft, now)
        released: tuple[int, ...] = ()
        if draft.rows:  # a plan without rows is not run: the executor hears of the slots later
            released = tuple(dict.fromkeys(self._released))
            self._released.clear()
        self._next_step += 1
        return StepPlan(
            self._next_step,
            tuple(draft.rows.values()),
            tuple(draft.arrivals.values()),
            copies=self._cache.take_copies() if draft.rows else (),
            released=released,
            preempted=tuple(draft.preempted),
        )

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceOutput]:
        """Record what a step computed; return what it added to each stream, and the ends.

        Rows of sequences that were cancelled since the plan was made count for nothing.

        Raises:
            InternalError: the result does not belong to the plan. Nothing was changed.
        """
        _check_result(plan, result)
        outputs: list[SequenceOutput] = []
        running, tokens, invalid = self._running, result.token_ids, result.invalid
        logprobs = result.logprobs
        scored = dict(result.prompt_logprobs)
        drawn, prompt_tokens, generated = -1, 0, 0
        for position, row in enumerate(plan.rows):
            if row.samples:
                drawn += 1
            sequence = running.get(row.sequence)
            if sequence is None:
                continue
            if invalid and row.samples and invalid[drawn]:
                outputs += self._end_invalid(sequence)
                continue
            computed = sequence.computed = row.start + row.count
            if computed >= sequence.blocks.publish_at:
                self._cache.publish(sequence.blocks, sequence.token_ids, computed)
            if row.start < sequence.prompt_len:
                prompt_tokens += min(computed, sequence.prompt_len) - row.start
            prompt = sequence.take_scores(row.start, scored[position]) if position in scored else ()
            if row.samples and sequence.request.beam is not None:
                self._offer(sequence, logprobs[drawn], now)
                outputs += [sequence.scored(prompt)] if prompt else []
                generated += 1
            elif row.samples:
                found = logprobs[drawn] if logprobs else None
                outputs.append(self._append(sequence, tokens[drawn], found, prompt, now))
                generated += 1
            elif prompt:
                outputs.append(sequence.scored(prompt))
        outputs += self._advance_beams()
        counters = self._counters
        counters.steps += 1
        counters.step_seconds += result.seconds
        counters.prompt_tokens += prompt_tokens
        counters.generation_tokens += generated
        return outputs

    def fail(self, plan: StepPlan, error: str) -> list[SequenceOutput]:
        """End what a failed step was to compute. Everything else goes on."""
        members = [self._running[row.sequence] for row in plan.rows if row.sequence in self._running]
        outputs = [end for sequence in members for end in self._end(sequence, FinishReason.ERROR, error)]
        self._released.extend(plan.released)  # perhaps the executor did not get that far
        return outputs

    def cancel(self, request_id: str, now: float) -> list[SequenceOutput]:
        """End a request's unfinished streams at once; nothing when the id is unknown or finished."""
        del now
        streams = list(self._streams.get(request_id, ()))
        return [end for sequence in streams for end in self._end(sequence, FinishReason.ABORT)]

    def stats(self) -> SchedulerStats:
        """A reading; the counters are a copy."""
        waiting = len(self._waiting) + sum(map(len, self._parked.values()))
        return SchedulerStats(len(self._running), waiting, self._cache.stats(), replace(self._counters))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; what runs goes on."""
        return self._cache.reset_prefix_cache()

    # --- plan --------------------------------------------------------------------------------------------------------

    def _plan_decodes(self, draft: StepDraft) -> list[SequenceState]:
        """Give every sequence its next token, as far as the budget goes; return those with more to compute."""
        prefills: list[SequenceState] = []
        nothing = self._cache.no_blocks
        left = draft.tokens_left
        for sequence in tuple(self._running.values()):
            slot = sequence.slot
            if slot < 0 or sequence.id in draft.rows:  # fell victim, or was admitted, in this plan
                continue
            start = sequence.computed
            end = len(sequence.token_ids)
            if end - start != 1:
                if end > start:  # else an idle beam
                    prefills.append(sequence)
                continue
            if not left:
                break
            new_blocks = nothing
            if start >= sequence.blocks.capacity:
                draft.tokens_left = left
                room = self._make_room(draft, sequence)
                left = draft.tokens_left
                if room is None:
                    continue
                new_blocks = room
            output_index = end - sequence.prompt_len
            draft.rows[sequence.id] = PlannedRow(
                sequence.id, slot, start, 1, new_blocks, True, output_index, end < sequence.stop_after
            )
            left -= 1
        draft.tokens_left = left
        return prefills

    def _make_room(self, draft: StepDraft, sequence: SequenceState) -> NewBlocks | None:
        """Reserve one more token, preempting from the worst rank on. None when the sequence itself had to go."""
        while True:
            room = self._cache.reserve(sequence.blocks, sequence.computed, 1)
            if room is not None:
                return room
            victim = choose_victim(self._running.values())
            self._preempt(draft, victim)
            if victim is sequence:
                return None

    def _continue_prefill(self, draft: StepDraft, sequence: SequenceState, now: float) -> None:
        """Compute another chunk of a prompt, as large as budget and blocks allow."""
        shorter = self._shorter_than(sequence.pending, draft, sequence)
        limit = draft.tokens_left - sum(member.pending for member in shorter)
        room = self._cache.room(sequence.blocks, sequence.computed)
        while room < 1:
            victim = choose_victim(self._running.values())
            if victim is sequence:
                return  # the others go on; it keeps what it has until they need that
            self._preempt(draft, victim)
            room = self._cache.room(sequence.blocks, sequence.computed)
        count = min(sequence.pending, limit, room)
        new_blocks = self._cache.reserve(sequence.blocks, sequence.computed, count)
        if new_blocks is None:
            raise InternalError(f"the cache has room for {room} tokens but not for {count}")
        draft.add(sequence.row(count, new_blocks))
        if not draft.preempted:
            self._admit_all(draft, shorter, now)

    def _admit_waiting(self, draft: StepDraft, now: float) -> None:
        """Start waiting sequences in order, while budget, slots and blocks last."""
        while draft.tokens_left and self._free_slots and (head := self._waiting.first()) is not None:
            match = self._match(head)
            shorter = self._shorter_than(len(head.token_ids) - match.tokens, draft, head)
            limit = draft.tokens_left - sum(member.pending for member in shorter)
            if not self._admit(draft, head, match, limit, now):
                return
            self._admit_all(draft, shorter, now)
            if shorter:
                return

    def _admit_all(self, draft: StepDraft, sequences: Sequence[SequenceState], now: float) -> None:
        for sequence in sequences:
            if self._free_slots and draft.tokens_left:
                self._admit(draft, sequence, self._match(sequence), draft.tokens_left, now)

    def _admit_whole_first(self, draft: StepDraft, now: float) -> None:
        """Without chunks, a prompt that does not fit beside the running sequences takes the step before them."""
        head = self._waiting.first()
        if head is not None and self._free_slots and len(head.token_ids) + len(self._running) > draft.tokens_left:
            self._admit(draft, head, self._match(head), draft.tokens_left, now)

    def _shorter_than(self, pending: int, draft: StepDraft, long: SequenceState) -> list[SequenceState]:
        """What may overtake a prompt that this step cannot finish: short ones which half of the step suffices for."""
        if pending <= draft.tokens_left or not self._limits.enable_chunked_prefill:
            return []
        found: list[SequenceState] = []
        slots, left = len(self._free_slots) - (long.slot < 0), draft.tokens_left // 2
        for looked_at, sequence in enumerate(self._waiting):
            if looked_at == _LOOK_AHEAD or len(found) >= slots:
                break
            if sequence is not long and sequence.pending <= left:
                found.append(sequence)
                left -= sequence.pending
        return found

    def _match(self, sequence: SequenceState) -> PrefixMatch:
        """What it need not compute: from the prefix cache, or more from a stream of its request that runs."""
        match = self._cache.match_prefix(sequence.blocks, sequence.token_ids, sequence.match_limit)
        donor, common = sequence.donor, len(sequence.token_ids) - 1
        if donor is None and sequence.request.n > 1:
            donor = next((other for other in self._streams[sequence.request.id] if other.slot >= 0), None)
            common = min(common, sequence.prompt_len)
        if donor is None or donor.slot < 0 or sequence.match_limit is not None:
            return match
        tokens = min(common, donor.computed)
        if tokens <= match.tokens:
            return match
        return self._cache.fork(sequence.blocks, donor.blocks, tokens) or match

    def _admit(self, draft: StepDraft, sequence: SequenceState, match: PrefixMatch, limit: int, now: float) -> bool:
        """Start a waiting sequence with at most `limit` tokens; false when there is no room for it."""
        pending = len(sequence.token_ids) - match.tokens
        count = min(pending, limit)
        if count < pending and not self._limits.enable_chunked_prefill:
            return False
        if self._running:  # room for the whole prompt, or it would soon be in the way of those that run
            needed = self._cache.peak(len(sequence.token_ids), count) - self._cache.shared(match)
            if needed + self._headroom > self._cache.available:
                return False
        else:
            count = min(count, self._cache.room(sequence.blocks, match.tokens, match))
        new_blocks = self._cache.reserve(sequence.blocks, match.tokens, count, match) if count > 0 else None
        if new_blocks is None:
            return False
        self._waiting.remove(sequence)
        sequence.donor = None
        sequence.computed = match.tokens
        sequence.slot = self._free_slots.pop()
        self._running[sequence.id] = sequence
        if not sequence.started:
            self._start(sequence, match, now)
        draft.arrivals[sequence.id] = sequence.arrival()
        draft.add(sequence.row(count, new_blocks))
        return True

    def _start(self, sequence: SequenceState, match: PrefixMatch, now: float) -> None:
        """Its first admission."""
        sequence.started = True
        sequence.scheduled = now
        sequence.num_cached = match.tokens
        self._unstarted.discard(sequence.request.id)
        if self._cache.prefix_caching and sequence.match_limit is None:
            self._counters.prefix_queries += sequence.prompt_len
            self._counters.prefix_hits += match.tokens

    def _preempt(self, draft: StepDraft, victim: SequenceState) -> None:
        """Take back a sequence's blocks and slot; it starts again when its turn comes."""
        del self._running[victim.id]
        self._cache.release(victim.blocks)
        self._free_slots.append(victim.slot)
        if not draft.withdraw(victim.id):
            self._released.append(victim.slot)
        draft.preempted.append(victim.id)
        idle = not victim.pending
        victim.slot = -1
        victim.computed = 0
        victim.preemptions += 1
        self._counters.preemptions += 1
        if idle:
            victim.parked = True
            self._parked.setdefault(victim.request.id, []).append(victim)
        else:
            self._waiting.push(victim)

    def _idle_beams(self) -> list[SequenceState]:
        return [sequence for sequence in self._running.values() if not sequence.pending]

    # --- commit ------------------------------------------------------------------------------------------------------

    def _append(
        self,
        sequence: SequenceState,
        token: int,
        logprobs: TokenLogprobs | None,
        prompt: tuple[TokenLogprobs, ...],
        now: float,
    ) -> SequenceOutput:
        """Add a drawn token; the sequence ends when that says so."""
        token_ids = sequence.token_ids
        token_ids.append(token)
        length = len(token_ids)
        sequence.last_token = now
        if length == sequence.prompt_len + 1:
            sequence.first_token = now
            self._unpark(sequence.request.id)
        entries = () if logprobs is None else (logprobs,)
        stops = token in sequence.stop_ids and length > sequence.stop_after
        if not stops and length < sequence.end_len:
            return SequenceOutput(
                sequence.request.id, sequence.index, (token,), entries, prompt, None, None, sequence.num_cached
            )
        stopping = sequence.request.stopping
        self._leave(sequence)
        self._admission.finished(now, idle=not self._streams)
        is_eos = token in stopping.eos_token_ids and not stopping.ignore_eos
        wanted = stopping.max_tokens > 0  # else only the prompt was to be scored
        return SequenceOutput(
            sequence.request.id,
            sequence.index,
            (token,) if wanted else (),
            entries if wanted else (),
            prompt,
            FinishReason.STOP if stops and wanted else FinishReason.LENGTH,
            token if stops and wanted and not is_eos else None,
            sequence.num_cached,
            sequence.times(),
        )

    def _offer(self, sequence: SequenceState, entry: TokenLogprobs | None, now: float) -> None:
        if entry is None:
            raise InternalError(f"sequence {sequence.id} is a beam, but its step has no log-probabilities")
        self._beams.offer(sequence, entry, self._streams[sequence.request.id], now)

    def _advance_beams(self) -> list[SequenceOutput]:
        """Fork, extend and end the sequences of searches that completed a step."""
        outputs: list[SequenceOutput] = []
        for step in self._beams.advance(self._next_id + 1):
            self._next_id += len(step.forks)
            self._streams[step.request.id] += step.forks
            for sequence in step.ended:
                self._leave(sequence)
            for sequence in step.forks:
                self._waiting.push(sequence)
            self._unpark(step.request.id)
            outputs += step.outputs
        return outputs

    def _end_invalid(self, sequence: SequenceState) -> list[SequenceOutput]:
        """What is not a number may stand in its blocks as well: nobody shall find them."""
        return self._end(sequence, FinishReason.ERROR, "the model's logits are not finite", forget=True)

    def _end(
        self, sequence: SequenceState, reason: FinishReason, error: str | None = None, forget: bool = False
    ) -> list[SequenceOutput]:
        """End a sequence without a token, wherever it is; a beam ends all of its request, once."""
        request = sequence.request
        if request.beam is None:
            self._leave(sequence, forget)
            return [sequence.finish(reason, error)]
        beams = list(self._streams.get(request.id, ()))
        for beam in beams:
            self._leave(beam, forget)
        return [sequence.finish(reason, error, index) for index in range(request.n)] if beams else []

    def _leave(self, sequence: SequenceState, forget: bool = False) -> None:
        """Give back everything that a sequence holds."""
        if sequence.slot >= 0:
            del self._running[sequence.id]
            self._cache.release(sequence.blocks, forget)
            self._free_slots.append(sequence.slot)
            self._released.append(sequence.slot)
            sequence.slot = -1
        elif sequence.parked:
            self._parked[sequence.request.id].remove(sequence)
        else:
            self._waiting.remove(sequence)
        request_id = sequence.request.id
        streams = self._streams[request_id]
        streams.remove(sequence)
        if streams:
            self._unpark(request_id)
        else:
            del self._streams[request_id]
            self._parked.pop(request_id, None)
            self._beams.close(request_id)
            self._unstarted.discard(request_id)

    def _unpark(self, request_id: str) -> None:
        """What the parked streams waited for is there, or will never be."""
        for sequence in self._parked.pop(request_id, ()):
            sequence.parked = False
            self._waiting.push(sequence)

    def _open(self, request: GenerationRequest, index: int) -> SequenceState:
        self._next_id += 1
        rank = self._rank_of(request, self._next_id)
        blocks = self._cache.open(request.cache_salt)
        return open_sequence(self._next_id, index, request, rank, blocks, self._longest)


def _check_result(plan: StepPlan, result: StepResult) -> None:
    draws = sum(row.samples for row in plan.rows)
    lengths = {len(result.token_ids), len(result.logprobs) or draws, len(result.invalid) or draws}
    if result.step != plan.step or lengths != {draws}:
        raise InternalError(
            f"step {plan.step} draws {draws} tokens; the result is of step {result.step} and has "
            f"{len(result.token_ids)} tokens, {len(result.logprobs)} log-probabilities, {len(result.invalid)} marks"
        )
