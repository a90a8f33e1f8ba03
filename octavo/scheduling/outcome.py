"""What the result of a step, or the end of a request, means for its sequences."""

from collections.abc import Iterable

from msgspec.structs import replace

from octavo.cache.manager import CacheManager
from octavo.errors import InternalError
from octavo.flow.plan import PlannedRow, StepPlan
from octavo.flow.result import FinishReason, SequenceOutput, StepResult, TokenLogprobs
from octavo.scheduling.admission import Admission
from octavo.scheduling.beam import Beams
from octavo.scheduling.deadlines import Deadlines
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import SequenceState
from octavo.scheduling.stats import SchedulerCounters

_NOT_FINITE = (
    "these tokens overflow in this model, or its weights are damaged: try --dtype float32 and "
    "--kv-cache-dtype float32, or get the checkpoint again"
)


class Outcome:
    """Adds drawn tokens, publishes computed blocks, ends sequences. Mutable; the Scheduler owns it."""

    def __init__(
        self,
        cache: CacheManager,
        roster: Roster,
        admission: Admission,
        deadlines: Deadlines,
        counters: SchedulerCounters,
    ) -> None:
        self.beams = Beams(cache, roster.new_id)
        self._cache = cache
        self._roster = roster
        self._admission = admission
        self._deadlines = deadlines
        self._counters = counters

    def take(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceOutput]:
        """Record what a step computed; return what it added to each stream, and the ends.

        Rows of sequences that have ended since the plan was made count for nothing. Those that were preempted since
        keep the token.

        Raises:
            InternalError: the result does not belong to the plan. Nothing was changed.
        """
        _check_result(plan, result)
        outputs: list[SequenceOutput] = []
        members, tokens, logprobs = self._roster.members, result.token_ids, result.logprobs
        faults, scored = dict(result.faults), dict(result.prompt_logprobs)
        spoilt = bool(faults or result.invalid_prompts) or any(result.invalid)
        pooled = dict(result.pooled)
        if result.mirostat:
            self._keep_mirostat(plan, result)
        drawn, lost = -1, 0
        for position, row in enumerate(plan.rows):
            drawn += row.samples
            sequence = members.get(row.sequence)
            if sequence is None:
                lost += row.samples
                continue
            if spoilt and _is_spoilt(result, position, drawn if row.samples else -1):
                lost += row.samples
                outputs += self._end_invalid(sequence, row, faults.get(drawn) if row.samples else None)
                continue
            computed = row.start + row.count
            if computed >= sequence.blocks.publish_at and sequence.slot >= 0:
                self._cache.publish(sequence.blocks, sequence.token_ids, computed)
            found = logprobs[drawn] if logprobs and row.samples else None
            if row.start < sequence.prompt_len or not row.samples or not sequence.draws:
                draw = (tokens[drawn], found) if row.samples else None
                made = self._record(sequence, row, draw, scored.get(position, ()), now)
                if position in pooled:  # its prompt's end is its own
                    made = [replace(end, finish_reason=FinishReason.STOP, pooled=pooled[position]) for end in made]
                    lost += 1
                outputs += made
                continue
            # Most rows add one token to an answer, and have to be quick.
            token, entries = tokens[drawn], () if found is None else (found,)
            if token in sequence.stop_ids or computed + 1 >= sequence.end_len:
                outputs.append(self._append(sequence, token, entries, (), now))
                continue
            sequence.token_ids.append(token)
            sequence.last_token = now
            request_id, index = sequence.request.id, sequence.index
            outputs.append(SequenceOutput(request_id, index, (token,), entries, (), None, None, sequence.num_cached))
        outputs += self._advance_beams()
        counters = self._counters
        counters.steps += bool(plan.rows)
        counters.step_seconds += result.seconds
        counters.generation_tokens += drawn + 1 - lost
        return outputs

    def _keep_mirostat(self, plan: StepPlan, result: StepResult) -> None:
        drawing = [row.sequence for row in plan.rows if row.samples]
        for row, mu in result.mirostat:
            if (sequence := self._roster.members.get(drawing[row])) is not None:
                sequence.mirostat_mu = mu

    def fail(self, plan: StepPlan, error: str) -> list[SequenceOutput]:
        """End what a failed step was to compute. Everything else goes on."""
        members = [self._roster.members[row.sequence] for row in plan.rows if row.sequence in self._roster.members]
        outputs = self.end(members, FinishReason.ERROR, error)
        self._roster.release_again(plan.released)
        return outputs

    def end(
        self, sequences: Iterable[SequenceState], reason: FinishReason, error: str | None = None
    ) -> list[SequenceOutput]:
        """End sequences without a token, wherever they are."""
        members = self._roster.members
        return [end for one in sequences if one.id in members for end in self._end(one, reason, error)]

    def _record(
        self,
        sequence: SequenceState,
        row: PlannedRow,
        draw: tuple[int, TokenLogprobs | None] | None,
        scores: tuple[TokenLogprobs, ...],
        now: float,
    ) -> list[SequenceOutput]:
        """A part of a prompt, or a beam's token: `draw` is what was drawn after it, if anything was."""
        prompt = ()
        if row.start < sequence.prompt_len:
            self._counters.prompt_tokens += min(row.start + row.count, sequence.prompt_len) - row.start
            prompt = sequence.take_scores(row.start, scores) if scores else ()
        if draw is not None and sequence.draws:
            token, entry = draw
            output = self._append(sequence, token, () if entry is None else (entry,), prompt, now)
            report, sequence.cache_report = sequence.cache_report, None
            return [output if report is None else replace(output, cache_report=report)]
        if draw is not None:
            self._offer(sequence, draw[1], now)
        return sequence.scored(prompt) if prompt else []

    def _append(
        self,
        sequence: SequenceState,
        token: int,
        entries: tuple[TokenLogprobs, ...],
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
            self._roster.unpark(sequence.request.id)
        stops = token in sequence.stop_ids and length > sequence.stop_after
        if not stops and length < sequence.end_len:
            return SequenceOutput(
                sequence.request.id, sequence.index, (token,), entries, prompt, None, None, sequence.num_cached
            )
        stopping = sequence.request.stopping
        self._leave(sequence)
        self._admission.finished(now, idle=not self._roster.streams)
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
        self.beams.offer(sequence, entry, self._roster.streams[sequence.request.id], now)

    def _advance_beams(self) -> list[SequenceOutput]:
        """Fork, extend and end the sequences of searches that completed a step."""
        outputs: list[SequenceOutput] = []
        for step in self.beams.advance():
            self._roster.fork(step.request.id, step.forks)
            for sequence in step.ended:
                self._leave(sequence)
            self._roster.unpark(step.request.id)
            outputs += step.outputs
        return outputs

    def _end_invalid(self, sequence: SequenceState, row: PlannedRow, fault: str | None) -> list[SequenceOutput]:
        """What is not a number may stand in its blocks as well: nobody shall find them. A fault is the request's."""
        if fault is not None:
            return [replace(end, refused=True) for end in self._end(sequence, FinishReason.ERROR, fault)]
        error = (
            f"the model's logits are not finite (NaN or infinity) after {row.start + row.count} tokens; {_NOT_FINITE}"
        )
        ends = self._end(sequence, FinishReason.ERROR, error, forget=True)
        self._counters.not_finite += len(ends)
        return ends

    def _end(
        self, sequence: SequenceState, reason: FinishReason, error: str | None = None, forget: bool = False
    ) -> list[SequenceOutput]:
        """End a sequence without a token; a beam ends all of its request, once."""
        request = sequence.request
        if request.beam is None:
            self._leave(sequence, forget)
            return [sequence.finish(reason, error)]
        for beam in list(self._roster.streams[request.id]):
            self._leave(beam, forget)
        return [sequence.finish(reason, error, index) for index in range(request.n)]

    def _leave(self, sequence: SequenceState, forget: bool = False) -> None:
        """Give back everything that a sequence holds."""
        if self._roster.leave(sequence, forget):
            self._deadlines.forget(sequence.request.id)
            self.beams.close(sequence.request.id)


def _is_spoilt(result: StepResult, position: int, drawn: int) -> bool:
    """A planned row ends with an error. `drawn`: its number among those that were drawn, or -1."""
    if position in result.invalid_prompts:
        return True
    return drawn >= 0 and (
        any(at == drawn for at, _ in result.faults) or bool(result.invalid and result.invalid[drawn])
    )


def _check_result(plan: StepPlan, result: StepResult) -> None:
    draws = sum([row.samples for row in plan.rows])
    lengths = {len(result.token_ids), len(result.logprobs) or draws, len(result.invalid) or draws}
    if result.step != plan.step or lengths != {draws}:
        raise InternalError(
            f"step {plan.step} draws {draws} tokens; the result is of step {result.step} and has "
            f"{len(result.token_ids)} tokens, {len(result.logprobs)} log-probabilities, {len(result.invalid)} marks"
        )
