"""Which beams of a search live on, which hypotheses are finished, and when the search is over.

The rules are those of transformers' `generate(num_beams=...)`: of each step's best candidates those that end enter the
pool of finished ones, if they are among the best `width`; the best `width` others go on. Scores are divided by
length ** length_penalty, where the length counts generated tokens.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from octavo.cache.manager import CacheManager
from octavo.flow.request import Beam, GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput, TokenLogprobs
from octavo.scheduling.sequence import SequenceState, open_blocks


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beam's generated tokens, last one first: each node knows the one before."""

    before: "Hypothesis | None"
    entry: TokenLogprobs  # of the token, then the likeliest ones at its position
    total: float  # log-probability of all tokens
    length: int
    ended: FinishReason | None = None

    def path(self) -> list["Hypothesis"]:
        """All nodes, first token first."""
        nodes: list[Hypothesis] = []
        node: Hypothesis | None = self
        while node is not None:
            nodes.append(node)
            node = node.before
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Child:
    """A beam of the next step. `parent` is the id of the sequence that it continues, `drawn` whether with its draw."""

    parent: int
    drawn: bool
    hypothesis: Hypothesis


class BeamSearch:
    """One request's search. Mutable; `Beams` owns it.

    Args:
        ends: token ids that end a hypothesis.
        root: id of the sequence that computes the prompt.
        most: a hypothesis ends at this many tokens.
        least: no token ends it before it has more than so many.
    """

    def __init__(self, beam: Beam, ends: frozenset[int], root: int, most: int, least: int = 0) -> None:
        self._beam = beam
        self._ends = ends
        self._most = most
        self._least = least
        self._live: dict[int, Hypothesis | None] = {root: None}
        self._offers: dict[int, TokenLogprobs] = {}
        self.finished: list[tuple[float, Hypothesis]] = []  # best first, at most `width`
        self.done = False

    @property
    def ready(self) -> bool:
        """Every beam has offered its candidates."""
        return len(self._offers) == len(self._live)

    def offer(self, sequence: int, entry: TokenLogprobs) -> None:
        """The likeliest tokens that may continue a beam."""
        self._offers[sequence] = entry

    def advance(self) -> list[Child]:
        """The beams of the next step, best first, which the caller must `adopt`. Empty when the search is done."""
        width = self._beam.width
        keep = max(2, 1 + len(self._ends)) * width
        ranked = sorted(self._candidates(), key=lambda child: -child.hypothesis.total)[:keep]
        going_on = [child for child in ranked if child.hypothesis.ended is None][:width]
        self._finish([child.hypothesis for child in ranked[:width] if child.hypothesis.ended is not None])
        self.done = not going_on or not self._can_improve(going_on[0].hypothesis)
        self._offers.clear()
        self._live.clear()
        return [] if self.done else going_on

    def adopt(self, sequence: int, child: Child) -> None:
        """`sequence` is the one that computes a child."""
        self._live[sequence] = child.hypothesis

    def _candidates(self) -> Iterator[Child]:
        for sequence, before in self._live.items():
            entry = self._offers[sequence]
            total, length = (0.0, 0) if before is None else (before.total, before.length)
            for rank, (token, logprob) in enumerate(zip(entry.token_ids[1:], entry.logprobs[1:], strict=True), 1):
                stops = token in self._ends
                if token < 0 or (stops and length < self._least):  # a vocabulary may have fewer tokens than asked for
                    continue
                full = length + 1 >= self._most
                ended = FinishReason.STOP if stops else FinishReason.LENGTH if full else None
                chosen = TokenLogprobs((token, *entry.token_ids[1:]), (logprob, *entry.logprobs[1:]), rank)
                drawn = token == entry.token_ids[0]
                yield Child(sequence, drawn, Hypothesis(before, chosen, total + logprob, length + 1, ended))

    def _finish(self, ended: list[Hypothesis]) -> None:
        if self._beam.early_stopping is True and len(self.finished) == self._beam.width:
            return
        scored = [(one.total / one.length**self._beam.length_penalty, one) for one in ended]
        self.finished = sorted(self.finished + scored, key=lambda pair: -pair[0])[: self._beam.width]

    def _can_improve(self, best: Hypothesis) -> bool:
        """Whether a beam may still become better than the worst finished hypothesis."""
        beam = self._beam
        if len(self.finished) < beam.width:
            return True
        if beam.early_stopping is True:
            return False
        longest = beam.early_stopping == "never" and beam.length_penalty > 0
        length = self._most if longest else best.length
        return best.total / length**beam.length_penalty > self.finished[-1][0]


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What becomes of one request's sequences: `forks` are new ones, `outputs` its answers when it is done."""

    request: GenerationRequest
    ended: list[SequenceState]
    forks: list[SequenceState]
    outputs: list[SequenceOutput]


class Beams:
    """The beam searches under way. Mutable; the Outcome owns it.

    A sequence that has offered its candidates is idle (nothing is left to compute) until all of its request have.

    Args:
        new_id: of a sequence.
    """

    def __init__(self, cache: CacheManager, new_id: Callable[[], int]) -> None:
        self._cache = cache
        self._new_id = new_id
        self._searches: dict[str, BeamSearch] = {}
        self._ready: dict[str, list[SequenceState]] = {}

    def open(self, root: SequenceState) -> None:
        """Begin the search of a request whose prompt `root` computes."""
        request, stopping = root.request, root.request.stopping
        beam = request.beam
        assert beam is not None
        most = root.end_len - root.prompt_len
        self._searches[request.id] = BeamSearch(beam, root.stop_ids, root.id, most, stopping.min_tokens)
        top = max(2, 1 + len(root.stop_ids)) * beam.width
        root.sampling = replace(root.sampling, temperature=0.0, logprobs=top)
        root.draws = 0

    def offer(self, sequence: SequenceState, entry: TokenLogprobs, streams: list[SequenceState], now: float) -> None:
        """Take what a sequence's step found."""
        sequence.first_token = sequence.first_token or now
        sequence.last_token = now
        search = self._searches[sequence.request.id]
        search.offer(sequence.id, entry)
        if search.ready:
            self._ready[sequence.request.id] = streams

    def close(self, request_id: str) -> None:
        """Forget a request."""
        self._searches.pop(request_id, None)
        self._ready.pop(request_id, None)

    def advance(self) -> list[BeamStep]:
        """One step of every search that all beams have offered for."""
        ready, self._ready = self._ready, {}
        return [self._advance(self._searches[request_id], streams) for request_id, streams in ready.items()]

    def _advance(self, search: BeamSearch, streams: list[SequenceState]) -> BeamStep:
        children: dict[int, list[Child]] = {}
        for child in search.advance():
            children.setdefault(child.parent, []).append(child)
        step = BeamStep(streams[0].request, [], [], [])
        for parent in streams:
            own = children.get(parent.id, [])
            tokens = parent.token_ids[:]
            # The executor has noted the drawn token as the next one of a sequence that runs.
            heir = next((child for child in own if child.drawn or parent.slot < 0), None)
            for child in own:
                token = child.hypothesis.entry.token_ids[0]
                if child is heir:
                    parent.extend(token)
                    search.adopt(parent.id, child)
                else:
                    fork = self._fork(parent, tokens + array("I", (token,)))
                    step.forks.append(fork)
                    search.adopt(fork.id, child)
            if heir is None:
                step.ended.append(parent)
        if search.done:
            step.outputs.extend(_answers(search, streams[0]))
        return step

    def _fork(self, parent: SequenceState, tokens: "array[int]") -> SequenceState:
        number = self._new_id()
        return replace(
            parent,
            id=number,
            rank=(*parent.rank[:2], number),  # right behind its request's first sequence
            blocks=open_blocks(self._cache, parent.request),
            token_ids=tokens,
            length=len(tokens),
            computed=0,
            taken=0,
            slot=-1,
            donor=parent,
            parked=False,
        )


def _answers(search: BeamSearch, sequence: SequenceState) -> Iterator[SequenceOutput]:
    """The best hypotheses as the request's streams, each in one piece."""
    request = sequence.request
    for index in range(request.n):
        if index >= len(search.finished):  # there are not that many different answers
            yield sequence.finish(FinishReason.LENGTH, index=index)
            continue
        hypothesis = search.finished[index][1]
        path = hypothesis.path()
        tokens = tuple(node.entry.token_ids[0] for node in path)
        stop = tokens[-1] if hypothesis.ended is FinishReason.STOP else None
        is_eos = stop in request.stopping.eos_token_ids and not request.stopping.ignore_eos
        yield SequenceOutput(
            request.id,
            index,
            tokens,
            () if request.sampling.logprobs is None else tuple(node.entry for node in path),
            (),
            hypothesis.ended,
            None if is_eos else stop,
            sequence.num_cached,
            sequence.times(),
            cache_report=sequence.cache_report,
        )
