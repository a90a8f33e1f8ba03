"""Where every unfinished sequence is: waiting, parked or running; which streams a request has; who has which slot."""

from collections.abc import Iterable

from octavo.cache.manager import CacheManager
from octavo.flow.request import GenerationRequest
from octavo.scheduling.policy import WaitingLine
from octavo.scheduling.sequence import Rank, SequenceState


class Roster:
    """All unfinished sequences. Mutable; the Scheduler owns it.

    A sequence waits in the line, runs (it has a slot and blocks), or is parked: it waits for other sequences of its
    request or for its blocks to come back from a tier, not for its turn. Whoever leaves, or loses the slot, gives back
    slot and blocks at once.

    Args:
        slots: most sequences that run.
    """

    def __init__(self, cache: CacheManager, line: WaitingLine, slots: int) -> None:
        self.line = line
        self.members: dict[int, SequenceState] = {}  # all, by id
        self.running: dict[int, SequenceState] = {}  # by id, in order of admission
        self.streams: dict[str, list[SequenceState]] = {}  # unfinished ones, by request
        self.parked: dict[str, list[SequenceState]] = {}
        self.unstarted: dict[str, int] = {}  # requests of which nothing has run yet: tokens of their prompts
        self.lagging = 0  # running sequences of background work
        self.waiting_tokens = 0  # of all prompts of which nothing has run yet
        self._begun: dict[int, SequenceState] = {}  # those in the line of whose request something has run, by id
        self._last_id = 0
        self.free_slots = list(range(slots - 1, -1, -1))
        self._cache = cache
        self._released: list[int] = []  # slots that the executor does not know to be free

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self.members) - len(self.running)

    def new_id(self) -> int:
        """An id that no sequence has had."""
        self._last_id += 1
        return self._last_id

    def first(self, begun: bool) -> SequenceState | None:
        """Whose turn it is.

        Args:
            begun: among sequences of requests of which something has run.
        """
        return min(self._begun.values(), key=_rank, default=None) if begun else self.line.first()

    def enter(self, request: GenerationRequest, streams: list[SequenceState], park: bool) -> None:
        """A request comes in. With `park`, its other streams wait until the first has computed the prompt."""
        tokens = len(request.prompt_token_ids)
        self.streams[request.id] = streams
        self.unstarted[request.id] = tokens
        self.waiting_tokens += tokens
        if park and len(streams) > 1:
            self.parked[request.id] = streams[1:]
        for sequence in streams:
            self.members[sequence.id] = sequence
            sequence.parked = park and sequence.index > 0
            if not sequence.parked:
                self._queue(sequence)

    def fork(self, request_id: str, forks: Iterable[SequenceState]) -> None:
        """A request that is under way gets more sequences."""
        for sequence in forks:
            self.streams[request_id].append(sequence)
            self.members[sequence.id] = sequence
            self._queue(sequence)

    def seat(self, sequence: SequenceState) -> None:
        """Give a waiting sequence a free slot."""
        self._dequeue(sequence)
        sequence.slot = self.free_slots.pop()
        self.running[sequence.id] = sequence
        self.lagging += sequence.request.lag > 0
        self._begin(sequence.request.id)

    def unseat(self, sequence: SequenceState, known: bool) -> None:
        """Take slot and blocks back; the sequence waits again, or is parked when it has nothing to compute.

        Args:
            known: the executor has heard that it has the slot.
        """
        idle = not sequence.pending
        self._vacate(sequence, known)
        sequence.computed = sequence.taken = 0
        if idle:
            sequence.parked = True
            self.parked.setdefault(sequence.request.id, []).append(sequence)
        else:
            self._queue(sequence)

    def leave(self, sequence: SequenceState, forget: bool = False) -> bool:
        """A sequence has ended, wherever it is. True when it was its request's last.

        Args:
            forget: what it wrote is not to be offered to others.
        """
        del self.members[sequence.id]
        request_id = sequence.request.id
        if sequence.slot >= 0:
            self._vacate(sequence, True, forget)
        elif sequence.parked:
            self.parked[request_id].remove(sequence)
        else:
            self._dequeue(sequence)
        streams = self.streams[request_id]
        streams.remove(sequence)
        if streams:
            self.unpark(request_id)
            return False
        del self.streams[request_id]
        self.parked.pop(request_id, None)
        self._begin(request_id)
        return True

    def unpark(self, request_id: str) -> None:
        """What the parked streams waited for is there, or will never be."""
        for sequence in self.parked.pop(request_id, ()):
            sequence.parked = False
            self._queue(sequence)

    def hold(self, sequence: SequenceState) -> None:
        """A waiting sequence waits for its blocks from now on, not for its turn."""
        if not sequence.parked:
            self._dequeue(sequence)
            sequence.parked = True
            self.parked.setdefault(sequence.request.id, []).append(sequence)

    def let_go(self, sequence: SequenceState) -> None:
        """A sequence that was held waits for its turn again."""
        if sequence.parked:
            held = self.parked[sequence.request.id]
            held.remove(sequence)
            if not held:
                del self.parked[sequence.request.id]
            sequence.parked = False
            self._queue(sequence)

    def take_released(self) -> tuple[int, ...]:
        """Slots whose release the next step must tell."""
        released = tuple(dict.fromkeys(self._released))
        self._released.clear()
        return released

    def release_again(self, slots: Iterable[int]) -> None:
        """A step failed: perhaps the executor never heard that these are free."""
        free = set(self.free_slots)  # who has taken one since came with a later step, which told of it, too
        self._released.extend(slot for slot in slots if slot in free)

    def _queue(self, sequence: SequenceState) -> None:
        self.line.push(sequence)
        if sequence.request.id not in self.unstarted:
            self._begun[sequence.id] = sequence

    def _dequeue(self, sequence: SequenceState) -> None:
        self.line.remove(sequence)
        self._begun.pop(sequence.id, None)

    def _begin(self, request_id: str) -> None:
        """Something of a request runs now, or never will."""
        tokens = self.unstarted.pop(request_id, None)
        if tokens is None:
            return
        self.waiting_tokens -= tokens
        for sequence in self.streams.get(request_id, ()):
            if sequence.slot < 0 and not sequence.parked:
                self._begun[sequence.id] = sequence

    def _vacate(self, sequence: SequenceState, known: bool, forget: bool = False) -> None:
        del self.running[sequence.id]
        self.lagging -= sequence.request.lag > 0
        self._cache.release(sequence.blocks, forget)
        self.free_slots.append(sequence.slot)
        if known:
            self._released.append(sequence.slot)
        sequence.slot = -1


def _rank(sequence: SequenceState) -> Rank:
    return sequence.rank
