"""What tenants get beside others: a light one beside a flood, and four that always have something waiting."""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.machine import Tally
from benchmarks.simulate.measures import jain, mean, percentile
from benchmarks.simulate.setup import Setup
from benchmarks.simulate.workload import Lengths, Session, Source, World, poisson
from octavo.scheduling.budget import PolicyName

_POLICIES: tuple[PolicyName, ...] = ("fcfs", "fair")
_ROWS = 16
_FLOOD = 4.0  # times what the server can serve
_LIGHT = 0.04
_HUNGRY = 1.5  # how much each of four tenants asks for, as a share of what the server can serve
# Mean prompt and answer of each.
_KINDS = {"short": (64, 32), "long": (1024, 64), "chatty": (32, 256), "bursty": (256, 128)}
_POINTS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
_WORDS = """
{rows} sequences, {tokens} tokens a step, nothing shared between prompts. A light tenant asks for {light:.0%} of what
the server can serve, another for {flood:.0f} times as much as it can. "Slowdown" is the mean time of the light
tenant's whole answers, against its own without the flood. Then four tenants that always have something waiting, of
different prompts and answers: their shares of the service (a prompt's token counts 1, a generated one 2) and Jain's
index of shares over weights. "Units/s" tells that fairness costs no throughput to speak of.
"""


def study(setup: Setup) -> Finding:
    """Both loads."""
    light = _LIGHT / setup.costs.request_seconds(256, 128, _ROWS)
    seconds = min(500, max(40, setup.requests // 50)) / light
    table, curves, figures = _flood(setup, seconds)
    shares, indices = _shares(setup, seconds / 2)
    words = _WORDS.format(rows=_ROWS, tokens=setup.tokens, light=_LIGHT, flood=_FLOOD)
    chart = Chart(
        "tenants",
        "A light tenant's first tokens beside a flood",
        "seconds",
        "share that waited longer",
        curves,
        log="xy",
    )
    return Finding("tenants", "Tenants", words, [table, shares], [chart], figures | indices)


def _stream(
    setup: Setup, tenant: str, share: float, prompt: int, answer: int, seed: int
) -> Iterator[tuple[float, Session]]:
    """Requests of a tenant who asks for `share` of what the server can serve."""
    lengths = Lengths(prompt, 0.4, 8 * prompt), Lengths(answer, 0.6, 8 * answer)
    world = World(f"{setup.seed} {seed}", *lengths, first=(seed + 1) << 27)
    rate = share / setup.costs.request_seconds(prompt, answer, _ROWS)

    def one() -> Session:
        yield replace(next(world.single()), tenant=tenant, kind=tenant)

    return ((at, one()) for at in poisson(world.rng, rate))


def _play(
    setup: Setup, policy: PolicyName, streams: list[Iterator[tuple[float, Session]]], seconds: float, **options: Any
) -> Tally:
    machine = setup.machine(policy, rows=_ROWS, accounts=True, **options)
    starts = heapq.merge(*streams, key=lambda start: start[0])
    return machine.run(Source(takewhile(lambda start: start[0] < seconds, starts), 1 << 60), until=seconds)


def _flood(setup: Setup, seconds: float) -> tuple[Table, list[Series], dict[str, float]]:
    rows: list[list[str]] = []
    series: list[Series] = []
    figures: dict[str, float] = {}
    alone = 0.0
    for name in ("alone", *_POLICIES):
        policy: PolicyName = "fair" if name == "fair" else "fcfs"
        streams = [_stream(setup, "light", _LIGHT, 256, 128, 1)]
        if name != "alone":
            streams.append(_stream(setup, "flood", _FLOOD, 256, 128, 2))
        tally = _play(setup, policy, streams, seconds)
        mine = [index for index, tenant in enumerate(tally.tenants) if tenant == "light"]
        first, whole = [tally.first[index] for index in mine], [tally.whole[index] for index in mine]
        alone = alone or mean(whole)
        figures[f"slowdown {name}"] = mean(whole) / alone
        rows.append(
            [
                name,
                str(len(mine)),
                *(f"{percentile(first, share):.2f}" for share in (0.5, 0.99)),
                f"{mean(whole):.2f}",
                f"{mean(whole) / alone:.1f}",
                f"{sum(tally.served.values()) / seconds:,.0f}",
            ]
        )
        series.append(Series(name, [percentile(first, share) for share in _POINTS], [1 - share for share in _POINTS]))
    heads = ("", "ended", "TTFT p50 s", "p99", "whole answer s", "slowdown", "units/s in all")
    return Table("A light tenant beside a flood", heads, rows), series, figures


def _shares(setup: Setup, seconds: float) -> tuple[Table, dict[str, float]]:
    rows: list[list[str]] = []
    figures: dict[str, float] = {}
    weights = dict(zip(_KINDS, (4.0, 2.0, 1.0, 1.0), strict=True))
    variants: list[tuple[str, PolicyName, dict[str, float]]] = [
        ("fcfs", "fcfs", {}),
        ("fair", "fair", {}),
        ("fair, weights 4:2:1:1", "fair", weights),
    ]
    for name, policy, shared in variants:
        streams = [
            _stream(setup, tenant, _HUNGRY, prompt, answer, 3 + number)
            for number, (tenant, (prompt, answer)) in enumerate(_KINDS.items())
        ]
        served = _play(setup, policy, streams, seconds, weights=shared).served
        total = sum(served.values())
        index = jain(served[tenant] / shared.get(tenant, 1.0) for tenant in _KINDS)
        figures[f"Jain {name}"] = index
        shown = [f"{served[tenant] / total:.0%}" for tenant in _KINDS]
        rows.append([name, *shown, f"{index:.3f}", f"{total / seconds:,.0f}"])
    return Table("Four hungry tenants", ("", *_KINDS, "Jain", "units/s in all"), rows), figures
