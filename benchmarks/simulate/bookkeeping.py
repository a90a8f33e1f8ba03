"""What the bookkeeping itself costs: seconds a row, a step and a waiting request, and bytes."""

from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.setup import Setup
from benchmarks.step import measure, measure_crowd, measure_memory
from octavo.scheduling.policy import POLICIES

ROWS = (64, 256, 1024, 4096)
BUDGET = 2.0  # us a row
_GROUPS = (1, 6)
_CROWDS = (0, 10_000, 100_000)
_WORDS = """
Plan and commit of steady decode, in real time on this machine, block borders and publishing included; medians. Six
groups: one of full attention and five of sliding windows. Then what it costs that many requests wait: a step of 64
running ones, `add` and `cancel`, per request, under every policy; and the bytes which the scheduler and the cache
keep for a request beside the request itself. `python benchmarks/step.py` prints the same.
"""


def study(setup: Setup) -> Finding:
    """All of it; the loads are fixed."""
    series: list[Series] = []
    costs: list[list[str]] = []
    figures: dict[str, float] = {}
    for groups in _GROUPS:
        line: list[float] = []
        for rows in ROWS:
            plan, commit = (1e6 * part for part in measure(rows, groups, 40_960 // rows + 24))
            line.append((plan + commit) / rows)
            costs.append(
                [
                    f"{rows:,}",
                    str(groups),
                    f"{plan / rows:.2f}",
                    f"{commit / rows:.2f}",
                    f"{line[-1]:.2f}",
                    f"{plan + commit:,.0f}",
                ]
            )
            figures[f"us a row, {rows} rows, {groups} groups"] = line[-1]
        series.append(Series(f"{groups} cache group{'s' * (groups > 1)}", list(ROWS), line))
    crowds = [
        [policy, f"{count:,}", *(f"{1e6 * seconds:.1f}" for seconds in (crowd.step, crowd.add, crowd.cancel))]
        for policy in POLICIES
        for count in _CROWDS
        for crowd in (measure_crowd(policy, count),)
    ]
    memory = [[f"{prompt:,}", *(f"{count:,.0f}" for count in measure_memory(256, prompt))] for prompt in (64, 1024)]
    tables = [
        Table("Plan and commit, us a row", ("rows", "groups", "plan", "commit", "both", "us a step"), costs),
        Table("A crowd that waits, us", ("policy", "waiting", "step of 64 rows", "add", "cancel"), crowds),
        Table("Bytes kept for a request", ("prompt tokens", "waiting", "running"), memory),
    ]
    chart = Chart("bookkeeping", "Plan and commit", "rows", "us a row", series, log="x", limits=((BUDGET, "budget"),))
    return Finding("bookkeeping", "The bookkeeping's own cost", _WORDS, tables, [chart], figures)
