"""Attention over a paged cache in every type: one decoded token of a long context, many of short ones, and a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ops.measure import Bench, Work
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import AttentionSpec

BLOCK = 16
TYPES = ("float32", "float16", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4")
# Heads, kv heads, their width; and layers.
SHAPES = {
    "smollm2-135m": ((9, 3, 64), 30),
    "gemma3-270m": ((4, 1, 256), 18),  # as if it had no windows
    "llama3-8b": ((32, 8, 128), 32),
}


@dataclass(frozen=True, slots=True)
class Contexts:
    """What is attended to. Each layer has keys and values of its own: they come from where they would in a model."""

    shapes: Sequence[str] = ("smollm2-135m",)
    types: Sequence[str] = TYPES
    contexts: Sequence[int] = (1024, 8192)  # of one sequence
    batches: Sequence[int] = (32,)  # sequences with a context of 512
    prompts: Sequence[int] = (1024,)
    prefix: int = 512  # blocks that all sequences of a further case of each batch begin with, in tokens


def attention(
    bench: Bench,
    name: str,
    dtype: str,
    *,
    sequences: int,
    start: int,
    count: int,
    shared: int = 0,
    layers: int | None = None,
) -> Work:
    """`count` tokens at position `start` of each of `sequences`, through all layers of a model's attention; the blocks
    of the first `shared` tokens are the same for all."""
    (heads, kv_heads, width), all_layers = SHAPES[name]
    layers = layers or all_layers
    spec = AttentionSpec(heads, kv_heads, width, width**-0.5, None)
    code, length = CACHE_FORMAT_OF_DTYPE[dtype], start + count
    layer_bytes = bench.library.cache_layer_bytes(code, kv_heads, width, BLOCK)
    blocks, common = -(-length // BLOCK), shared // BLOCK
    pool = aligned_bytes(sequences * blocks * layers * layer_bytes)
    pool[:] = 0x3C  # an ordinary number in every type
    tables = np.random.default_rng(1).permutation(sequences * blocks).astype(np.int32).reshape(1, sequences, blocks)
    tables[0, :, :common] = tables[0, 0, :common]
    cache = NativeCache(code, BLOCK, layers * layer_bytes, pool, tables)
    tokens = sequences * count
    recorder = ProgramRecorder(bench.library, cache)
    q = recorder.input(heads * width)
    for layer in range(layers):
        recorder.paged_attention(q, spec, LayerCache(0, layer))
    limits = ProgramLimits(tokens, 1)
    program = NativeProgram(bench.library, bench.team, recorder.instructions, limits, cache, fused=False)
    program.view(q, tokens)[:] = np.random.default_rng(2).standard_normal((tokens, heads * width), np.float32)
    step = NativeStep(1)
    starts = np.arange(sequences + 1, dtype=np.int32) * count
    positions = np.tile(np.arange(start, length, dtype=np.int32), sequences)
    step.set_tokens(np.zeros(tokens, np.int32), positions, starts, np.arange(sequences, dtype=np.int32))
    seen = sequences * sum(range(start + 1, length + 1))  # pairs of a query and a key
    kept = (sequences * (blocks - common) + common) * layer_bytes
    activations = 8 * tokens * heads * width
    what = "decode" if count == 1 else "prefill"
    return Work(
        f"attention {what}",
        f"{name} {dtype} {sequences} x {length if count == 1 else count}{f', {shared} shared' if shared else ''}",
        lambda: program.run(step),
        layers,
        kept + activations,
        4 * heads * width * seen,
        layers * kept + activations,
    )


def works(benches: Sequence[Bench], asked: Contexts) -> Iterator[tuple[Bench, Work]]:
    """Decode of one and of many, and prompts, in every type."""
    sizes = [(1, context - 1, 1, 0) for context in asked.contexts]
    sizes += [(batch, 511, 1, 0) for batch in asked.batches]
    sizes += [(batch, asked.prefix + 63, 1, asked.prefix) for batch in asked.batches]
    sizes += [(1, 0, length, 0) for length in asked.prompts]
    for name in asked.shapes:
        for sequences, start, count, shared in sizes:
            for dtype in asked.types:
                for bench in benches:
                    work = attention(bench, name, dtype, sequences=sequences, start=start, count=count, shared=shared)
                    yield bench, work
