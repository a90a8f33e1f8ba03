"""The real scheduler and cache at the size of a service, over a device that only takes (virtual) time.

    python -m benchmarks.simulate                            every experiment but the long ones: about five minutes
    python -m benchmarks.simulate memory policies            only these
    python -m benchmarks.simulate endurance --requests 1000000 --costs accelerator \\
        --rows 256 --tokens 4096 --blocks 12000
    python -m benchmarks.simulate soak --requests 20000      everything at once, failures included; checks itself
    python -m benchmarks.simulate --out report               index.html, a PNG and an SVG of each picture, results.json

Nothing is computed but who computes what, and when: requests are drawn, the engine's own loop plans and commits, and
a step takes what a model of the device says. Its figures were measured with `python -m
benchmarks.simulate.calibrate`; --costs takes others. Everything but the bookkeeping's own cost is exactly repeatable:
same seed, same figures. Pictures need matplotlib (`pip install -e ".[benchmarks]"`).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.simulate import bookkeeping, endurance, forgetting, memory, soak, tenants, waiting
from benchmarks.simulate.costs import NAMED, read_costs
from benchmarks.simulate.findings import Finding, as_json
from benchmarks.simulate.setup import Setup

EXPERIMENTS: dict[str, tuple[Callable[[Setup], Finding], str]] = {
    "memory": (memory.study, "waste, and concurrency against contiguous reservation"),
    "policies": (waiting.policies, "TTFT and ITL under every scheduling policy, with bursts"),
    "pace": (waiting.pace, "with and without a target for inter-token latency"),
    "tenants": (tenants.study, "a light tenant beside a flood; shares and Jain's index"),
    "eviction": (forgetting.study, "hit rates of every eviction policy"),
    "bookkeeping": (bookkeeping.study, "real time of plan and commit, up to 4,096 rows and 100,000 waiting; bytes"),
    "endurance": (endurance.study, "one long run: does anything grow?"),
    "soak": (soak.study, "all features at once with failures; ends with every block free"),
}
LONG = ("endurance", "soak")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run experiments; print tables, write a report."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.out is not None and find_spec("matplotlib") is None:  # known now, not after five minutes
        parser.error('--out draws with matplotlib, which is not installed: pip install -e ".[benchmarks]"')
    costs = read_costs(options.costs)
    setup = Setup(options.requests, options.seed, costs, options.rows, options.tokens, options.blocks)
    names = options.experiments or [name for name in EXPERIMENTS if name not in LONG]
    findings: list[Finding] = []
    for name in names:
        began = time.perf_counter()
        findings.append(EXPERIMENTS[name][0](setup))
        _show(findings[-1], options.markdown)
        print(f"({name}: {time.perf_counter() - began:.0f} s)\n", file=sys.stderr, flush=True)
    if options.out is not None:
        write_report(findings, options.out, setup)


def write_report(findings: Sequence[Finding], folder: Path, setup: Setup) -> None:
    """The page, the pictures and the figures."""
    from benchmarks.simulate.charts import draw
    from benchmarks.simulate.page import render

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {chart.name: draw(chart, folder) for finding in findings for chart in finding.charts}
    costs = setup.costs
    times = f"{1e3 * costs.fixed:.2f} ms a step, {1e6 * costs.token:.0f} us a token, {1e6 * costs.row:.0f} us a row"
    lead = (
        f"The real scheduler and KV cache over a device that only takes virtual time: {times} and "
        f"{1e9 * costs.pair:.0f} ns for each position that a token reads. Seed {setup.seed}."
    )
    (folder / "index.html").write_text(render(findings, pictures, lead))
    (folder / "results.json").write_text(as_json(findings))
    print(f"report: {folder / 'index.html'}", file=sys.stderr)


def _show(finding: Finding, markdown: bool) -> None:
    print(f"{'## ' if markdown else ''}{finding.title}\n")
    for table in finding.tables:
        if table.title:
            print(f"{table.title}:\n")
        print(table.markdown() if markdown else table.plain(), flush=True)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:12} {words}" for name, (_, words) in EXPERIMENTS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks.simulate",
        description=f"{__doc__}\nexperiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiments", nargs="*", choices=[*EXPERIMENTS, []], metavar="EXPERIMENT", help="see above")
    parser.add_argument(
        "--requests", type=int, default=10_000, help="size of a load (default 10,000); comparisons take a part"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=64, help="most sequences that run (max_num_seqs)")
    parser.add_argument("--tokens", type=int, default=512, help="most tokens of a step (max_num_batched_tokens)")
    parser.add_argument("--blocks", type=int, default=3000, help="cache blocks of 16 tokens")
    parser.add_argument(
        "--costs",
        default="smollm2",
        metavar="|".join(NAMED) + "|FILE",
        help="what steps take: SmolLM2-135M on two cores (measured), an accelerator (assumed), or what calibrate wrote",
    )
    parser.add_argument("--out", type=Path, help="a folder for the report")
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    return parser


if __name__ == "__main__":
    main()
