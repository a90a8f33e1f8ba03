"""What the ops of latent attention and of recurrent layers are tried with: steps that build on each other's history."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops.conformance import CacheShape, Case, Device, Scene, numbers, rope_of, spans_of, stored, tables_for
from octavo.ops.interface import LayerCache, StatePiece
from octavo.spec.decoder import ConvSpec, LatentSpec, NormSpec, QueryScaleSpec, RopeSpec, StateSpaceSpec

Rows = Sequence[tuple[int, int, int]]  # (slot, start, count) of each sequence in a step

# Prompts, chunks, decode and all of them mixed; contexts longer than what kernels sum in one go.
STEPS: tuple[Rows, ...] = (
    ((0, 0, 37), (2, 0, 5)),
    ((2, 5, 3), (0, 37, 1), (1, 0, 20)),
    ((1, 20, 1), (2, 8, 1), (0, 38, 1)),
    ((0, 39, 260), (1, 21, 1)),
    ((0, 299, 1), (2, 9, 64)),
    ((0, 300, 1),),
)
_POSITIONS = 320


def mixer_cases() -> list[Case]:
    """Every case, as `conformance.cases`."""
    return [
        *_head_linear_cases(),
        *_latent_cases(),
        *_conv_cases(),
        *_scan_cases(),
        *_gated_norm_cases(),
        *_position_cases(),
    ]


def _head_linear_cases() -> Iterator[Case]:
    def case(label: str, format: str, sizes: tuple[int, int, int, int], tokens: int, tolerance: float = 2e-5) -> Case:
        heads, stride, depth, width = sizes

        def run(device: Device) -> list[NDArray[Any]]:
            ops, _ = device.begin(Scene())
            weight = device.packer.matrix([stored(format, width, depth, 60 + head) for head in range(heads)])
            return [device.get(ops.head_linear(device.put(numbers(50, tokens, heads * stride)), weight))]

        return Case("head_linear", f"{label} {format} {tokens} rows", run, tolerance)

    for tokens in (1, 3, 9, 70):
        yield case("odd sizes", "f32", (3, 23, 17, 21), tokens)
        yield case("whole heads", "bf16", (5, 48, 48, 32), tokens)
        yield case("part of a head", "q8_0", (4, 96, 64, 48), tokens)
        yield case("two levels", "q4_k", (2, 256, 256, 16), tokens)
        yield case("one head", "f16", (1, 40, 31, 7), tokens)


def _latent(label: str, spec: LatentSpec, dtype: str, block_size: int = 16) -> Case:
    """latent_cache and latent_attention over several steps; two groups, the second layer of a page is used."""
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.5e-2}.get(dtype, 3e-2)
    tables = tables_for(2, 3, -(-_POSITIONS // block_size))
    shape = CacheShape(dtype, block_size, tables.size, 1, spec.width, 2, tables, value_dim=0)

    def run(device: Device) -> list[NDArray[Any]]:
        rope = None if spec.rope is None else rope_of(device, spec.rope, _POSITIONS)
        gain = device.put(1 + numbers(20, spec.rank, scale=0.1)) if spec.latent_norm.weight else None
        results: list[NDArray[Any]] = []
        at = LayerCache(1, 1)
        for number, rows in enumerate(STEPS):
            ops, step = device.begin(Scene(spans_of(rows)))
            tokens = sum(count for _, _, count in rows)
            q = device.put(numbers(30 + number, tokens, spec.heads * spec.head_dim))
            kv = device.put(numbers(40 + number, tokens, spec.width))
            q = ops.latent_cache(q, kv, spec, at, step.positions, rope, gain)
            queries = device.put(numbers(50 + number, tokens, spec.heads * spec.rank))
            results += [device.get(q), device.get(ops.latent_attention(queries, q, spec, at))]
        return results

    return Case("latent_attention", label, run, tolerance, shape)


def _latent_cases() -> Iterator[Case]:
    def spec(heads: int, nope: int, rope: int, rank: int, **fields: Any) -> LatentSpec:
        defaults: dict[str, Any] = {"rope": RopeSpec(10000.0, rope) if rope else None}
        defaults["latent_norm"] = NormSpec("rms", 1e-6)
        return LatentSpec(heads, nope, rope, 16, rank, (nope + rope) ** -0.5, **{**defaults, **fields})

    for dtype in ("float32", "float16", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4"):
        yield _latent(f"16 heads {dtype}", spec(16, 16, 8, 64), dtype)
        yield _latent(f"odd sizes {dtype}", spec(3, 5, 6, 21), dtype, block_size=8)
        yield _latent(f"odd width {dtype}", spec(2, 8, 2, 33), dtype, block_size=32)
    yield _latent("more heads than a task has", spec(37, 8, 8, 32), "float32")
    yield _latent("large", spec(4, 128, 64, 512), "bfloat16", block_size=128)
    yield _latent("no rope, no gain", spec(5, 24, 0, 40, latent_norm=NormSpec("rms", 1e-5, weight=False)), "float32")
    yield _latent("one head", spec(1, 4, 4, 16), "float32")


# --- recurrent layers ------------------------------------------------------------------------------------------------

_PAGES = 24
# Where a slot's state is read from and written to, two pages of it: in place, moved, and from the very start.
_STATE_STEPS: tuple[tuple[Rows, tuple[int, ...], tuple[int, ...]], ...] = (
    (((0, 0, 37), (2, 0, 5)), (-1, -1), (0, 4)),
    (((2, 5, 3), (0, 37, 1), (1, 0, 20)), (4, 0, -1), (4, 8, 12)),
    (((1, 20, 1), (2, 8, 1), (0, 38, 1)), (12, 4, 8), (12, 16, 8)),
    (((0, 39, 66), (1, 21, 2)), (8, 12), (0, 12)),
    (((2, 9, 1), (0, 105, 1)), (16, 0), (16, 0)),
    (((1, 0, 2), (2, 10, 1)), (-1, 16), (20, 4)),
)


def _state_scenes() -> Iterator[Scene]:
    """Each step; a state's second page is the one after its first."""
    for rows, reads, writes in _STATE_STEPS:
        second = tuple(page if page < 0 else page + 1 for page in reads)
        yield Scene(spans_of(rows), state_reads=(reads, second), state_writes=(writes, tuple(p + 1 for p in writes)))


def _places(sizes: Sequence[int]) -> tuple[LayerCache, int]:
    """Pieces one after the other, from the second page's middle on to the first's; and how large pages have to be."""
    offsets = [64, 128]
    places: list[StatePiece] = []
    for number, size in enumerate(sizes):
        page = 1 - number % 2
        places.append(StatePiece(page, offsets[page]))
        offsets[page] += -(-size // 64) * 64
    return LayerCache(0, 0, tuple(places)), max(offsets)


def _conv_cases() -> Iterator[Case]:
    def case(label: str, spec: ConvSpec, extra: int = 0, bias: bool = True) -> Case:
        at, page = _places((spec.state_bytes,))
        shape = CacheShape(blocks=_PAGES, page_bytes=page)

        def run(device: Device) -> list[NDArray[Any]]:
            weight = device.put(numbers(70, spec.taps * spec.width))
            given = device.put(numbers(71, spec.width)) if bias else None
            columns = spec.first + spec.width * (3 if spec.gated else 1) + extra
            results: list[NDArray[Any]] = []
            for number, scene in enumerate(_state_scenes()):
                ops, _ = device.begin(scene)
                x = device.put(numbers(72 + number, len(scene.positions), columns))
                results.append(device.get(ops.causal_conv(x, spec, at, weight, given)))
            return results

        return Case("causal_conv", label, run, 2e-6, shape)

    yield case("gated", ConvSpec(64, 3, gated=True))
    yield case("silu of some columns", ConvSpec(96, 4, first=40, silu=True), extra=6)
    yield case("odd width, no bias", ConvSpec(37, 2, gated=True), bias=False)
    yield case("narrow", ConvSpec(5, 4, first=3, silu=True), extra=1)
    yield case("one tap", ConvSpec(33, 1))
    yield case("most taps", ConvSpec(18, 16, silu=True))


def _scan_cases() -> Iterator[Case]:
    def case(label: str, spec: StateSpaceSpec) -> Case:
        at, page = _places(spec.cache_needs[0].pieces)
        shape = CacheShape(blocks=_PAGES, page_bytes=page)

        def run(device: Device) -> list[NDArray[Any]]:
            rates = numbers(80, 3, spec.heads)
            rates[0] = -np.exp(rates[0])
            given = device.put(rates.reshape(-1))
            results: list[NDArray[Any]] = []
            for number, scene in enumerate(_state_scenes()):
                ops, _ = device.begin(scene)
                tokens = len(scene.positions)
                x = device.put(numbers(81 + number, tokens, spec.conv.width))
                steps = device.put(numbers(91 + number, tokens, spec.first_step + spec.heads, scale=2.0))
                results.append(device.get(ops.state_scan(x, steps, spec, at, given)))
            return results

        return Case("state_scan", label, run, 2e-5, shape)

    yield case("one group", StateSpaceSpec(6, 64, 16, 1, 4, 1e-5))
    yield case("two groups, odd sizes", StateSpaceSpec(4, 23, 7, 2, 4, 1e-5))
    yield case("wide heads", StateSpaceSpec(2, 80, 128, 2, 4, 1e-5))
    yield case("limits", StateSpaceSpec(3, 16, 8, 1, 2, 1e-5, limits=(0.2, 0.7)))
    yield case("one head of one", StateSpaceSpec(1, 1, 1, 1, 2, 1e-5))


def _position_cases() -> Iterator[Case]:
    def run(device: Device) -> list[NDArray[Any]]:
        ops, step = device.begin(Scene(spans_of(((0, 300, 13), (1, 0, 3)))))
        spec = QueryScaleSpec(0.3, 4.0)
        return [device.get(ops.scale_by_position(device.put(numbers(98, 16, 37)), spec, step.positions))]

    yield Case("scale_by_position", "two sequences", run, 1e-6)


def _gated_norm_cases() -> Iterator[Case]:
    def case(label: str, spec: StateSpaceSpec, tokens: int, gain: bool = True) -> Case:
        def run(device: Device) -> list[NDArray[Any]]:
            ops, _ = device.begin(Scene())
            x, gates = numbers(95, tokens, spec.inner), numbers(96, tokens, spec.first_step + spec.heads)
            weight = device.put(numbers(97, spec.inner)) if gain else None
            return [device.get(ops.gated_norm(device.put(x), device.put(gates), weight, spec))]

        return Case("gated_norm", label, run, 3e-6)

    yield case("one group", StateSpaceSpec(6, 64, 16, 1, 4, 1e-5), 9)
    yield case("groups of odd width", StateSpaceSpec(6, 23, 7, 2, 4, 1e-5), 5)
    yield case("no gain, large eps", StateSpaceSpec(1, 5, 1, 1, 2, 0.1), 1, gain=False)
    yield case("many rows", StateSpaceSpec(4, 48, 8, 4, 2, 1e-6), 70)
