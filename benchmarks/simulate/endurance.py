"""Whether anything grows over a very long load: memory, or the time that bookkeeping takes."""

import gc
import resource
import sys
import time
from pathlib import Path

from benchmarks.simulate.findings import Chart, Finding, Series, Table
from benchmarks.simulate.setup import Setup, session_rate
from benchmarks.simulate.waiting import mixed
from benchmarks.simulate.workload import Source, bursts, sessions

_LOOKS = 40
_LOAD = 0.9
_WORDS = """
{requests:,} requests of the mixed load at {load:.0%} of capacity under `fair`, {tenants} tenants, {rows} sequences,
as one run. Resident memory is the whole process's: scheduler, cache, the texts under way; the simulator's own records
({record} bytes a request) are taken off. "Grown" compares the last fifth of the run with the second.
"""


def study(setup: Setup) -> Finding:
    """One run of `setup.requests` requests."""
    machine, world = setup.machine("fair"), setup.world()
    source = Source(sessions(bursts(world.rng, _LOAD * session_rate(setup, mixed)), world.mixed), setup.requests)
    looks: list[tuple[int, float, float, int]] = []  # requests, resident MB, us a row, requests under way
    last_host, last_rows = 0.0, 0

    def look() -> bool:
        nonlocal last_host, last_rows
        if source.handed_out * _LOOKS >= (len(looks) + 1) * setup.requests:
            tally = machine.tally
            per_row = 1e6 * (tally.host - last_host) / max(1, tally.rows - last_rows)
            last_host, last_rows = tally.host, tally.rows
            looks.append(
                (source.handed_out, (resident() - tally.RECORD * len(tally.first)) / 1e6, per_row, len(machine.jobs))
            )
        return False

    gc.collect()
    began = time.perf_counter()
    tally = machine.run(source, stop=look)
    took = time.perf_counter() - began
    pool = machine.cache.stats()
    fifth = max(1, len(looks) // 5)
    memory, costs, jobs = ([look[column] for look in looks] for column in (1, 2, 3))
    grown = [sum(part[-fifth:]) / sum(part[fifth : 2 * fifth]) - 1 for part in (memory, costs, jobs)]
    rows = [
        ["requests ended", f"{len(tally.first):,}"],
        ["rows (a token of an answer, or a chunk of a prompt)", f"{tally.rows:,}"],
        ["virtual time", f"{machine.now / 86400:.1f} days"],
        ["real time", f"{took / 60:.1f} minutes"],
        [
            "plan and commit",
            f"{1e6 * tally.host / tally.rows:.2f} us a row, {1e6 * tally.host / tally.steps:.0f} us a step",
        ],
        ["resident memory, grown", f"{grown[0]:+.1%}"],
        ["plan and commit, grown", f"{grown[1]:+.1%}"],
        ["requests under way, waiting ones included, grown", f"{grown[2]:+.1%} (to {jobs[-1]:,})"],
        ["preemptions", f"{machine.scheduler.stats().counters.preemptions:,}"],
        ["slots of running sequences that hold no token", f"{tally.unfilled / tally.allocated:.2%}"],
        ["blocks in use at the end", f"{pool.used} of {pool.num_blocks:,}"],
    ]
    at = [look[0] for look in looks]
    charts = [
        Chart("memory-over-time", "Resident memory", "requests", "MB", [Series("", at, memory)]),
        Chart("cost-over-time", "Plan and commit", "requests", "us a row", [Series("", at, costs)]),
    ]
    words = _WORDS.format(
        requests=setup.requests, load=_LOAD, tenants=world.tenants, rows=setup.rows, record=tally.RECORD
    )
    figures = {"memory grown": grown[0], "us a row": 1e6 * tally.host / tally.rows, "blocks left": pool.used}
    return Finding("endurance", "A long run", words, [Table("", ("", ""), rows)], charts, figures)


def resident() -> int:
    """Bytes of this process in memory; where the system does not tell, the most there ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
