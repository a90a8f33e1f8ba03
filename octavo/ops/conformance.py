"""What each op is tried with on every backend, and how near to the reference it must come.

A case is a function of a `Device`: it packs its own stored tensors and calls the ops of that backend, so that layouts
never leave a backend. Its results are compared with those of the reference device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.flow.request import Sampling, Shaping
from octavo.ops.interface import Ops, RopeTable, RowRules, StepHandles
from octavo.ops.reference import Span
from octavo.ops.weight import Packer, StoredTensor
from octavo.spec.decoder import RopeSpec

Array = NDArray[np.float32]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu")
# Of every format: elements and bytes of a block, where its float16 scales stand, and their size, so that weights have
# about the same spread. MXFP4's scale is a power-of-two exponent: one byte, no float16.
BLOCK_FORMATS: dict[str, tuple[int, int, tuple[int, ...], float]] = {
    "q4_0": (32, 18, (0,), 0.02),
    "q4_1": (32, 20, (0, 2), 0.02),
    "q5_0": (32, 22, (0,), 0.01),
    "q5_1": (32, 24, (0, 2), 0.01),
    "q8_0": (32, 34, (0,), 0.001),
    "q2_k": (256, 84, (80, 82), 0.01),
    "q3_k": (256, 110, (108,), 0.002),
    "q4_k": (256, 144, (0, 2), 0.0005),
    "q5_k": (256, 176, (0, 2), 0.0003),
    "q6_k": (256, 210, (208,), 0.0001),
    "iq4_nl": (32, 18, (0,), 0.002),
    "mxfp4": (32, 17, (), 0.0),
}
FLOAT_FORMATS = ("f32", "f16", "bf16")
FORMATS = (*FLOAT_FORMATS, *BLOCK_FORMATS)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache of a case: one layer a group, or several."""

    dtype: str = "float32"
    block_size: int = 16
    blocks: int = 64
    kv_heads: int = 1
    head_dim: int = 16
    layers: int = 1
    tables: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, 1, 1), np.int32))
    value_dim: int | None = None  # None: as head_dim
    page_bytes: int = 0  # at least; for recurrent states


@dataclass(frozen=True, slots=True)
class Scene:
    """One step. Tokens belong to the spans; `rows` are the rules of the sampled rows."""

    spans: tuple[Span, ...] = ()
    token_ids: tuple[int, ...] = ()
    sampled_rows: tuple[int, ...] = ()
    rows: tuple[RowRules, ...] = ()
    state_reads: tuple[tuple[int, ...], ...] = ()  # of each page of a state, each sequence's page; -1: none yet
    state_writes: tuple[tuple[int, ...], ...] = ()
    token_types: tuple[int, ...] = ()  # of each token; empty: 0

    @property
    def positions(self) -> tuple[int, ...]:
        """Of each token."""
        return tuple(p for span in self.spans for p in range(span.start, span.start + span.count))


@dataclass(slots=True)
class DrawnArrays:
    """What a device's `sample` left: tokens, the drawn tokens' log-probabilities and ranks, invalid rows; the K
    likeliest of each row."""

    tokens: NDArray[np.int32]
    logprobs: Array
    ranks: NDArray[np.int32]
    invalid: NDArray[np.int32]
    top_ids: NDArray[np.int32]  # [R, K]
    top_logprobs: Array


class Device(Protocol):
    """A backend under test, with the cache of one case. Activations and vectors are its own types."""

    packer: Packer

    def begin(self, scene: Scene) -> tuple[Ops[Any, Any, Any], StepHandles[Any]]:
        """Start a step; the cache keeps what earlier steps wrote."""
        ...

    def put(self, values: Array) -> Any:
        """An activation, a vector or a rope table."""
        ...

    def get(self, activation: Any) -> Array:
        """An activation's values."""
        ...

    def drawn(self) -> DrawnArrays:
        """Results of the step's `sample`."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """`run` gives arrays: floats may differ by `tolerance` times the largest expected one, integers not at all."""

    op: str
    label: str
    run: Callable[[Device], list[NDArray[Any]]]
    tolerance: float
    cache: CacheShape = field(default_factory=CacheShape)

    def __str__(self) -> str:
        return f"{self.op}-{self.label}"


def cases() -> list[Case]:
    """Every case of every op but those of `conformance_attention` and `conformance_mixers`. Data is made when a case
    runs, from fixed seeds."""
    return [
        *_norm_cases(),
        *_elementwise_cases(),
        *_linear_cases(),
        *_row_cases(),
        *_sampling_cases(),
    ]


def numbers(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Normal numbers, float32."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def stored(format: str, rows: int, cols: int, seed: int) -> StoredTensor:
    """A random matrix in any format, a name that tells which."""
    name = f"{format}[{rows}, {cols}]"
    rng = np.random.default_rng(seed)
    if format in FLOAT_FORMATS:
        values = (rng.standard_normal((rows, cols)) * 0.1).astype(np.float32)
        return StoredTensor(name, format, (rows, cols), _float_bytes(values, format))
    elements, size, scales, spread = BLOCK_FORMATS[format]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for offset in scales:
        values = (rng.uniform(0.5, 1.5, len(blocks)) * spread).astype(np.float16)
        blocks[:, offset : offset + 2] = values.view(np.uint8).reshape(-1, 2)
    if format == "mxfp4":
        blocks[:, 0] = rng.integers(119, 124, len(blocks), dtype=np.uint8)  # 2^-8 .. 2^-4
    return StoredTensor(name, format, (rows, cols), blocks.reshape(-1))


def _float_bytes(values: Array, format: str) -> NDArray[np.uint8]:
    if format == "f32":
        return values.view(np.uint8).reshape(-1)
    if format == "f16":
        return values.astype(np.float16).view(np.uint8).reshape(-1)
    rounded = (values.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
    return rounded.astype(np.uint16).view(np.uint8).reshape(-1)


# --- norms and elementwise -------------------------------------------------------------------------------------------


def _unary(op: str, label: str, x: Callable[[], Array], tolerance: float, *arguments: Any) -> Case:
    """An op of one activation; array arguments become the device's vectors."""

    def run(device: Device) -> list[NDArray[Any]]:
        ops, _ = device.begin(Scene())
        given = [device.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return [device.get(getattr(ops, op)(device.put(x()), *given))]

    return Case(op, label, run, tolerance)


def _norm_cases() -> Iterator[Case]:
    for tokens in (1, 7, 64):
        for width in (1, 17, 64, 576):
            label = f"{tokens}x{width}"

            def x(tokens: int = tokens, width: int = width) -> Array:
                return numbers(tokens, tokens, width)

            gain, bias = numbers(1, width), numbers(2, width)
            yield _unary("rms_norm", label, x, 3e-6, gain, 1e-6)
            yield _unary("layer_norm", label, x, 1e-5, gain, bias, 1e-5)
    yield _unary("rms_norm", "no gain", lambda: numbers(3, 3, 40), 3e-6, None, 1e-6)
    yield _unary("layer_norm", "no gain or bias", lambda: numbers(3, 3, 40), 1e-5, None, None, 1e-5)
    yield _unary("rms_norm", "tiny", lambda: np.full((1, 64), 1e-20, np.float32), 3e-6, np.ones(64, np.float32), 1e-6)
    yield _unary("rms_norm", "huge", lambda: numbers(4, 2, 64, scale=1e15), 3e-6, np.ones(64, np.float32), 1e-6)
    yield _unary("layer_norm", "large mean", lambda: numbers(5, 2, 64) + np.float32(1000), 1e-3, None, None, 1e-5)


def _elementwise_cases() -> Iterator[Case]:
    extreme = np.array([[0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 100.0, -100.0, 1e4, -1e4, 3e38, 0.5]], np.float32)
    moderate = np.where(np.abs(extreme) > 1e9, 1e9, extreme).astype(np.float32)
    for kind in ACTIVATIONS:
        yield _unary("act", kind, lambda: numbers(6, 5, 33, scale=3.0), 3e-6, kind)
        yield _unary("act", f"{kind} extreme", lambda: moderate, 3e-6, kind)
        yield _unary("act", f"{kind} negative", lambda: numbers(7, 1, 64, scale=0.1) - np.float32(2.0), 1e-5, kind)
        yield _unary("act_mul", kind, lambda: numbers(8, 3, 2 * 37, scale=2.0), 3e-6, kind)
    yield _unary("scale", "7x19", lambda: numbers(9, 7, 19), 1e-7, 24.0)
    yield _unary("softcap", "5x257", lambda: numbers(10, 5, 257, scale=40.0), 3e-6, 30.0)
    yield _unary("softcap", "extreme", lambda: extreme, 3e-6, 50.0)
    yield _unary("all_reduce", "one rank", lambda: numbers(11, 3, 5), 0.0)

    def add(device: Device) -> list[NDArray[Any]]:
        ops, _ = device.begin(Scene())
        return [device.get(ops.add(device.put(numbers(12, 9, 51)), device.put(numbers(13, 9, 51))))]

    yield Case("add", "9x51", add, 1e-7)


# --- matrices --------------------------------------------------------------------------------------------------------


def _linear(label: str, tokens: int, parts: Sequence[tuple[str, int, int]], bias: bool = False) -> Case:
    """x @ stacked(parts)^T; parts are (format, rows, cols)."""

    def run(device: Device) -> list[NDArray[Any]]:
        ops, _ = device.begin(Scene())
        weight = device.packer.matrix([stored(f, rows, cols, seed) for seed, (f, rows, cols) in enumerate(parts)])
        x = device.put(numbers(tokens, tokens, parts[0][2]))
        vector = device.put(numbers(99, weight.shape[0])) if bias else None
        return [device.get(ops.linear(x, weight, vector))]

    return Case("linear", label, run, 2e-5)


def _linear_cases() -> Iterator[Case]:
    for format in FORMATS:
        for tokens, rows, cols in ((1, 48, 512), (5, 33, 256), (70, 16, 768)):
            yield _linear(f"{format} {tokens}x{cols}->{rows}", tokens, [(format, rows, cols)])
    for format in FLOAT_FORMATS:  # widths that no vector divides
        yield _linear(f"{format} odd", 3, [(format, 19, 37)], bias=True)
        yield _linear(f"{format} one by one", 1, [(format, 1, 1)])
        yield _linear(f"{format} blocks", 295, [(format, 53, 1283)], bias=True)
    yield _linear("bias", 4, [("q8_0", 50, 64)], bias=True)
    yield _linear("q4_k+q4_k+q6_k", 3, [("q4_k", 32, 256), ("q4_k", 16, 256), ("q6_k", 16, 256)], bias=True)
    yield _linear("bf16+f32+q8_0, odd rows", 6, [("bf16", 5, 64), ("f32", 17, 64), ("q8_0", 3, 64)], bias=True)
    yield _linear("f16+q4_0 many tokens", 130, [("f16", 24, 96), ("q4_0", 40, 96)])


def _row_cases() -> Iterator[Case]:
    scene = Scene(
        (Span(0, 4, 10, 0), Span(4, 3, 0, 1)), (7, 0, 49, 3, 16, 15, 48), (3, 6, 0), token_types=(0, 0, 1, 2, 1, 49, 0)
    )

    def embed(parts: Sequence[tuple[str, int, int]]) -> Callable[[Device], list[NDArray[Any]]]:
        def run(device: Device) -> list[NDArray[Any]]:
            ops, step = device.begin(scene)
            table = device.packer.matrix([stored(f, rows, cols, seed) for seed, (f, rows, cols) in enumerate(parts)])
            return [device.get(ops.embed(ids, table)) for ids in (step.token_ids, step.positions, step.token_types)]

        return run

    for format in FORMATS:
        yield Case("embed", format, embed([(format, 50, 512)]), 1e-6)
    yield Case("embed", "two segments", embed([("q8_0", 16, 64), ("f16", 34, 64)]), 1e-6)
    yield Case("embed", "odd width", embed([("f32", 50, 21)]), 0.0)

    def select(device: Device) -> list[NDArray[Any]]:
        ops, step = device.begin(scene)
        return [device.get(ops.select_rows(device.put(numbers(14, 7, 33)), step.sampled_rows))]

    yield Case("select_rows", "3 of 7", select, 0.0)


# --- what cases with a cache are made of ------------------------------------------------------------------------------

QUANTIZED = ("int8", "fp8_e4m3", "fp8_e5m2", "int4")


def tables_for(groups: int, slots: int, max_blocks: int) -> NDArray[np.int32]:
    """Block tables in which no block occurs twice and none follows its neighbour."""
    order = np.random.default_rng(5).permutation(groups * slots * max_blocks)
    return order.astype(np.int32).reshape(groups, slots, max_blocks)


def spans_of(rows: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
    """Sequences one after the other, each (slot, start, count)."""
    spans: list[Span] = []
    for slot, start, count in rows:
        spans.append(Span(sum(span.count for span in spans), count, start, slot))
    return tuple(spans)


def rope_of(device: Device, spec: RopeSpec, positions: int = 128) -> RopeTable:
    """Plain rotary tables."""
    half = spec.width // 2
    angles = np.outer(np.arange(positions), spec.theta ** (-np.arange(half) / half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return RopeTable(spec.width, device.put(cos), device.put(sin))


# --- sampling --------------------------------------------------------------------------------------------------------

_VOCAB = 517


def _rules(sampling: Sampling, index: int = 0, banned: tuple[int, ...] = ()) -> RowRules:
    """Rules of a row that has a prompt of 12 tokens and 9 outputs, with repeats."""
    rng = np.random.default_rng(index)
    prompt = rng.integers(0, 40, 12).tolist()
    return RowRules(sampling, prompt, rng.integers(20, 60, 9).tolist(), index, banned)


def _sampling(label: str, rules: Sequence[RowRules], logits: Callable[[], Array] | None = None) -> Case:
    """process_logits, then sample: the processed logits, tokens, log-probabilities, ranks and the likeliest."""

    def run(device: Device) -> list[NDArray[Any]]:
        values = logits() if logits else numbers(40, len(rules), _VOCAB, scale=2.0)
        ops, _ = device.begin(Scene(sampled_rows=tuple(range(len(rules))), rows=tuple(rules)))
        raw = device.put(values)
        processed = ops.process_logits(raw)
        ops.sample(processed, raw)
        drawn = device.drawn()
        results: list[NDArray[Any]] = [device.get(processed), drawn.tokens, drawn.invalid]
        if all(rule.sampling.logprobs is not None for rule in rules):
            results += [drawn.logprobs, drawn.ranks, drawn.top_ids, drawn.top_logprobs]
        return results

    return Case("sample", label, run, 3e-6)


def _with_mu(rules: Sequence[RowRules]) -> list[RowRules]:
    """States from one that allows the likeliest token alone to one that allows all."""
    return [replace(rule, mu=index * 0.6 - 1.0) for index, rule in enumerate(rules)]


def _shaped_cases() -> Iterator[Case]:
    """The samplers that few ask for, alone and together."""
    repeats = (11, 12, 13, 14, 3, 9, 11, 12, 13, 500, 9, 11, 12, 13)

    def shaped(shaping: Shaping, **options: Any) -> list[RowRules]:
        return [_rules(Sampling(seed=3 + i, shaping=shaping, **options), i) for i in range(24)]

    def repeating(**options: Any) -> list[RowRules]:
        sampling = Sampling(temperature=0.8, seed=5, shaping=Shaping(dry_multiplier=0.8, **options))
        return [RowRules(sampling, repeats[:cut], repeats[cut:], cut) for cut in range(len(repeats) + 1)]

    yield _sampling("typical", shaped(Shaping(typical_p=0.4)))
    yield _sampling("typical, tiny", shaped(Shaping(typical_p=1e-4), temperature=0.6))
    yield _sampling("top-n-sigma", shaped(Shaping(top_n_sigma=1.0), temperature=1.7))
    yield _sampling("XTC", shaped(Shaping(xtc_probability=0.5, xtc_threshold=0.01)))
    yield _sampling("XTC, always", shaped(Shaping(xtc_probability=1.0, xtc_threshold=0.004), top_k=30))
    yield _sampling("dynamic temperature", shaped(Shaping(dynatemp_range=0.9, dynatemp_exponent=2.0)))
    yield _sampling("dynamic temperature from 0", shaped(Shaping(dynatemp_range=2.0), temperature=1.0))
    together = Shaping(0.9, 2.5, 0.5, 0.02, 0.3)
    yield _sampling("all shaping", shaped(together, temperature=0.9, top_k=80, top_p=0.9, min_p=0.01, logprobs=2))
    ordered = Shaping(0.9, 2.5, 0.5, 0.02, 0.3, sampler_order=0x1357246)
    yield _sampling("the order turned round", shaped(ordered, temperature=0.9, top_k=80, top_p=0.9, min_p=0.01))
    yield _sampling("top-p before the temperature", shaped(Shaping(sampler_order=0x26), temperature=1.9, top_p=0.7))
    for version in (1, 2):
        surprising = Shaping(mirostat=version, mirostat_tau=3.0)
        yield _sampling(f"mirostat {version}", _with_mu(shaped(surprising, temperature=1.2)))
        yield _sampling(f"mirostat {version} after top-k", _with_mu(shaped(surprising, top_k=9)))
    yield _sampling("DRY", repeating())
    yield _sampling("DRY, short allowed, high base", repeating(dry_allowed_length=1, dry_base=3.0))
    yield _sampling("DRY, window and breakers", repeating(dry_window=9, dry_breakers=(12, 3), dry_allowed_length=0))


def _equal_cases() -> Iterator[Case]:
    """Filters that rank, where the last token that they keep is one of many equals; and where one is far from all."""

    def rows(**fields: Any) -> list[RowRules]:
        return [_rules(Sampling(seed=9 + i, **fields), i) for i in range(24)]

    def equal() -> Array:
        return np.full((24, _VOCAB), -7.0, np.float32)

    yield _sampling("top-p, ties", rows(top_p=0.6), _tied)
    yield _sampling("top-p, all equal", rows(top_p=0.6), equal)
    yield _sampling("top-p, some far below", rows(top_p=0.9), _with_outliers)
    yield _sampling("typical, ties", rows(shaping=Shaping(typical_p=0.4)), _tied)
    yield _sampling("typical, all equal", rows(shaping=Shaping(typical_p=0.7)), equal)
    yield _sampling("mirostat 1, ties", _with_mu(rows(shaping=Shaping(mirostat=1, mirostat_tau=3.0))), _tied)


def _sampling_cases() -> Iterator[Case]:
    def many(**fields: Any) -> list[RowRules]:
        return [_rules(Sampling(seed=7 + index, **fields), index) for index in range(24)]

    yield _sampling("greedy", many(temperature=0.0))
    yield _sampling("greedy, ties", many(temperature=0.0), lambda: np.round(numbers(41, 24, _VOCAB)))
    yield _sampling("logprobs", many(temperature=0.0, logprobs=5))
    yield _sampling("logprobs of a draw", many(temperature=1.3, logprobs=20))
    yield _sampling("temperature 1", many())
    yield _sampling("temperature 0.3", many(temperature=0.3))
    yield _sampling("top-k", many(top_k=5))
    yield _sampling("padded vocabulary", many(temperature=2.0, known_tokens=300, logprobs=20))
    yield _sampling("padded vocabulary, greedy", many(temperature=0.0, known_tokens=7, repetition_penalty=1.5))
    yield _sampling("top-k 1", many(top_k=1))
    yield _sampling("top-k beyond the vocabulary", many(top_k=10_000))
    yield _sampling("top-p", many(top_p=0.6))
    yield _sampling("tiny top-p", many(top_p=1e-6))
    yield _sampling("min-p", many(min_p=0.1))
    yield _sampling("all filters", many(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02))
    yield _sampling("repetition penalty", many(temperature=0.0, repetition_penalty=1.7))
    yield _sampling("presence and frequency", many(temperature=0.0, presence_penalty=0.9, frequency_penalty=-0.7))
    yield _sampling("bias", many(logit_bias=((3, 5.0), (516, -100.0), (0, 2.5))))
    scales = {"logit_scale": ((3, 2.5), (516, 0.5), (9, 100.0)), "logit_bias": ((3, 1.5),), "logprobs": 2}
    yield _sampling("factors", many(temperature=0.0, **scales))
    yield _sampling("factors, drawn", many(allowed_token_ids=(3, 9, 100, 516), **scales))
    yield _sampling("allowed ids", many(allowed_token_ids=(5, 100, 516)))
    yield _sampling(
        "all rules",
        many(
            temperature=0.7,
            top_p=0.8,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            logit_bias=((9, 1.0),),
            logprobs=3,
            allowed_token_ids=tuple(range(0, 517, 2)),
        ),
    )
    banned = [_rules(Sampling(temperature=0.0, logit_bias=((1, 9.0),)), i, (1, 2, 400)) for i in range(4)]
    yield _sampling("banned ids", banned)
    yield from _shaped_cases()
    yield from _equal_cases()
    words = tuple(int(word) for word in np.random.default_rng(5).integers(0, 1 << 32, 17))
    sparse = (0, 1 << 31, 0xFFFFFFFF, 0, 1 << 7, *[0] * 11, 1 << 4)  # the last word's bits pass the vocabulary
    for name, permitted in (("dense", words), ("sparse", sparse)):
        masked = [replace(rules, permitted=permitted) for rules in many(temperature=0.9, logprobs=2)]
        yield _sampling(f"permitted tokens, {name}", masked)
    words = ((20, 21), (400, 401, 402), (7, 8, 9, 10), (5,) * 30)
    said = [(9, 20), (7, 8, 9), (401,), (400, 401), (8, 9), (5,) * 29, ()]
    worded = Sampling(temperature=0.0, bad_words=words, logit_bias=tuple((word[-1], 20.0) for word in words))
    yield _sampling("bad words", [RowRules(worded, (7, 20, 400), outputs, len(outputs)) for outputs in said])
    yield _sampling("large seeds", [_rules(Sampling(seed=(1 << 63) + i), 1000 + i) for i in range(8)])
    yield _sampling("not finite", many(temperature=0.0)[:4], _broken)
    yield _sampling(
        "some -inf", many()[:4], lambda: np.where(numbers(42, 4, _VOCAB) > 1, 3.0, -np.inf).astype(np.float32)
    )
    yield _sampling("large logits", many(), lambda: numbers(43, 24, _VOCAB, scale=300.0))
    mixed = [_rules(Sampling(temperature=i % 2, top_k=i, seed=i, logprobs=None), i) for i in range(6)]
    yield _sampling("mixed rows", mixed)


def _tied() -> Array:
    """Few different logits, each many times: the last token that a filter keeps is one of equals."""
    return np.round(numbers(45, 24, _VOCAB, scale=1.5))


def _with_outliers() -> Array:
    values = numbers(46, 24, _VOCAB)
    values[:, ::97] = -1e30
    return values


def _broken() -> Array:
    values = numbers(44, 4, _VOCAB)
    values[0, 3] = np.nan
    values[1, 516] = np.inf
    values[2] = -np.inf
    return values
