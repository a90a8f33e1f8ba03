"""How a step of a whole model grows with its batch, its context and the model: measured, and its floor, as pictures.

    python -m benchmarks.ops curves [--models 135M 0.5B 1B] [--formats bf16 q8_0] [--json curves.json] [--out PICTURES]

Models have real shapes and random weights, made here. --json keeps what was measured: points of other models that the
file holds stay, and the pictures show all of them. A floor is what has to be read at the bandwidth, or computed at the
register peak, that were probed in the same run; whichever is more.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ops.linear import DENSE, kind_of, random_weight
from benchmarks.ops.measure import Bench, Kind, benches
from benchmarks.simulate.findings import Chart, Series
from octavo.cache.layout import groups_for, layer_caches, page_bytes
from octavo.config.machine import read_machine
from octavo.execution.cpu.runner import record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits, Recording
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE, SAMPLING_RECORD, Coding
from octavo.model.assembly import HeadPart, Part, assemble
from octavo.model.decoder import Decoder
from octavo.model.rope import rope_tables
from octavo.ops.interface import RopeTable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import (
    AttentionSpec,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    NormSpec,
    RopeSpec,
    sequential,
)

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
_BLOCK, _SHORT = 16, 128
# Name: hidden, inner, layers, heads, kv heads, their width, vocabulary. SmolLM2-135M, Qwen2.5-0.5B, Llama 3.2 1B.
SHAPES = {
    "135M": (576, 1536, 30, 9, 3, 64, 49152),
    "0.5B": (896, 4864, 24, 14, 2, 64, 151936),
    "1B": (2048, 8192, 16, 32, 8, 64, 128256),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A decode step of `batch` sequences with `context` tokens each. Seconds."""

    model: str
    format: str
    batch: int
    context: int
    seconds: float
    floor: float


class _RandomWeights:
    """A Take that makes what is asked for, in one format."""

    def __init__(self, bench: Bench, format: str) -> None:
        self._bench = bench
        self._format = format
        self.bytes = 0

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        weight = random_weight(self._bench, self._format, sum(rows for _, rows in parts), columns)
        self.bytes += sum(segment.data.nbytes for segment in weight.segments if isinstance(segment.data, np.ndarray))
        return weight

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        raise NotImplementedError("these shapes have no matrices of single heads")

    def gain(self, place: str, name: str, width: int) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(name.encode())).uniform(0.5, 1.5, width).astype(np.float32)

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> np.ndarray:
        return np.zeros(sum(rows for _, rows in parts), np.float32)

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> np.ndarray:
        raise NotImplementedError("these shapes have no recurrent layers")

    def taps(self, place: str, name: str, width: int, taps: int) -> np.ndarray:
        raise NotImplementedError("these shapes have no convolutions")


class Model:
    """A decoder of one of SHAPES with random weights, its cache, and steps of it.

    compute: what becomes of inputs where weights are codes: "exact", "int16" or "int8".
    """

    def __init__(self, bench: Bench, name: str, format: str, tokens: int, compute: str = "int8") -> None:
        hidden, inner, layers, heads, kv_heads, width, vocab = SHAPES[name]
        norm, rope = NormSpec("rms", 1e-6), RopeSpec(10000.0, width)
        attention = AttentionSpec(heads, kv_heads, width, width**-0.5, rope)
        layer = sequential(attention, DenseMlpSpec(inner, "silu"), norm)
        longest = max(CONTEXTS)
        spec = DecoderSpec(hidden, (layer,) * layers, EmbeddingSpec(vocab, hidden), norm, HeadSpec(True), longest)
        weights = _RandomWeights(bench, format)
        packer = NativePacker(bench.library, bench.team)
        tables = {rope: RopeTable(width, *(packer.vector(t).reshape(t.shape) for t in rope_tables(rope, longest)))}
        code = CACHE_FORMAT_OF_DTYPE["float16"]

        def layer_bytes(_: int, need: Any) -> int:
            return bench.library.cache_layer_bytes(code, need.kv_heads, need.key_width, _BLOCK)

        groups = groups_for(spec, layer_bytes)
        decoder = Decoder(spec, assemble(spec, weights), layer_caches(spec, groups), tables)
        blocks = -(-tokens // _BLOCK)
        storage = CpuStorage(blocks, page_bytes(spec, groups, layer_bytes))
        storage.page(slice(None))[:] = 0x3C
        self._tables = np.zeros((len(groups), max(BATCHES), longest // _BLOCK), np.int32)
        self._blocks = np.random.default_rng(1).permutation(blocks).astype(np.int32)
        cache = storage.cache("float16", _BLOCK, self._tables)
        limits = ProgramLimits(max(BATCHES), max(BATCHES))
        compute = "exact" if format in DENSE else compute
        self.program: NativeProgram = record_program(
            bench.library,
            bench.team,
            decoder,
            limits,
            cache,
            longest,
            Recording(coding=Coding[compute.upper()]),
        )
        self.kind: Kind = kind_of(bench, format, compute)
        self.weight_bytes, self.token_bytes = weights.bytes, storage.page_bytes / _BLOCK
        self._attention = 4 * heads * width * layers
        turns = 2 if compute == "int16" and self.kind == "int8" else 1  # an instruction has half as many of 16 bits
        self._products = 2 * turns * (layers * hidden * (2 * (heads + kv_heads) * width + 3 * inner) + vocab * hidden)
        self._bench = bench

    def step(self, batch: int, context: int) -> NativeStep:
        """One in which each of `batch` sequences draws the token at the end of `context`."""
        count = -(-context // _BLOCK)
        self._tables[:, :batch, :count] = self._blocks[: batch * count].reshape(batch, count)
        step, one = NativeStep(batch), np.arange(batch, dtype=np.int32)
        starts = np.arange(batch + 1, dtype=np.int32)
        step.set_tokens(one, np.full(batch, context - 1, np.int32), starts, one)
        plain = np.zeros(batch, SAMPLING_RECORD)
        plain["logprobs"] = -1  # nobody asks for any
        step.set_rows(one, plain)
        return step

    def computing(self, batch: int) -> float:
        """Seconds of a step's products at the register peak."""
        return batch * self._products / self._bench.peak(self.kind)

    def point(self, batch: int, context: int) -> tuple[float, float]:
        """(seconds, floor) of such a step."""
        step = self.step(batch, context)
        seconds = self._bench.seconds(lambda: self.program.run(step))
        reading = (self.weight_bytes + batch * context * self.token_bytes) / self._bench.memory
        scores = batch * context * self._attention / self._bench.peak("f32")
        return seconds, max(reading, self.computing(batch) + scores)


def main(arguments: Sequence[str]) -> None:
    """Measure, keep, draw."""
    options = _parser().parse_args(arguments)
    if options.out is not None and find_spec("matplotlib") is None:
        _parser().error('--out draws with matplotlib, which is not installed: pip install -e ".[benchmarks]"')
    kept = json.loads(options.json.read_text()) if options.json is not None and options.json.is_file() else []
    new = [] if options.draw else list(_measure(options))
    points = [Point(**each) for each in kept]
    points = [p for p in points if not any(p.model == n.model and p.format == n.format for n in new)] + new
    if options.json is not None:
        options.json.write_text(json.dumps([_fields(point) for point in points], indent=1))
    if options.out is not None:
        from benchmarks.simulate.charts import draw  # matplotlib comes with it

        for chart in charts(points):
            draw(chart, options.out)


def _measure(options: argparse.Namespace) -> Iterator[Point]:
    (bench,) = benches(options.isa, [options.threads], options.repeats)
    print(f"memory {bench.memory / 1e9:.1f} GB/s, registers {bench.peak('f32') / 1e9:.0f} GFLOP/s")
    for name in options.models:
        for format in options.formats:
            sizes = [(batch, _SHORT) for batch in options.batches] + [(1, context) for context in options.contexts]
            model = Model(bench, name, format, max(batch * context for batch, context in sizes))
            for batch, context in dict.fromkeys(sizes):
                seconds, floor = model.point(batch, context)
                each = f"{1e3 * seconds / batch:8.2f} ms a token"
                print(
                    f"{name:5} {format:5} batch {batch:>4} context {context:>5} {1e3 * seconds:9.2f} ms, {each}, "
                    f"{floor / seconds:4.0%} of the floor",
                    flush=True,
                )
                yield Point(name, format, batch, context, seconds, floor)


def charts(points: Sequence[Point]) -> Iterator[Chart]:
    """Growth with the batch and with the context, and how near the floor each model is in every format."""
    names = list(dict.fromkeys((point.model, point.format) for point in points))
    for name, title, axis, x in (
        ("batch", "Tokens a second as the batch grows (128 tokens each)", "sequences in a step", "batch"),
        ("context", "A step of one sequence as its context grows", "tokens of context", "context"),
    ):
        series: list[Series] = []
        for model, format in names:
            chosen = [p for p in points if (p.model, p.format) == (model, format)]
            chosen = [p for p in chosen if (p.context == _SHORT if x == "batch" else p.batch == 1)]
            chosen.sort(key=lambda p: getattr(p, x))
            xs = [getattr(p, x) for p in chosen]
            ys = [p.batch / p.seconds if x == "batch" else 1e3 * p.seconds for p in chosen]
            series.append(Series(f"{model} {format}", xs, ys))
        unit = "tokens/s" if x == "batch" else "ms a step"
        yield Chart(f"growth-{name}", title, axis, unit, series, log="x")
    chosen = [p for p in points if (p.batch, p.context) == (1, _SHORT)]
    formats = list(dict.fromkeys(p.format for p in chosen))
    bars = [
        Series(f, [p.model for p in chosen if p.format == f], [p.floor / p.seconds for p in chosen if p.format == f])
        for f in formats
    ]
    title = "One sequence: how much of the floor is reached"
    yield Chart("growth-model", title, "", "of the floor", bars, kind="bars", values=".0%")


def _fields(point: Point) -> dict[str, object]:
    return {name: getattr(point, name) for name in Point.__dataclass_fields__}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ops curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=len(read_machine().cores))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=["bf16", "q8_0"])
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--json", type=Path, help="keep points here; points of other models in it stay")
    parser.add_argument("--out", type=Path, help="folder for pictures (needs matplotlib)")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw what --json holds")
    return parser
