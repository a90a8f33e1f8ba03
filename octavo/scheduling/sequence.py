"""What the scheduler remembers of one sample stream of a request, from its arrival to its end."""

from array import array
from dataclasses import dataclass, replace

from octavo.cache.manager import CacheManager
from octavo.cache.table import CacheTerms, NewBlocks, SequenceBlocks
from octavo.flow.cache_report import CacheReport
from octavo.flow.plan import PlannedRow, SlotArrival
from octavo.flow.request import GenerationRequest, Sampling
from octavo.flow.result import FinishReason, SequenceOutput, SequenceTimes, TokenLogprobs

Rank = tuple[float, ...]  # lower goes first


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence stands among others, for all its life; `arrived` in seconds."""

    rank: Rank
    level: int
    arrived: float


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence. Mutable; the Scheduler owns it.

    `slot` is -1 unless the sequence runs. `length` counts the tokens that are known (`token_ids`) or being drawn by
    steps under way; the first `computed` of them are in the cache, or will be once those steps are done. So the next
    step can be planned before the last one's tokens are known. Lengths count prompt and output tokens.
    """

    id: int
    index: int  # sample stream of the request
    request: GenerationRequest
    sampling: Sampling
    rank: Rank
    level: int  # of ranks; the worst gives way first
    arrived: float
    blocks: SequenceBlocks
    token_ids: "array[int]"  # four bytes each, and hashed as they are
    length: int
    prompt_len: int
    end_len: int  # it ends at this length
    stop_after: int  # stop ids count beyond this length
    stop_ids: frozenset[int]
    draws: int = 1  # tokens that a step's draw adds; a beam's next token is chosen elsewhere
    computed: int = 0
    taken: int = 0  # of these, found in the cache when it got its slot
    slot: int = -1
    num_cached: int = 0
    prompt_scored: int = 0  # prompt log-probabilities that were delivered
    preemptions: int = 0
    mirostat_mu: float | None = None  # what the last draw left to the next
    started: bool = False
    parked: bool = False  # waits for others of its request, or for blocks from a tier: not for its turn
    cache_report: CacheReport | None = None  # until it is delivered
    donor: "SequenceState | None" = None  # the beam that it forked off, until it has taken over its blocks
    scheduled: float = 0.0  # 0: not yet
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def pending(self) -> int:
        """Tokens to compute until the next one can be drawn."""
        return self.length - self.computed

    @property
    def lost(self) -> int:
        """Tokens that have to be computed again when its blocks are taken."""
        return self.computed - self.taken

    @property
    def match_limit(self) -> int | None:
        """Most tokens that may come from the prefix cache: what must still be scored or pooled has to be computed."""
        if self.request.pooling is not None and self.request.pooling.needs_all:
            return 0
        if self.sampling.prompt_logprobs is None or self.prompt_scored >= self.prompt_len - 1:
            return None
        return self.prompt_scored

    def arrival(self) -> SlotArrival:
        """What the executor is told when the sequence gets its slot."""
        stop_ids = tuple(sorted(self.stop_ids))
        tokens = tuple(self.token_ids)
        return SlotArrival(
            self.slot, self.id, tokens, self.prompt_len, self.sampling, stop_ids, self.request.pooling, self.mirostat_mu
        )

    def advance(self, count: int, new_blocks: NewBlocks) -> PlannedRow:
        """The next `count` tokens' part of a step, which counts as done from now on."""
        start = self.computed
        self.computed = end = start + count
        samples = end == self.length
        if samples:
            self.length += self.draws
        return PlannedRow(
            self.id,
            self.slot,
            start,
            count,
            new_blocks,
            samples,
            end - self.prompt_len if samples else 0,
            samples and end < self.stop_after,
        )

    def retreat(self, row: PlannedRow) -> None:
        """A row that was planned is not computed after all."""
        self.computed = row.start
        if row.samples:
            self.length -= self.draws

    def extend(self, token: int) -> None:
        """A token is known."""
        self.token_ids.append(token)
        self.length = max(self.length, len(self.token_ids))

    def take_scores(self, start: int, entries: tuple[TokenLogprobs, ...]) -> tuple[TokenLogprobs, ...]:
        """Prompt log-probabilities from position `start` on, without those delivered before a preemption."""
        seen = self.prompt_scored
        self.prompt_scored = max(seen, start + len(entries))
        return entries[max(0, seen - start) :]

    def times(self) -> SequenceTimes:
        """Clock readings so far; 0 where something did not happen."""
        return SequenceTimes(self.arrived, self.scheduled, self.first_token, self.last_token, self.preemptions)

    def scored(self, prompt: tuple[TokenLogprobs, ...]) -> list[SequenceOutput]:
        """Prompt log-probabilities without a token. Beams have one prompt, and each answer tells of it."""
        streams = (self.index,) if self.request.beam is None else range(self.request.n)
        return [
            SequenceOutput(self.request.id, index, (), prompt_logprobs=prompt, num_cached_tokens=self.num_cached)
            for index in streams
        ]

    def finish(self, reason: FinishReason, error: str | None = None, index: int | None = None) -> SequenceOutput:
        """An end without a token. A beam ends every stream, so it tells which `index`."""
        return SequenceOutput(
            self.request.id,
            self.index if index is None else index,
            (),
            finish_reason=reason,
            num_cached_tokens=self.num_cached,
            times=self.times(),
            error=error,
        )


def open_blocks(cache: CacheManager, request: GenerationRequest) -> SequenceBlocks:
    """The blocks of a new stream, shared and kept as its request asks."""
    wish = request.cache
    terms = CacheTerms(
        owner=request.id,
        urgency=-request.priority,
        returns=bool(wish.key),
        retention=wish.retention,
        pinned=len(request.prompt_token_ids) if wish.retention else 0,
    )
    return cache.open(request.cache_salt, terms)


def open_sequence(
    id: int, index: int, request: GenerationRequest, place: Place, blocks: SequenceBlocks, longest: int
) -> SequenceState:
    """The state of a new stream.

    Args:
        longest: most tokens that a sequence may have.
    """
    stopping, prompt = request.stopping, request.prompt_token_ids
    sampling = request.sampling
    stop_ids = stopping.stop_token_ids if stopping.ignore_eos else stopping.stop_token_ids | stopping.eos_token_ids
    return SequenceState(
        id=id,
        index=index,
        request=request,
        sampling=replace(sampling, seed=sampling.seed + index) if index else sampling,
        rank=place.rank,
        level=place.level,
        arrived=place.arrived,
        blocks=blocks,
        token_ids=array("I", prompt),
        length=len(prompt),
        prompt_len=len(prompt),
        # Also where no token is wanted, one is drawn: that is how the end of the prompt is seen.
        end_len=max(len(prompt) + 1, min(len(prompt) + stopping.max_tokens, longest)),
        stop_after=len(prompt) + stopping.min_tokens,
        stop_ids=stop_ids,
    )
