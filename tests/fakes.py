"""Stand-ins for what the scheduler sees: requests, groups of layers, an executor without a model."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from zlib import crc32

from octavo.cache.group import KVCacheGroup
from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import FinishReason, StepResult, TokenLogprobs

FULL = KVCacheGroup("full", None, (0,))


def window(size: int) -> KVCacheGroup:
    """A sliding-window group."""
    return KVCacheGroup("window", size, (0,))


def chunked(size: int) -> KVCacheGroup:
    """A group of chunked-local attention."""
    return KVCacheGroup("chunked", size, (0,))


def state(pages: int = 1) -> KVCacheGroup:
    """A group of recurrent states; it comes last."""
    return KVCacheGroup("state", None, (0,), pages)


def request(
    id: str, prompt: Sequence[int], max_tokens: int = 4, *, n: int = 1, priority: int = 0, **options: object
) -> GenerationRequest:
    """A request; `options` are fields of Sampling, Stopping or GenerationRequest."""
    names = {cls: set(cls.__dataclass_fields__) for cls in (Sampling, Stopping, GenerationRequest)}
    parts = {cls: {k: v for k, v in options.items() if k in fields} for cls, fields in names.items()}
    assert set(options) == {name for part in parts.values() for name in part}, options
    sampling = Sampling(**parts[Sampling])  # type: ignore[arg-type]
    stopping = Stopping(max_tokens, **parts[Stopping])  # type: ignore[arg-type]
    rest = parts[GenerationRequest]
    return GenerationRequest(id, tuple(prompt), sampling, stopping, n=n, priority=priority, **rest)  # type: ignore[arg-type]


# --- executor --------------------------------------------------------------------------------------------------------


_WORD = (1 << 64) - 1  # seeds go up to it


def _mix(*values: int) -> int:
    return crc32(b"".join((value & _WORD).to_bytes(8, "little") for value in values))


def scores(view: Sequence[int], vocab: int) -> list[float]:
    """Log-probabilities of the token that follows everything the groups can see."""
    base = _mix(*view)
    logits = [_mix(base, token) % 10_007 / 2_500 for token in range(vocab)]
    total = log(sum(exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def _draw(view: Sequence[int], sampling: Sampling, vocab: int, banned: Sequence[int]) -> int:
    """The token that follows everything the groups can see."""
    if sampling.temperature == 0:
        logprobs = scores(view, vocab)
        return max((token for token in range(vocab) if token not in banned), key=logprobs.__getitem__)
    token = _mix(sampling.seed, *view) % vocab
    while token in banned:
        token = (token + 1) % vocab
    return token


def visible(group: KVCacheGroup, position: int) -> range:
    """The positions that a query reads, of keys and values."""
    if group.kind == "chunked":
        assert group.window is not None
        return range(position // group.window * group.window, position + 1)
    return range(0 if group.window is None else max(0, position - group.window + 1), position + 1)


def view_of(tokens: Sequence[int], groups: Sequence[KVCacheGroup]) -> list[int]:
    """What the groups see when the token after `tokens` is drawn."""
    recurrent = [group for group in groups if group.is_state]
    keeping = [group for group in groups if not group.is_state]
    values: list[int] = []
    state = 0
    for position, token in enumerate(tokens):
        seen = [values[position - 1] for group in keeping if position and position - 1 in visible(group, position)]
        values.append(_mix(token, *seen, *([state] * len(recurrent))))
        state = _mix(state, values[-1])
    view = [values[position] for group in keeping for position in visible(group, len(tokens) - 1)]
    return view + [state] * len(recurrent)


def oracle(
    asked: GenerationRequest, index: int, groups: Sequence[KVCacheGroup], vocab: int, longest: int
) -> tuple[list[int], FinishReason]:
    """What stream `index` must answer: computed from its tokens alone, without cache, batch or blocks."""
    tokens = list(asked.prompt_token_ids)
    sampling = Sampling(asked.sampling.temperature, seed=asked.sampling.seed + index)
    stopping = asked.stopping
    stops = set(stopping.stop_token_ids) | (set() if stopping.ignore_eos else set(stopping.eos_token_ids))
    output: list[int] = []
    while True:
        token = _draw(
            view_of(tokens, groups), sampling, vocab, sorted(stops) if len(output) < stopping.min_tokens else ()
        )
        output.append(token)
        tokens.append(token)
        if token in stops and len(output) > stopping.min_tokens:
            return output, FinishReason.STOP
        if len(output) >= stopping.max_tokens or len(tokens) >= longest:
            return output, FinishReason.LENGTH


@dataclass
class _Slot:
    arrival: SlotArrival
    tokens: list[int]
    tables: list[list[int]]
    state_pages: tuple[int, ...] = ()  # that hold what the last step left
    state: int = 0


@dataclass
class _Done:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class FakeExecutor:
    """Computes tokens from the contents of blocks, through block tables, as a model would.

    A block holds, for every position, a value that depends on the token and on what the position before left in the
    cache. A token depends on all values that its groups can see. So a wrong table, a block that was given away too
    early or written twice changes an answer, or is caught as a read of something foreign. A recurrent state is read
    from its pages when a step begins, and written when it ends.
    """

    def __init__(
        self, groups: Sequence[KVCacheGroup] = (FULL,), num_blocks: int = 64, block_size: int = 4, vocab: int = 50
    ) -> None:
        self.groups = tuple(group for group in groups if not group.is_state)
        self.state_count = sum(group.pages for group in groups if group.is_state)
        self.block_size = block_size
        self.vocab = vocab
        self.plans: list[StepPlan] = []
        self.on_submit: Callable[[StepPlan], None] = lambda _plan: None  # may raise: the step fails
        self.is_invalid: Callable[[PlannedRow], bool] = lambda _row: False
        self.closed = False
        # (group, position, value) by block and place
        self._cells: list[list[tuple[int, int, int] | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._slots: dict[int, _Slot] = {}

    def submit(self, plan: StepPlan) -> _Done:
        """Run a plan."""
        self.plans.append(plan)
        self.on_submit(plan)
        for slot in plan.released:
            self._slots.pop(slot, None)
        for arrival in plan.arrivals:
            assert arrival.slot not in self._slots, f"slot {arrival.slot} is taken"
            tables: list[list[int]] = [[] for _ in self.groups]
            self._slots[arrival.slot] = _Slot(arrival, list(arrival.token_ids), tables)
        for copy in plan.copies:
            self._cells[copy.target] = list(self._cells[copy.source])
        drawn = [self._run(row) for row in plan.rows]
        tokens = tuple(token for token in drawn if token is not None)
        sampled = [row for row in plan.rows if row.samples]
        scores = [(index, self._score(row)) for index, row in enumerate(plan.rows)]
        return _Done(
            StepResult(
                plan.step,
                tokens,
                tuple(self._logprobs(row, token) for row, token in zip(sampled, tokens, strict=True)),
                tuple(self.is_invalid(row) for row in sampled),
                tuple((index, entries) for index, entries in scores if entries),
                seconds=0.001,
                mirostat=tuple(  # as a state that counts the draws
                    (drawn, row.output_index + 1.0)
                    for drawn, row in enumerate(sampled)
                    if self._slots[row.slot].arrival.sampling.shaping.mirostat
                ),
            )
        )

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _run(self, row: PlannedRow) -> int | None:
        slot = self._slots[row.slot]
        assert slot.arrival.sequence == row.sequence, "the row's slot belongs to another sequence"
        for table, blocks in zip(slot.tables, row.new_blocks, strict=False):
            table.extend(blocks)
        assert len(row.new_blocks) == len(slot.tables) + bool(self.state_count)
        end = row.start + row.count
        told = row.new_blocks[-1] if self.state_count else ()
        self._load_state(slot, row.start, told)
        for position in range(row.start, end):
            self._write(slot, position)
        self._store_state(slot, end, told)
        assert row.samples == (end == len(slot.tokens)), "a token is drawn exactly after the last known one"
        if not row.samples:
            return None
        assert row.output_index == end - slot.arrival.prompt_len
        view = self._view(slot, end)
        banned = slot.arrival.stop_ids if row.suppress_stop else ()
        token = _draw(view, slot.arrival.sampling, self.vocab, banned)
        slot.tokens.append(token)
        return token

    def _view(self, slot: _Slot, end: int) -> list[int]:
        return [
            self._read(slot, index, position)
            for index, group in enumerate(self.groups)
            for position in visible(group, end - 1)
        ] + [slot.state] * bool(self.state_count)

    def _load_state(self, slot: _Slot, start: int, told: tuple[int, ...]) -> None:
        """What the last step, or another sequence, left after the token before `start`."""
        count = self.state_count
        assert len(told) in (0, count, 2 * count)
        slot.state = 0
        pages = told[:count] if len(told) == 2 * count else slot.state_pages or told
        assert not count or len(pages) == count
        if not start:
            return
        for page, block in enumerate(pages):
            cell = self._cells[block][0]
            assert cell is not None, "a page of a state was never written"
            assert cell[:2] == (len(self.groups) + page, start - 1), f"the state before {start} is {cell[:2]}"
            assert page == 0 or cell[2] == slot.state
            slot.state = cell[2]

    def _store_state(self, slot: _Slot, end: int, told: tuple[int, ...]) -> None:
        if told:
            slot.state_pages = told[-self.state_count :]
        for page, block in enumerate(slot.state_pages):
            self._cells[block] = [(len(self.groups) + page, end - 1, slot.state)] + [None] * (self.block_size - 1)

    def _write(self, slot: _Slot, position: int) -> None:
        seen = [
            self._read(slot, index, position - 1)
            for index, group in enumerate(self.groups)
            if position and position - 1 in visible(group, position)
        ]
        value = _mix(slot.tokens[position], *seen, *([slot.state] * bool(self.state_count)))
        slot.state = _mix(slot.state, value)
        for index, table in enumerate(slot.tables):
            block = self._cells[table[position // self.block_size]]
            block[position % self.block_size] = (index, position, value)

    def _read(self, slot: _Slot, group: int, position: int) -> int:
        cell = self._cells[slot.tables[group][position // self.block_size]][position % self.block_size]
        assert cell is not None, f"position {position} of group {group} was never written"
        assert cell[:2] == (group, position), f"position {position} of group {group} holds {cell[:2]}"
        return cell[2]

    def _logprobs(self, row: PlannedRow, token: int) -> TokenLogprobs | None:
        slot = self._slots[row.slot]
        sampling = slot.arrival.sampling
        if sampling.logprobs is None:
            return None
        if sampling.temperature:
            return TokenLogprobs((token,), (-float(row.output_index),), 1)
        logprobs = scores(self._view(slot, row.start + row.count), self.vocab)
        top = sorted(range(self.vocab), key=lambda one: -logprobs[one])
        listed = [token, *top[: sampling.logprobs]]
        return TokenLogprobs(tuple(listed), tuple(logprobs[one] for one in listed), top.index(token) + 1)

    def _score(self, row: PlannedRow) -> tuple[TokenLogprobs, ...]:
        slot = self._slots[row.slot]
        if slot.arrival.sampling.prompt_logprobs is None:
            return ()
        last = min(row.start + row.count, slot.arrival.prompt_len - 1)
        return tuple(
            TokenLogprobs(
                (slot.tokens[position + 1],),
                (-float(self._read(slot, 0, position) if self.groups else slot.tokens[position]),),
                1,
            )
            for position in range(row.start, last)
        )


@dataclass
class _Later:
    device: "LateExecutor"
    plan: StepPlan

    def wait(self) -> StepResult:
        return self.device.finish(self.plan)


class LateExecutor(FakeExecutor):
    """A device that works on its own: a plan runs when its result is waited for, after all that came before it.

    When a plan fails, the next one is on its way already. Of the sequences that were in both it computes nonsense.
    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.deepest = 0  # most plans that were under way at a time
        self._lost: set[int] = set()
        self._queue: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> _Later:  # type: ignore[override]
        """Take a plan."""
        self._queue.append(plan)
        self.deepest = max(self.deepest, len(self._queue))
        return _Later(self, plan)

    def finish(self, plan: StepPlan) -> StepResult:
        """Run a plan, which must be the first one that was not run."""
        assert self._queue.popleft() is plan, "plans are waited for in order"
        try:
            return super().submit(plan).wait()
        except RuntimeError:
            self._lost.update(row.sequence for row in plan.rows)
            raise

    def _run(self, row: PlannedRow) -> int | None:
        if row.sequence in self._lost:
            return 0 if row.samples else None
        return super()._run(row)

    def _logprobs(self, row: PlannedRow, token: int) -> TokenLogprobs | None:
        return None if row.sequence in self._lost else super()._logprobs(row, token)

    def _score(self, row: PlannedRow) -> tuple[TokenLogprobs, ...]:
        return () if row.sequence in self._lost else super()._score(row)


# --- tokenizer -------------------------------------------------------------------------------------------------------
