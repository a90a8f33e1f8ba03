"""A scheduler in miniature: turns what a test wants to happen into plans, with real block bookkeeping."""

from dataclasses import dataclass, field

from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import Sampling


@dataclass
class Line:
    """One sequence in its slot."""

    slot: int
    prompt: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: int = 0
    outputs: list = field(default_factory=list)  # TokenLogprobs of each output
    prompt_logprobs: list = field(default_factory=list)

    def __post_init__(self):
        self.tokens = list(self.prompt)

    @property
    def drawn(self):
        return self.tokens[len(self.prompt) :]


class Driver:
    """Plans steps for a worker. Blocks are handed out in a scattered order and never twice."""

    def __init__(self, worker, groups, block_size=16, blocks=256, state_pages=()):
        self._worker = worker
        self._groups = groups
        self._state_pages = state_pages or (0,) * groups
        self._block_size = block_size
        self._free = list(range(blocks - 1, 0, -3)) + list(range(blocks - 2, 0, -3)) + list(range(blocks - 3, 0, -3))
        self._step = 0
        self._arrivals = []

    def add(self, slot, prompt, sampling=None, stop_ids=()):
        line = Line(slot, tuple(prompt), sampling or Sampling(temperature=0.0), stop_ids)
        self._arrivals.append(SlotArrival(slot, slot, line.prompt, len(line.prompt), line.sampling, stop_ids))
        return line

    def step(self, *parts, released=(), suppress_stop=False):
        """Each part is a line, or (line, count); a line alone computes all that is pending."""
        pairs = [part if isinstance(part, tuple) else (part, len(part.tokens) - part.computed) for part in parts]
        rows = tuple(self._row(line, count, suppress_stop) for line, count in pairs)
        plan = StepPlan(self._step, rows, tuple(self._arrivals), released=released)
        self._arrivals, self._step = [], self._step + 1
        result = self._worker.run_step(plan)
        assert result.step == plan.step
        drawing = [line for (line, _), row in zip(pairs, rows, strict=True) if row.samples]
        assert len(result.token_ids) == len(result.logprobs) == len(result.invalid) == len(drawing)
        for line, token, logprobs in zip(drawing, result.token_ids, result.logprobs, strict=True):
            line.tokens.append(token)
            line.outputs.append(logprobs)
        for row, entries in result.prompt_logprobs:
            pairs[row][0].prompt_logprobs.extend(entries)
        for line, count in pairs:
            line.computed += count
        return result

    def run(self, line, outputs, **options):
        """Prefill and decode one line alone."""
        while len(line.drawn) < outputs:
            self.step(line, **options)
        return line.drawn

    def _row(self, line, count, suppress_stop):
        end = line.computed + count
        new = -(-end // self._block_size) - line.blocks
        line.blocks += new
        # A recurrent state gets other pages whenever a block begins, as when it is kept at the block's border.
        counts = [new if pages == 0 else pages if new else 0 for pages in self._state_pages]
        blocks = tuple(tuple(self._free.pop() for _ in range(count)) for count in counts)
        samples = end == len(line.tokens)
        return PlannedRow(line.slot, line.slot, line.computed, count, blocks, samples, len(line.drawn), suppress_stop)
