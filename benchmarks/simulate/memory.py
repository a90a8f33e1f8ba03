"""How much of the cache's memory is wasted, and how many more sequences fit than with contiguous reservation."""

from collections.abc import Sequence

from benchmarks.simulate.contiguous import reservations, serve
from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.machine import Machine, Tally
from benchmarks.simulate.setup import BLOCK, Setup
from benchmarks.simulate.workload import Source, Turn, backlog
from octavo.cache.options import CacheOptions
from octavo.scheduling.budget import SchedulerLimits

SLOTS = 15_728  # what Kwon et al. had for OPT-13B on a 40 GB A100, to compare with their figure 13
LONGEST = 2048
_TOKENS = 2048
_ROWS = 256
_NAMES = {
    "whole": "contiguous, longest sequence",
    "power": "contiguous, next power of two",
    "exact": "contiguous, exact length",
    "paged": "paged",
}
_WORDS = f"""
Everything waits from the beginning, so that memory is what limits; {SLOTS:,} token slots, sequences of at most
{LONGEST:,} tokens: the proportions of a 13B model on a 40 GB GPU. The paged rows are the real scheduler and cache.
The contiguous ones admit first come, first served into pieces of memory found first fit; "exact" knows the length of
every answer beforehand, which nobody does. "Unfilled" is the share of the slots taken by running sequences that hold
no token, over time. Kwon et al. (2023, figure 13a) saw 7.0, 9.8, 13.6 and 30.4 sequences for the four on ShareGPT;
there the two lower pages of a buddy allocator cost the contiguous ones some more than first fit does here.
"""


def study(setup: Setup) -> Finding:
    """Both loads."""
    world = setup.world()
    count = max(400, setup.requests // 10)
    loads = {
        "chats": [next(world.single()) for _ in range(count)],
        "applications with a common prefix": [next(world.application()) for _ in range(count)],
    }
    tables: list[Table] = []
    series: list[Series] = []
    figures: dict[str, float] = {}
    for name, load in loads.items():
        rows, concurrency = _compare(setup, [_fit(turn) for turn in load])
        tables.append(
            Table(name, ("", "sequences at once", "times exact", "times longest", "unfilled", "answer tokens/s"), rows)
        )
        series.append(Series(name, [_NAMES[kind] for kind in concurrency], list(concurrency.values())))
        figures |= {f"{name}: {kind}": value for kind, value in concurrency.items()}
    chart = Chart(
        "concurrency", "Sequences that run at once in the same memory", "", "sequences", series, "bars", values=".1f"
    )
    return Finding("memory", "Memory: what paging is for", _WORDS, tables, [chart], figures)


def _fit(turn: Turn) -> Turn:
    most = LONGEST - len(turn.answer) - 1
    return Turn(turn.prompt[:most], turn.answer, turn.kind)


def _compare(setup: Setup, load: Sequence[Turn]) -> tuple[list[list[str]], dict[str, float]]:
    lengths = [(len(turn.prompt), len(turn.answer)) for turn in load]
    concurrency: dict[str, float] = {}
    shown: dict[str, tuple[float, float]] = {}
    for name, reserve in reservations(LONGEST).items():
        seen = serve(lengths, SLOTS, reserve, setup.costs, _TOKENS, _ROWS)
        concurrency[name] = seen.concurrency
        shown[name] = 1 - seen.filled / seen.reserved, seen.tokens / seen.seconds
    tally = paged(setup, load)
    concurrency["paged"] = tally.row_seconds / tally.busy
    shown["paged"] = tally.unfilled / tally.allocated, tally.drawn / tally.busy
    rows = [
        [
            _NAMES[name],
            f"{value:.1f}",
            f"{value / concurrency['exact']:.2f}",
            f"{value / concurrency['whole']:.2f}",
            f"{shown[name][0]:.1%}",
            f"{shown[name][1]:,.0f}",
        ]
        for name, value in concurrency.items()
    ]
    return rows, concurrency


def paged(setup: Setup, load: Sequence[Turn]) -> Tally:
    """The real scheduler and cache, until the last one has started."""
    limits = SchedulerLimits(_ROWS, _TOKENS, LONGEST)
    machine = Machine(limits, setup.costs, CacheOptions(SLOTS // BLOCK, BLOCK))
    source = Source(backlog(load), len(load))
    return machine.run(source, stop=lambda: machine.loop.stats().waiting == 0)
