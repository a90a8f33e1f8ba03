"""The simulator of benchmarks/simulate: a hundred requests whose answers can be worked out by hand."""

import re
from itertools import islice, pairwise
from random import Random
from statistics import mean, pstdev

import pytest

from benchmarks.simulate.contiguous import Arena, reservations, serve
from benchmarks.simulate.costs import StepCosts
from benchmarks.simulate.findings import Chart, Finding, Table
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.measures import Histogram, jain
from benchmarks.simulate.page import render
from benchmarks.simulate.workload import (
    CHAT_ANSWER,
    CHAT_PROMPT,
    END,
    Source,
    Turn,
    World,
    backlog,
    bursts,
    gamma,
    poisson,
    sessions,
)
from octavo.cache.options import CacheOptions
from octavo.scheduling.budget import SchedulerLimits

STEP = StepCosts(fixed=1.0, token=0.0, row=0.0, pair=0.0)


def texts(count: int, prompt: int, answer: int) -> list[Turn]:
    return [
        Turn(tuple(range(1000 * n, 1000 * n + prompt)), (7,) * (answer - 1) + (END,), tenant=str(n % 2))
        for n in range(1, count + 1)
    ]


def machine(rows: int, blocks: int = 1000, costs: StepCosts = STEP, **limits: object) -> Machine:
    return Machine(SchedulerLimits(rows, 4096, 4096, **limits), costs, CacheOptions(blocks, 16))  # type: ignore[arg-type]


def test_hundred_requests_take_the_steps_that_they_must():
    played = machine(10)
    tally = played.run(Source(backlog(texts(100, 32, 5)), 100))
    # Ten at a time, a step of one second for each of five tokens.
    assert played.now == 50.0
    assert (tally.steps, tally.rows, tally.drawn, tally.most_rows) == (50, 500, 500, 10)
    assert sorted(tally.first) == [float(1 + 5 * (n // 10)) for n in range(100)]
    assert all(whole - first == 4.0 for first, whole in zip(tally.first, tally.whole, strict=True))
    assert tally.gaps.total == 400
    assert tally.gaps.percentile(1.0) == pytest.approx(1.0, rel=0.005)
    assert played.cache.stats().used == 0


def test_costs_count_tokens_rows_and_positions():
    costs = StepCosts(fixed=0.0, token=1.0, row=100.0, pair=10_000.0)
    played = machine(1, costs=costs)
    played.run(Source(backlog(texts(1, 3, 2)), 1))
    prefill, decode = 3 + 100 + 10_000 * (1 + 2 + 3), 1 + 100 + 10_000 * 4
    assert played.now == prefill + decode


def test_who_is_preempted_waits_for_the_next_token():
    # Two of 32 + 20 tokens need eight blocks; there are six.
    played = machine(2, blocks=6)
    tally = played.run(Source(backlog(texts(2, 32, 20)), 2))
    assert played.scheduler.stats().counters.preemptions > 0
    assert tally.gaps.longest > 1.0
    assert tally.gaps.total == 2 * 19
    assert list(tally.answers) == [20, 20]


def test_sessions_go_on_after_their_answers():
    def talk():
        yield Turn(tuple(range(100)), (5, END))
        yield Turn((*range(100), 5, END, 9), (6, END), after=10.0)

    played = machine(1)
    tally = played.run(Source([(3.0, talk())], 2))
    assert played.now == 3.0 + 2.0 + 10.0 + 2.0
    assert list(tally.cached) == [0, 96]


def test_accounts_are_kept_by_tenant():
    played = Machine(SchedulerLimits(4, 4096, 512), STEP, CacheOptions(100, 16), accounts=True)
    tally = played.run(Source(backlog(texts(4, 8, 3)), 4))
    assert tally.served == {"0": 2 * (8 + 2 * 2), "1": 2 * (8 + 2 * 2)}


def test_same_seed_same_figures():
    def play() -> tuple[float, list[float]]:
        world = World("5")
        played = machine(8, costs=StepCosts(0.01, 0.001, 0.001, 1e-7))
        tally = played.run(Source(sessions(poisson(world.rng, 1.0), world.single), 100))
        return played.now, list(tally.first)

    first, second = play(), play()
    assert first == second
    assert len(first[1]) == 100


def test_what_sessions_say_does_not_depend_on_who_is_served_first():
    def said(order: range) -> list[list[int]]:
        world = World("5")
        begun = [world.chat() for _ in order]
        turns = {number: [len(turn.prompt) for turn in begun[number]] for number in order}
        return [turns[number] for number in range(len(order))]

    assert said(range(5)) == said(range(4, -1, -1))


@pytest.mark.parametrize("lengths", [CHAT_PROMPT, CHAT_ANSWER])
def test_lengths_have_the_mean_they_are_meant_to_have(lengths):
    draw, rng = lengths.drawer(), Random(1)
    drawn = [draw(rng) for _ in range(50_000)]
    assert mean(drawn) == pytest.approx(lengths.mean, rel=0.02)
    assert max(drawn) == lengths.most


@pytest.mark.parametrize(
    ("times", "least", "most"),
    [
        (poisson(Random(1), 0.1), 0.95, 1.05),
        (gamma(Random(1), 0.1, 3.0), 2.8, 3.2),
        (bursts(Random(1), 0.1), 1.3, 2.0),
    ],
)
def test_arrivals_have_their_rate_and_their_clumps(times, least, most):
    at = list(islice(times, 50_000))
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert mean(gaps) == pytest.approx(10.0, rel=0.1)
    assert least < pstdev(gaps) / mean(gaps) < most


def test_contiguous_reservation_is_limited_by_what_it_reserves():
    load = [(32, 5)] * 100
    seen = {name: serve(load, 1000, reserve, STEP, 4096, 64) for name, reserve in reservations(250).items()}
    assert seen["whole"].concurrency == 4.0
    assert seen["power"].concurrency == 25.0
    assert seen["exact"].concurrency == pytest.approx(27.0, rel=0.05)
    assert seen["exact"].filled < seen["exact"].reserved


def test_holes_become_one_again():
    arena = Arena(100)
    first, second, third = (arena.take(30) for _ in range(3))
    assert (first, second, third, arena.take(30)) == (0, 30, 60, None)
    arena.give_back(0, 30)
    arena.give_back(60, 30)
    assert arena.take(40) == 60
    arena.give_back(60, 40)
    arena.give_back(30, 30)
    assert arena.take(100) == 0


def test_histogram_and_jain():
    histogram = Histogram()
    histogram.add(1.0, 90)
    histogram.add(100.0, 10)
    assert histogram.percentile(0.5) == pytest.approx(1.0, rel=0.005)
    assert histogram.percentile(0.95) == pytest.approx(100.0, rel=0.005)
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_the_page_needs_nothing_else_and_keeps_pictures_apart():
    svg = '<svg><defs><path id="a"/></defs><use xlink:href="#a"/><g clip-path="url(#a)"/></svg>'
    charts = [Chart(name, "", "", "", []) for name in ("one", "two")]
    table = Table("t", ("", "<share>"), [["a & b", "1 %"]])
    page = render([Finding("f", "Title", "words", [table], charts)], {"one": svg, "two": svg}, "lead")
    assert re.findall(r'id="([^"]*)"', page) == ["f", "one-a", "two-a"]
    assert page.count('"#one-a"') == page.count("url(#two-a)") == 1
    assert "&lt;share&gt;" in page
    assert "a &amp; b" in page
    assert not re.search(r"<script|<link|src=|https?://", page)
