"""How near every kernel comes to what bounds it: bytes and operations beside the machine's own ceilings, same run.

    python -m benchmarks.ops                                      every kernel, one thread and all: about two minutes
    python -m benchmarks.ops linear --formats bf16 q8_0 q4_k      products alone
    python -m benchmarks.ops linear --formats bf16 --bf16 pairs    by VDPBF16PS where that is not the faster way
    python -m benchmarks.ops attention --types float16 int8 --contexts 2048 8192 --shapes llama3-8b
    python -m benchmarks.ops rest --json ops.json                 what is between them; --json: for other programs
    python -m benchmarks.ops draws --logits peaked --draw-rows 64  every sampler
    python -m benchmarks.ops curves --out docs/pictures           steps of whole models as batch, context and model grow
    python -m benchmarks.ops walk --models 0.5B --formats bf16     one token: what each product reads, out of memory

A kernel is bound by what it has to read (the ceiling is what the team reads of a working set of that size: memory, or
a cache) or by what it has to compute (multiply-adds in registers, of floats or of numbers of 8 bits). The last column
is the share of the nearer ceiling: 100 % would be all the machine can do. A step of a model finds most small inputs in
a cache, and so do these runs; weights, keys and values are many different ones.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ops import attention, curves, draws, linear, rest, walk
from benchmarks.ops.measure import Bench, Figure, Work, benches
from octavo.config.machine import read_machine
from octavo.kernels.choose import bf16_choice

GROUPS = ("linear", "attention", "rest", "draws")
BF16 = ("auto", "floats", "pairs")
_ALONE = {"curves": curves.main, "walk": walk.main}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a kernel and number of threads."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _ALONE:
        _ALONE[given[0]](given[1:])
        return
    parser = _parser()
    options = parser.parse_args(given)
    if unknown := [name for name in options.groups if name not in GROUPS]:
        parser.error(f"there is no group {unknown[0]!r}: {', '.join(GROUPS)}, or curves or walk alone")
    made = benches(options.isa, options.threads, options.repeats)
    made[0].library.call.octavo_bf16_force(BF16.index(options.bf16) - 1)
    figures: list[Figure] = []
    print("\n".join(ceilings(made)), flush=True)
    print(f"\n{_HEAD}", flush=True)
    for bench, work in _works(made, options):
        figures.append(bench.measure(work))
        print(line(figures[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(made, figures), indent=1))


def ceilings(made: Sequence[Bench]) -> Iterator[str]:
    """What the machine can do, with each team; and how bf16 is multiplied, and why."""
    for bench in made:
        threads = f"{bench.team.threads} thread{'s' if bench.team.threads > 1 else ''}"
        yield (
            f"{bench.library.isa}, {threads}: memory {bench.memory / 1e9:.1f} GB/s, "
            f"1 MiB a thread {bench.reading(1) / 1e9:.0f} GB/s, "
            f"registers {bench.peak('f32') / 1e9:.0f} GFLOP/s, {bench.peak('int8') / 1e9:.0f} GOP/s in 8 bits"
            + (f", {bench.peak('bf16') / 1e9:.0f} GFLOP/s of bf16 in pairs" if bench.peak("bf16") else "")
        )
    chosen = bf16_choice(made[0].library)
    yield f"{chosen.what}: {chosen.kernel}; {chosen.reason}"


_HEAD = (
    f"{'kernel':24} {'of':40} thr {'time':>10} {'bytes':>8} {'op':>8} {'GB/s':>7} {'G(FL)OP/s':>9}  of what bounds it"
)


def line(figure: Figure) -> str:
    """A figure for people."""
    return (
        f"{figure.op:24} {figure.detail:40} {figure.threads:>3} {_time(figure.seconds):>10} {_size(figure.bytes):>8} "
        f"{_size(figure.operations):>8} {figure.gigabytes_per_second:7.1f} {figure.gigaflops:9.1f}  "
        f"{figure.share:4.0%} of {figure.bound}"
    )


def as_json(made: Sequence[Bench], figures: Sequence[Figure]) -> dict[str, object]:
    """Everything, with names for programs; seconds, bytes, operations and rates a second."""
    return {
        "isa": made[0].library.isa,
        "ceilings": [
            {
                "threads": bench.team.threads,
                "memory": bench.memory,
                "small_set": bench.reading(1),
                "f32": bench.peak("f32"),
                "int8": bench.peak("int8"),
                "bf16": bench.peak("bf16"),
            }
            for bench in made
        ],
        "figures": [
            {
                "op": figure.op,
                "detail": figure.detail,
                "threads": figure.threads,
                "seconds": figure.seconds,
                "bytes": figure.bytes,
                "operations": figure.operations,
                "bytes_per_second": figure.bytes / figure.seconds,
                "operations_per_second": figure.operations / figure.seconds,
                "bound": figure.bound,
                "share": figure.share,
            }
            for figure in figures
        ],
    }


def _works(made: Sequence[Bench], options: argparse.Namespace) -> Iterator[tuple[Bench, Work]]:
    groups = options.groups or GROUPS
    if "linear" in groups:
        asked = linear.Products(
            options.formats, options.compute, options.rows, options.cols, options.tokens, options.megabytes
        )
        yield from linear.works(made, asked)
    if "attention" in groups:
        yield from attention.works(
            made,
            attention.Contexts(options.shapes, options.types, options.contexts, options.batches, options.prompts),
        )
    if "rest" in groups:
        yield from rest.works(made)
    if "draws" in groups:
        yield from draws.works(
            made, draws.Draws(options.samplers, options.vocabularies, options.draw_rows, options.logits)
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ops",
        usage="python -m benchmarks.ops [GROUP ...] [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(read_machine().cores)
    products, contexts = linear.Products(), attention.Contexts()
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    _flag(parser, "--isa", "auto", "instruction set; auto: the best of this CPU", kind=str)
    _flag(parser, "--threads", sorted({1, cores}), "sizes of teams, one after the other")
    _flag(parser, "--repeats", 5, "runs of each; the least time counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    group = parser.add_argument_group("linear")
    _flag(group, "--formats", products.formats, "of weights", linear.FORMATS)
    _flag(group, "--compute", products.compute, "inputs as floats, in 16 or in 8 bits", linear.COMPUTE)
    _flag(group, "--bf16", BF16[0], "multiplied so, where the processor can", BF16)
    _flag(group, "--rows", products.rows, "of the matrix")
    _flag(group, "--cols", products.cols, "of the matrix")
    _flag(group, "--tokens", products.tokens, "rows of inputs")
    _flag(group, "--megabytes", products.megabytes, "of weights in a run of few rows")
    group = parser.add_argument_group("attention")
    _flag(group, "--shapes", contexts.shapes, "heads as these models have them", attention.SHAPES)
    _flag(group, "--types", contexts.types, "of cached keys and values", attention.TYPES)
    _flag(group, "--contexts", contexts.contexts, "tokens that are cached")
    _flag(group, "--batches", contexts.batches, "sequences in a decode step")
    _flag(group, "--prompts", contexts.prompts, "tokens of a prompt")
    group, drawn = parser.add_argument_group("draws"), draws.Draws()
    _flag(group, "--samplers", drawn.samplers, "and rules, each alone", draws.SAMPLERS)
    _flag(group, "--vocabularies", drawn.vocabularies, "entries of a row")
    _flag(group, "--draw-rows", drawn.rows, "rows of logits in a step")
    _flag(group, "--logits", drawn.logits, "how unlike each other they are", draws.LOGITS)
    return parser


def _flag(group: Any, flag: str, default: Any, text: str, choices: Collection[str] = (), kind: type = int) -> None:
    """A flag that says its default; several values where the default has several."""
    many = not isinstance(default, (int, str))
    told = " ".join(map(str, default)) if many else default
    if choices:
        kind = str
        told = "all" if set(default) == set(choices) else told
        text = f"{text}: {', '.join(choices)}"
    more: dict[str, Any] = (
        {"choices": tuple(choices), "metavar": "NAME"} if choices else {"metavar": "N" if kind is int else "ISA"}
    )
    group.add_argument(
        flag, type=kind, nargs="+" if many else None, default=default, help=f"{text} (default: {told})", **more
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _size(number: float) -> str:
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.0f}{unit}" if number >= 100 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


if __name__ == "__main__":
    main()
