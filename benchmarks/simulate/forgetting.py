"""What each eviction policy finds again when the whole scheduler runs over the cache."""

import random
from collections.abc import Iterator, Sequence

from benchmarks.cache_traces import TRACES, Arrival, Writer
from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.machine import Machine, Tally
from benchmarks.simulate.measures import percentile
from benchmarks.simulate.setup import MAX_MODEL_LEN, Setup
from benchmarks.simulate.workload import END, Session, Source, Turn
from octavo.cache.eviction import POLICIES, EvictionName
from octavo.cache.options import CacheOptions
from octavo.scheduling.budget import SchedulerLimits

_BLOCKS = 2500
_ROWS = 32
_TRACES = ("multi-turn chat", "shared system prompts", "mixed")
_LOAD = 0.5
_WORDS = f"""
Traces of `benchmarks/cache_traces.py`, which compares more of them and more pools without a scheduler, played at
{_LOAD:.0%} of what the server can compute; {_BLOCKS * 16:,} token slots, {_ROWS} sequences. What a policy finds again
is not computed again, so a better one also has more time for what is new: the first token comes sooner.
"""


def study(setup: Setup) -> Finding:
    """Every eviction policy on every trace."""
    rows: list[list[str]] = []
    rates: dict[str, list[float]] = {name: [] for name in POLICIES}
    figures: dict[str, float] = {}
    for title in _TRACES:
        make = TRACES[title]
        trace = sorted(make(Writer(random.Random(setup.seed))), key=lambda arrival: arrival.at)
        trace = [arrival for arrival in trace if len(arrival.prompt) + len(arrival.answer) < MAX_MODEL_LEN]
        cells: list[str] = []
        firsts: list[str] = []
        for name in POLICIES:
            tally = _play(setup, trace, name)
            rates[name].append(sum(tally.cached) / sum(tally.prompts))
            figures[f"{title}: {name}"] = rates[name][-1]
            cells.append(f"{rates[name][-1]:.1%}")
            firsts.append(f"{percentile(tally.first, 0.5):.2f} / {percentile(tally.first, 0.95):.2f}")
        rows.append([title, *cells, *firsts])
    heads = ("trace", *(f"found, {name}" for name in POLICIES), *(f"TTFT p50 / p95 s, {name}" for name in POLICIES))
    series = [Series(name, list(_TRACES), values) for name, values in rates.items()]
    chart = Chart("eviction", "Share of prompt tokens found in the cache", "", "share", series, "bars", values=".0%")
    return Finding("eviction", "What is forgotten", _WORDS, [Table("", heads, rows)], [chart], figures)


def _play(setup: Setup, trace: Sequence[Arrival], name: EvictionName) -> Tally:
    work = sum(setup.costs.request_seconds(len(one.prompt), len(one.answer), _ROWS) for one in trace)
    stretch = work / _LOAD / trace[-1].at
    limits = SchedulerLimits(_ROWS, setup.tokens, MAX_MODEL_LEN)
    machine = Machine(limits, setup.costs, CacheOptions(_BLOCKS, 16, eviction=name))
    return machine.run(Source(_sessions(trace, stretch), len(trace)))


def _sessions(trace: Sequence[Arrival], stretch: float) -> Iterator[tuple[float, Session]]:
    """Tokens are moved up, so that none but the last one of an answer ends it."""
    for arrival in trace:
        prompt, answer = (tuple(token + 1 + END for token in text) for text in (arrival.prompt, arrival.answer))
        yield arrival.at * stretch, iter((Turn(prompt, (*answer[:-1], END)),))
