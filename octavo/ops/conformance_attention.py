"""What attention over the paged cache is tried with: every mask and type, steps that build on each other's history."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from octavo.ops.conformance import QUANTIZED, CacheShape, Case, Device, Scene, numbers, rope_of, spans_of, tables_for
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import AttentionSpec, DistanceSpec, NormSpec, RopeSpec

# Steps of a case, each (slot, start, count): prompts, chunks, decode and all of them mixed; contexts past any window.
_STEPS = (
    ((0, 0, 37), (2, 0, 5)),
    ((2, 5, 3), (0, 37, 1), (1, 0, 20)),
    ((1, 20, 1), (2, 8, 1), (0, 38, 1)),
    ((0, 39, 70), (1, 21, 1)),
    ((0, 109, 1), (2, 9, 64)),
)


# Keys are rotated and normed before they are kept: where the last bit differs, another number may be kept.
_QUANTIZED_TOLERANCE = {"int8": 1e-2, "fp8_e4m3": 6e-2, "fp8_e5m2": 0.12, "int4": 0.15}
_EXACT_TOLERANCE = {"int8": 3e-4, "int4": 3e-4}  # there queries and weights are rounded to 16 bits
_ATTENTION_TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.5e-2, **_QUANTIZED_TOLERANCE}


def _attention(label: str, spec: AttentionSpec, dtype: str, block_size: int = 16) -> Case:
    """qkv_rope_cache and paged_attention over several steps; two groups, the second layer of a page is used."""
    exact = dtype in QUANTIZED and spec.rope is None and spec.qk_norm is None  # what is kept is the same to the bit
    tolerance = _EXACT_TOLERANCE.get(dtype, 3e-5) if exact else _ATTENTION_TOLERANCE[dtype]
    tables = tables_for(2, 3, -(-128 // block_size))
    shape = CacheShape(dtype, block_size, tables.size, spec.kv_heads, spec.head_dim, 2, tables)

    def run(device: Device) -> list[NDArray[Any]]:
        rope = None if spec.rope is None else rope_of(device, spec.rope)
        gains = (None, None)
        if spec.qk_norm is not None:
            gains = (device.put(1 + numbers(20, spec.head_dim, scale=0.1)), device.put(numbers(21, spec.head_dim)))
        width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        sinks = device.put(numbers(22, spec.heads)) if spec.sinks else None
        far = None
        if spec.distances is not None:
            far = device.put(numbers(23, spec.distances.buckets * spec.heads))
        results: list[NDArray[Any]] = []
        for number, rows in enumerate(_STEPS):
            ops, step = device.begin(Scene(spans_of(rows)))
            qkv = device.put(numbers(30 + number, sum(count for _, _, count in rows), width))
            q = ops.qkv_rope_cache(qkv, spec, LayerCache(1, 1), step.positions, rope, *gains)
            results += [device.get(q), device.get(ops.paged_attention(q, spec, LayerCache(1, 1), sinks, far))]
        return results

    return Case("attention", label, run, tolerance, shape)


def attention_cases() -> list[Case]:
    """Every case, as `conformance.cases`."""
    return [*_plain_cases(), *_biased_cases(), *_quantized_cases()]


def _plain_cases() -> Iterator[Case]:
    for heads, kv_heads in ((4, 4), (6, 2), (9, 3), (4, 1)):
        for window in (None, 7, 40):
            for block_size in (8, 16, 128) if heads == 6 else (16,):
                for dtype in ("float32", "float16", "bfloat16"):
                    spec = AttentionSpec(heads, kv_heads, 32, 32**-0.5, RopeSpec(10000.0, 32), window)
                    label = f"{heads}/{kv_heads} window {window} block {block_size} {dtype}"
                    yield _attention(label, spec, dtype, block_size)
    norm, rope = NormSpec("rms", 1e-6), RopeSpec(1e6, 64)
    yield _attention("qk-norm", AttentionSpec(4, 2, 64, 0.125, rope, qk_norm=norm), "float32")
    yield _attention(
        "qk-norm window", AttentionSpec(4, 1, 256, 1 / 16, RopeSpec(1e4, 256), 16, qk_norm=norm), "float16"
    )
    yield _attention("partial rope", AttentionSpec(4, 2, 64, 0.125, RopeSpec(1e4, 16)), "float32")
    yield _attention("odd partial rope", AttentionSpec(2, 1, 40, 0.2, RopeSpec(1e4, 10)), "float32")
    yield _attention("no rope", AttentionSpec(3, 3, 64, 0.125, None), "float16")
    yield _attention("softcap", AttentionSpec(4, 2, 64, 1.0, rope, softcap=5.0), "float32")
    yield _attention("window of one", AttentionSpec(2, 2, 16, 0.25, None, 1), "float32")
    for window, size in ((None, 16), (1, 8), (7, 16), (40, 32)):
        for dtype in ("float32", "float16", "int8"):
            spec = AttentionSpec(6, 2, 32, 0.25, None, window, causal=False)
            yield _attention(f"both ways window {window} {dtype}", spec, dtype, size)
    for chunk, window, block_size in ((1, None, 16), (24, None, 8), (48, None, 16), (64, 20, 32), (100, None, 128)):
        spec = AttentionSpec(6, 2, 32, 32**-0.5, RopeSpec(10000.0, 32), window, chunk=chunk)
        for dtype in ("float32", "bfloat16"):
            yield _attention(f"chunk {chunk} window {window} block {block_size} {dtype}", spec, dtype, block_size)
    yield _attention("sharp", AttentionSpec(2, 1, 64, 4.0, rope), "float32")
    yield _attention("odd head", AttentionSpec(2, 1, 20, 0.2, None), "bfloat16")


def _slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads))


def _biased_cases() -> Iterator[Case]:
    """Scores that lean by distance, logits without a key, with every mask; and blocks of any size."""

    def spec(heads: int, kv_heads: int, width: int, **more: Any) -> AttentionSpec:
        return AttentionSpec(heads, kv_heads, width, width**-0.5, None, **more)

    masks: tuple[dict[str, Any], ...] = ({}, {"window": 40}, {"chunk": 24}, {"softcap": 5.0, "window": 7})
    for name, biased in (("ALiBi", spec(4, 2, 32, alibi=_slopes(4))), ("sinks", spec(4, 2, 32, sinks=True))):
        for mask in masks:
            yield _attention(f"{name} {mask}", replace(biased, **mask), "float32")
    both = spec(9, 3, 64, alibi=_slopes(9), sinks=True)
    for dtype in ("float16", "bfloat16", *QUANTIZED):
        yield _attention(f"ALiBi and sinks {dtype}", both, dtype)
    for mask in masks:
        yield _attention(f"distances {mask}", spec(4, 2, 32, distances=DistanceSpec(32, 128), **mask), "float32")
    near = spec(9, 3, 64, distances=DistanceSpec(8, 20), alibi=_slopes(9), sinks=True)
    yield _attention("distances that end soon", near, "float32")
    yield _attention("distances both ways", replace(near, causal=False), "float32", 24)
    yield _attention("ALiBi and sinks of 17 heads", spec(17, 1, 16, alibi=_slopes(17), sinks=True), "float32")
    for block_size in (1, 5, 24):
        for dtype in ("float16", "int8", "int4") if block_size == 24 else ("bfloat16", "fp8_e4m3"):
            yield _attention(f"block {block_size} {dtype}", spec(6, 2, 64, window=90), dtype, block_size)


def _quantized_cases() -> Iterator[Case]:
    """Every quantized type over heads of any width, blocks of any size and every mask."""
    shapes: tuple[tuple[int, int, int, int, dict[str, Any]], ...] = (
        (6, 2, 64, 16, {}),
        (9, 3, 64, 8, {"window": 40}),
        (4, 1, 256, 16, {"window": 7, "softcap": 20.0}),
        (3, 3, 80, 32, {"chunk": 24}),
        (4, 2, 96, 128, {}),
        (8, 1, 128, 64, {"softcap": 5.0}),
        (2, 1, 20, 16, {}),
        (2, 2, 40, 8, {"window": 1}),
    )
    for dtype in QUANTIZED:
        for heads, kv_heads, width, block_size, mask in shapes:
            spec = AttentionSpec(heads, kv_heads, width, width**-0.5, None, **mask)
            yield _attention(
                f"{heads}/{kv_heads} of {width} {mask} block {block_size} {dtype}", spec, dtype, block_size
            )
        spec = AttentionSpec(4, 2, 64, 0.125, RopeSpec(1e4, 64), qk_norm=NormSpec("rms", 1e-6))
        yield _attention(f"rope and qk-norm {dtype}", spec, dtype)
