"""What the ops of latent attention and of recurrent layers are tried with: steps that build on each other's history."""

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from octavo.ops.conformance import CacheShape, Case, Device, Scene, numbers, rope_of, spans_of, stored, tables_for
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import LatentSpec, NormSpec, RopeSpec

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
    return [*_head_linear_cases(), *_latent_cases()]


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
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.5e-2}[dtype]
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

    for dtype in ("float32", "float16", "bfloat16"):
        yield _latent(f"16 heads {dtype}", spec(16, 16, 8, 64), dtype)
        yield _latent(f"odd sizes {dtype}", spec(3, 5, 6, 21), dtype, block_size=8)
        yield _latent(f"odd width {dtype}", spec(2, 8, 2, 33), dtype, block_size=32)
    yield _latent("more heads than a task has", spec(37, 8, 8, 32), "float32")
    yield _latent("large", spec(4, 128, 64, 512), "bfloat16", block_size=128)
    yield _latent("no rope, no gain", spec(5, 24, 0, 40, latent_norm=NormSpec("rms", 1e-5, weight=False)), "float32")
    yield _latent("one head", spec(1, 4, 4, 16), "float32")
