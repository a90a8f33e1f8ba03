"""The kernels between the products: norms, rotation and cache write, activation, embedding, head, draws, copies."""

import ctypes
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.ops.linear import copies_of, product_of, random_weight
from benchmarks.ops.measure import Bench, Work
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import Buffer, Ids
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE, SAMPLING_RECORD, Format
from octavo.ops.interface import LayerCache, RopeTable
from octavo.spec.decoder import AttentionSpec, RopeSpec

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, WIDTH = 576, 1536, 49152, 9, 3, 64  # SmolLM2-135M's
TOKENS = (1, 64, 512)
_COPIES = 64
_BLOCK = 16
Emit = Callable[[ProgramRecorder, Buffer], object]


def works(benches: Sequence[Bench], tokens: Sequence[int] = TOKENS) -> Iterator[tuple[Bench, Work]]:
    """All of them, on so many tokens."""
    for count in tokens:
        for bench in benches:
            yield bench, _simple(bench, ("rms_norm", HIDDEN, HIDDEN, 4), count, _rms)
            yield bench, _simple(bench, ("layer_norm", HIDDEN, HIDDEN, 8), count, _layer)
            yield bench, _simple(bench, ("act_mul silu", 2 * INNER, INNER, 5), count, lambda r, x: r.act_mul(x, "silu"))
            yield bench, _simple(bench, ("select_rows", HIDDEN, HIDDEN, 0), count, _select)
            yield bench, _embedding(bench, count)
        for dtype in CACHE_FORMAT_OF_DTYPE:
            for bench in benches:
                yield bench, _rotation(bench, count, dtype)
    for bench in benches:
        table = random_weight(bench, "bf16", VOCAB, HIDDEN)
        for rows in (1, 64):
            yield bench, product_of(bench, copies_of(table, 512 if rows == 1 else 0), rows, "exact", "head")
        for target in (Format.Q8_0, Format.Q4_1):
            yield bench, _rounding(bench, target)
        yield bench, _memcpy()


def _step(tokens: int) -> NativeStep:
    """One sequence, of which every token is sampled, the last first."""
    step, positions = NativeStep(tokens), np.arange(tokens, dtype=np.int32)
    step.set_tokens(positions, positions, np.array([0, tokens], np.int32), np.zeros(1, np.int32))
    step.set_rows(positions[::-1].copy(), np.zeros(tokens, SAMPLING_RECORD))
    return step


def _numbers(tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((tokens, width), np.float32)


def _simple(bench: Bench, shape: tuple[str, int, int, int], tokens: int, emit: Emit) -> Work:
    """One input, one output. shape: name, widths of both, operations an output element."""
    op, width, out_width, operations = shape
    recorder = ProgramRecorder(bench.library)
    x = recorder.input(width)
    for _ in range(_COPIES):
        emit(recorder, x)
    program = NativeProgram(bench.library, bench.team, recorder.instructions, ProgramLimits(tokens, tokens))
    program.view(x, tokens)[:] = _numbers(tokens, width)
    step, moved = _step(tokens), 4 * tokens * (width + out_width)
    work = operations * tokens * out_width
    return Work(op, f"{tokens} x {width}", lambda: program.run(step), _COPIES, moved, work, moved)


def _rms(recorder: ProgramRecorder, x: Buffer) -> Buffer:
    return recorder.rms_norm(x, np.ones(x.width, np.float32), 1e-6)


def _layer(recorder: ProgramRecorder, x: Buffer) -> Buffer:
    ones, zeros = np.ones(x.width, np.float32), np.zeros(x.width, np.float32)
    return recorder.layer_norm(x, ones, zeros, 1e-6)


def _select(recorder: ProgramRecorder, x: Buffer) -> Buffer:
    return recorder.select_rows(x, Ids.SAMPLED_ROWS)


def _embedding(bench: Bench, tokens: int) -> Work:
    """Rows of a bf16 table."""
    table = random_weight(bench, "bf16", 4096, HIDDEN)
    recorder = ProgramRecorder(bench.library)
    for _ in range(_COPIES):
        recorder.embed(Ids.TOKEN_IDS, table)
    program = NativeProgram(bench.library, bench.team, recorder.instructions, ProgramLimits(tokens, tokens))
    step, moved = _step(tokens), 6 * tokens * HIDDEN
    return Work("embed bf16", f"{tokens} x {HIDDEN}", lambda: program.run(step), _COPIES, moved, tokens * HIDDEN, moved)


def _rotation(bench: Bench, tokens: int, dtype: str) -> Work:
    """q, k and v of a layer: q and k rotated, k and v written to the cache."""
    spec = AttentionSpec(HEADS, KV_HEADS, WIDTH, WIDTH**-0.5, RopeSpec(10000.0, WIDTH))
    code, blocks = CACHE_FORMAT_OF_DTYPE[dtype], -(-tokens // _BLOCK)
    layer = bench.library.cache_layer_bytes(code, KV_HEADS, WIDTH, _BLOCK)
    tables = np.arange(blocks, dtype=np.int32).reshape(1, 1, blocks)
    cache = NativeCache(code, _BLOCK, layer, aligned_bytes(blocks * layer), tables)
    angles = np.random.default_rng(2).uniform(0, 6, (tokens, WIDTH // 2)).astype(np.float32)
    rope = RopeTable(WIDTH, np.cos(angles), np.sin(angles))
    recorder = ProgramRecorder(bench.library, cache, tokens)
    qkv = recorder.input((HEADS + 2 * KV_HEADS) * WIDTH)
    for _ in range(_COPIES):
        recorder.qkv_rope_cache(qkv, spec, LayerCache(0, 0), Ids.POSITIONS, rope, None, None)
    program = NativeProgram(
        bench.library, bench.team, recorder.instructions, ProgramLimits(tokens, tokens), cache, fused=False
    )
    program.view(qkv, tokens)[:] = _numbers(tokens, qkv.width)
    step = _step(tokens)
    moved = tokens * (4 * (qkv.width + HEADS * WIDTH) + layer // _BLOCK)
    work = 3 * tokens * (HEADS + KV_HEADS) * WIDTH
    return Work("rope, cache write", f"{tokens} to {dtype}", lambda: program.run(step), _COPIES, moved, work, moved)


def _rounding(bench: Bench, target: Format) -> Work:
    """Weights of bf16 to blocks, as `--quantization` does while loading."""
    rows, cols = 4096, 1536
    source = np.full(rows * cols, 0x3C3C, np.uint16)
    blocks = aligned_bytes(bench.library.source_bytes(target, rows, cols))
    call, team = bench.library.call, bench.team.handle

    def run() -> None:
        call.octavo_quantize(team, Format.BF16, source.ctypes.data, rows, cols, target, blocks.ctypes.data)

    moved = source.nbytes + blocks.nbytes
    name = target.name.lower()
    return Work(f"quantize to {name}", f"bf16 {rows} x {cols}", run, 1, moved, 2 * rows * cols, moved)


def _memcpy() -> Work:
    """The C library's, on one thread whatever the team: what copying a cache block or a page costs."""
    size = 64 << 20
    source, target = aligned_bytes(size), aligned_bytes(size)
    source[:], target[:] = 1, 0

    def run() -> None:
        ctypes.memmove(target.ctypes.data, source.ctypes.data, size)

    return Work("memcpy, one thread", "64 MiB", run, 1, 2 * size, 0, 2 * size)
