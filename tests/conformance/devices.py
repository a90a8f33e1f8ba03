"""The backends of this machine as conformance devices: the reference, and the native library of every usable ISA."""

from dataclasses import fields
from functools import cache

import numpy as np
import torch

from octavo.execution.torch.packer import TorchPacker
from octavo.execution.torch.runner import TorchStep
from octavo.execution.torch.storage import TorchStore
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import RecordedStep
from octavo.kernels.cpu.library import NativeLibrary, load_library, supported_isas
from octavo.kernels.cpu.ops import NativeOps
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE, SAMPLING_RECORD
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.conformance import CacheShape, DrawnArrays, Scene
from octavo.ops.interface import RowRules
from octavo.ops.reference import ReferenceOps

# Builds that share all objects with another but those of coded and dense products, which matrices.py tests.
VARIANTS = ("avx2_vnni", "amx", "neon_dotprod", "neon_i8mm")
ISAS = tuple(isa for isa in supported_isas() if isa not in VARIANTS)


@cache
def library(isa: str) -> NativeLibrary:
    return load_library(isa)


@cache
def team(isa: str, threads: int = 2) -> ThreadTeam:
    return ThreadTeam(library(isa), threads)


class ReferenceDevice:
    """The oracle."""

    def __init__(self, shape: CacheShape) -> None:
        self.packer = TorchPacker()
        self._store = TorchStore(shape.blocks, shape.block_size, shape.dtype)
        self._store.use_tables(shape.tables)
        self._ops = ReferenceOps()
        self._scene = Scene()

    def begin(self, scene):
        self._scene = scene
        self._ops = ReferenceOps(scene.spans, scene.rows, self._store)
        self._store.use_states(*states_of(scene))
        handles = (scene.token_ids, scene.positions, scene.sampled_rows, types_of(scene))
        return self._ops, TorchStep(*(torch.tensor(values, dtype=torch.int32) for values in handles))

    def put(self, values):
        return torch.from_numpy(values.copy())

    def get(self, activation):
        return activation.numpy()

    def drawn(self):
        drawn = self._ops.drawn
        assert drawn is not None
        tokens = np.array(drawn.tokens, np.int32)
        logprobs = drawn.logprobs.numpy()
        own = logprobs[np.arange(len(tokens)), tokens]
        ranks = (logprobs > own[:, None]).sum(axis=1) + 1
        count = top_count(self._scene)
        order = np.argsort(-logprobs, axis=1, kind="stable")[:, :count]
        top = np.take_along_axis(logprobs, order, axis=1)
        invalid = np.array(drawn.invalid, np.int32)
        return DrawnArrays(tokens, own, ranks.astype(np.int32), invalid, order.astype(np.int32), top)


class NativeDevice:
    """NativeOps. The cache starts full of NaN, so that reading a position nobody wrote shows."""

    def __init__(self, isa: str, shape: CacheShape, threads: int = 2) -> None:
        self.isa = isa
        self._library = library(isa)
        self._team = team(isa, threads)
        self.packer = NativePacker(self._library, self._team)
        self._step = NativeStep(4096)
        self._cache = native_cache(self._library, shape)
        self._scene = Scene()

    def begin(self, scene):
        self._scene = scene
        fill_step(self._step, scene)
        return NativeOps(self._library, self._team, self._step, self._cache), RecordedStep()

    def fill_cache(self, byte: int) -> None:
        self._cache.pool[:] = byte

    def put(self, values):
        return np.ascontiguousarray(values)

    def get(self, activation):
        return activation

    def left(self) -> float:
        """Mirostat's state after the first row's draw."""
        return float(self._step.mu[0])

    def drawn(self):
        rows, count, step = len(self._scene.rows), top_count(self._scene), self._step
        return DrawnArrays(
            step.tokens[:rows].copy(),
            step.logprobs[:rows].copy(),
            step.ranks[:rows].copy(),
            step.invalid[:rows].copy(),
            step.top_ids[:rows, :count].copy(),
            step.top_logprobs[:rows, :count].copy(),
        )


def native_cache(native: NativeLibrary, shape: CacheShape) -> NativeCache:
    """A pool of NaN."""
    code = CACHE_FORMAT_OF_DTYPE[shape.dtype]
    layer = native.cache_layer_bytes(code, shape.kv_heads, shape.head_dim, shape.block_size, shape.value_dim)
    page = max(-(-layer * shape.layers // 64) * 64, shape.page_bytes)
    pool = aligned_bytes(page * shape.blocks)
    pool[:] = 0xFF
    return NativeCache(code, shape.block_size, page, pool, np.ascontiguousarray(shape.tables))


def fill_step(step: NativeStep, scene: Scene) -> None:
    """The scene's arrays, as native code takes them."""
    starts = [span.first for span in scene.spans] + [sum(span.count for span in scene.spans)]
    step.set_tokens(
        np.array(scene.token_ids or [0] * len(scene.positions), np.int32),
        np.array(scene.positions, np.int32),
        np.array(starts, np.int32),
        np.array([span.slot for span in scene.spans], np.int32),
    )
    step.set_types(np.array(types_of(scene), np.int32))
    step.set_states(*states_of(scene))
    step.set_top(top_count(scene))
    records = np.zeros(len(scene.sampled_rows), SAMPLING_RECORD)
    kept = [fill_record(record, rules) for record, rules in zip(records, scene.rows, strict=False)]
    step.set_rows(np.array(scene.sampled_rows, np.int32), records)
    step.kept_for_test = kept  # type: ignore[attr-defined]


def types_of(scene: Scene) -> tuple[int, ...]:
    """Which text each token belongs to."""
    return scene.token_types or (0,) * len(scene.positions)


def states_of(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Pages that recurrent states are read from and written to, [pages, sequences]."""
    shape = (-1, max(len(scene.spans), 1))
    reads, writes = (np.array(pages, np.int32).reshape(shape) for pages in (scene.state_reads, scene.state_writes))
    return reads, writes


def fill_record(record: np.void, rules: RowRules) -> tuple[np.ndarray, ...]:
    """One OctavoSampling; returns the arrays it points to."""
    sampling = rules.sampling
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_k")
    for name in names:
        record[name] = getattr(sampling, name)
    bias = [*sampling.logit_scale, *sampling.logit_bias, *((token, -np.inf) for token in rules.banned)]
    record["scale_count"] = len(sampling.logit_scale)
    ids = np.array([token for token, _ in bias], np.int32)
    values = np.array([value for _, value in bias], np.float32)
    allowed = np.array(sampling.allowed_token_ids, np.int32)
    history = np.array([*rules.prompt, *rules.output], np.int32)
    record["logprobs"] = -1 if sampling.logprobs is None else sampling.logprobs
    record["seed"] = sampling.seed
    record["known_tokens"] = sampling.known_tokens
    record["output_index"] = rules.output_index
    record["bias_count"], record["bias_ids"], record["bias_values"] = len(bias), ids.ctypes.data, values.ctypes.data
    record["allowed_ids"], record["allowed_count"] = allowed.ctypes.data, len(allowed)
    record["prompt_len"], record["history_len"] = len(rules.prompt), len(history)
    record["history"] = history.ctypes.data
    shaping = sampling.shaping
    for name in (field.name for field in fields(shaping) if field.name != "dry_breakers"):
        record[name] = getattr(shaping, name)
    breakers = np.array(sorted(shaping.dry_breakers), np.int32)
    record["dry_breakers"], record["dry_breaker_count"] = breakers.ctypes.data, len(breakers)
    words = np.array([i for word in sampling.bad_words for i in (len(word), *word)], np.int32)
    record["bad_words"], record["bad_words_size"] = words.ctypes.data, len(words)
    permitted = np.array(rules.permitted, np.uint32)
    record["mirostat_mu"] = rules.mu
    record["permitted"] = permitted.ctypes.data if len(permitted) else 0
    return ids, values, allowed, history, permitted, breakers, words


def top_count(scene: Scene) -> int:
    """Likeliest tokens listed for each row."""
    return max((rules.sampling.logprobs or 0 for rules in scene.rows), default=0)
