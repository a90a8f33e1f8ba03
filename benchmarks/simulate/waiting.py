"""Who waits how long: scheduling policies under bursts, and a target for the time between tokens."""

from collections.abc import Callable
from typing import get_args

from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.machine import Tally
from benchmarks.simulate.measures import mean, percentile
from benchmarks.simulate.setup import Setup, session_rate
from benchmarks.simulate.workload import Session, Source, World, bursts, gamma, sessions
from octavo.scheduling.budget import PolicyName

LOAD = 0.85  # of what the server can serve, on average over calm and burst
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
KINDS = ("chat", "application", "agent", "document")
_PACE_LOAD = 0.6
_POINTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_POLICY_WORDS = """
Conversations with thinking people, questions to forty applications with long system prompts, agents that call tools,
and a batch job's long documents (of priority 1, less urgent by a level; the others 0), at {load:.0%} of what the
server can serve: {rate:.3f} sessions a second in a Markov-modulated Poisson process, a tenth of the time in bursts of
a minute at eight times the calm rate. {rows} sequences, {tokens} tokens a step, {slots:,} token slots of cache, the
step times of the default costs. Every policy gets the same sessions. TTFT runs from arrival to the first token,
waiting included. "Per token" is what a request took in all, divided by the length of its answer. Clients state the
next power of two of the answer's length as its limit: that is what sjf goes by.
"""
_PACE_WORDS = """
The same mix at 60 % of capacity, Gamma arrivals whose gaps vary three times as much as Poisson's. While anything
decodes, a step gives prompts as many tokens as a step-time model, learnt while serving, believes to fit into the
target. The first tokens pay: a prompt is computed in smaller pieces.
"""


def mixed(world: World) -> Callable[[], Session]:
    """All kinds."""
    return world.mixed


def policies(setup: Setup) -> Finding:
    """Every scheduling policy on the same sessions."""
    rate = LOAD * session_rate(setup, mixed)
    requests = max(300, setup.requests // 2)
    overall: list[list[str]] = []
    by_kind: list[list[str]] = []
    series: list[Series] = []
    figures: dict[str, float] = {"sessions a second": rate}
    for policy in POLICY_NAMES:
        machine, world = setup.machine(policy), setup.world()
        tally = machine.run(Source(sessions(bursts(world.rng, rate), world.mixed), requests))
        counters = machine.scheduler.stats().counters
        pace = [whole / answer for whole, answer in zip(tally.whole, tally.answers, strict=True)]
        overall.append(
            [
                policy,
                *(_seconds(percentile(tally.first, share)) for share in (0.5, 0.9, 0.99)),
                *(f"{1e3 * tally.gaps.percentile(share):.0f}" for share in (0.5, 0.99)),
                _seconds(mean(pace)),
                f"{sum(tally.cached) / sum(tally.prompts):.1%}",
                f"{counters.preemptions:,}",
                f"{tally.busy / machine.now:.0%}",
            ]
        )
        by_kind.append([policy, *(_of_kind(tally, kind) for kind in KINDS)])
        series.append(
            Series(policy, [percentile(tally.first, share) for share in _POINTS], [1 - share for share in _POINTS])
        )
        figures |= {
            f"{policy}: ttft p99": percentile(tally.first, 0.99),
            f"{policy}: preemptions": counters.preemptions,
        }
    heads = (
        "policy",
        "TTFT p50 s",
        "p90",
        "p99",
        "ITL p50 ms",
        "p99",
        "per token s",
        "prompt tokens found",
        "preemptions",
        "busy",
    )
    tables = [
        Table("all requests", heads, overall),
        Table("TTFT by kind: p50 / p99, seconds", ("policy", *KINDS), by_kind),
    ]
    chart = Chart(
        "ttft", "Time to the first token by policy", "seconds", "share of requests that waited longer", series, log="xy"
    )
    words = _POLICY_WORDS.format(load=LOAD, rate=rate, rows=setup.rows, tokens=setup.tokens, slots=setup.blocks * 16)
    return Finding("policies", "Policies under bursts", words, tables, [chart], figures)


def pace(setup: Setup) -> Finding:
    """With and without a target for inter-token latency."""
    rate = _PACE_LOAD * session_rate(setup, mixed)
    requests = max(300, setup.requests // 4)
    rows: list[list[str]] = []
    series: list[Series] = []
    figures: dict[str, float] = {}
    # From just above what a step of all rows takes without any prompt.
    least = setup.costs.fixed + setup.rows * (setup.costs.token + setup.costs.row)
    targets = (None, *(round(least * factor, 2) for factor in (1.3, 1.6, 2.2)))
    for target in reversed(targets):
        machine, world = setup.machine(target=target), setup.world()
        tally = machine.run(Source(sessions(gamma(world.rng, rate, 3.0), world.mixed), requests))
        gaps, name = tally.gaps, "none" if target is None else f"{1e3 * target:.0f} ms"
        values, shares = gaps.curve()
        above = 0.0 if target is None else 1 - _share_within(values, shares, 1.05 * target)
        rows.append(
            [
                name,
                *(f"{1e3 * gaps.percentile(share):.0f}" for share in (0.5, 0.9, 0.99, 0.999)),
                "-" if target is None else f"{above:.2%}",
                *(_seconds(percentile(tally.first, share)) for share in (0.5, 0.99)),
            ]
        )
        kept = [(1e3 * value, share) for value, share in zip(values, shares, strict=True) if share > 1e-5]
        series.append(Series(name, [value for value, _ in kept], [share for _, share in kept]))
        figures[f"{name}: itl p99"] = gaps.percentile(0.99)
    heads = ("target", "ITL p50 ms", "p90", "p99", "p99.9", "5 % above target", "TTFT p50 s", "p99")
    chart = Chart(
        "pace", "Time between tokens under a target", "milliseconds", "share of gaps that are longer", series, log="xy"
    )
    table = Table("", heads, rows)
    return Finding("pace", "A target for the time between tokens", _PACE_WORDS, [table], [chart], figures)


def _share_within(values: list[float], shares: list[float], limit: float) -> float:
    return 1 - next((share for value, share in reversed(list(zip(values, shares, strict=True))) if value <= limit), 1.0)


def _of_kind(tally: Tally, kind: str) -> str:
    first = [seconds for seconds, name in zip(tally.first, tally.kinds, strict=True) if name == kind]
    return f"{_seconds(percentile(first, 0.5))} / {_seconds(percentile(first, 0.99))}"


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
