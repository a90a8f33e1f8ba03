"""Which running sequence has to give its blocks back when there are too few."""

from collections.abc import Iterable

from octavo.scheduling.sequence import SequenceState


def choose_victim(running: Iterable[SequenceState]) -> SequenceState:
    """The one of the worst rank: of the lowest priority the youngest, which has the least to lose."""
    return max(running, key=lambda sequence: sequence.rank)
