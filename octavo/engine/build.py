"""The composition root: a configuration becomes a running engine. The only file that knows every part.

Order matters: the model's shape is known before its weights, what the weights leave of the memory decides the cache,
and the cache's layout goes into the recorded program.
"""

import hashlib
import mmap
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import layer_caches, layer_needs, state_pages
from octavo.cache.manager import CacheManager
from octavo.cache.options import CacheOptions
from octavo.config.engine import EngineConfig
from octavo.config.environment import read_environment
from octavo.config.machine import Machine, read_machine
from octavo.config.overrides import read_overrides
from octavo.config.pooling import read_pooling_wish
from octavo.config.resolve import (
    BY_PROFILE,
    ModelFacts,
    ResolvedCache,
    ResolvedConfig,
    ResolvedModel,
    resolve_model,
)
from octavo.config.resolve_cache import resolve_cache, resolve_tiers
from octavo.config.sizing import Fit
from octavo.config.values import format_size
from octavo.engine.backends import Backend, open_backend
from octavo.engine.client import EngineInfo
from octavo.engine.footprint import require_fit
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.engine.tiers import build_tiers, cache_fingerprint
from octavo.execution.grammars import GrammarTable
from octavo.execution.local import LocalExecutor
from octavo.execution.memory import sequence_blocks
from octavo.execution.pooling import StatePooler
from octavo.execution.sleep import SleepingMemory
from octavo.execution.slots import SlotTable
from octavo.execution.worker import Worker
from octavo.kernels.choose import KernelChoice
from octavo.kernels.cpu.library import ABI_VERSION, library_digest, supported_isas
from octavo.kernels.cpu.placement import place_weights
from octavo.model.decoder import Decoder, DecoderWeights
from octavo.model.source import ModelSource, find_model, open_model
from octavo.model.weight_cache import WeightCache
from octavo.model.weights import LoadedModel, load_decoder
from octavo.ops.weight import Bytes, PackedWeight
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.fairness import read_weights
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.log import logger
from octavo.text.grammar import GrammarCompiler
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes, right after the engine was built."""

    weight_bytes: int  # packed
    token_bytes: int  # of KV cache, all layers
    resident_bytes: int  # of this process
    available_bytes: int  # on the machine, within its limits


@dataclass(frozen=True, slots=True)
class Engine:
    """A built engine. `client` is the way to use it; the rest is for looking at. `phases`: seconds of each part."""

    client: LocalClient
    info: EngineInfo
    source: ModelSource
    resolved: ResolvedConfig
    backend: Backend
    groups: tuple[KVCacheGroup, ...]
    kernels: tuple[KernelChoice, ...]
    memory: MemoryFigures
    phases: tuple[tuple[str, float], ...]

    def close(self) -> None:
        """Release the executor and its threads."""
        self.client.close()
        self.backend.close()


@dataclass(slots=True)
class _Clock:
    """How long each phase of the start took."""

    phases: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    @contextmanager
    def phase(self, name: str) -> Generator[None, None, None]:
        """Measure the body."""
        began = time.perf_counter()
        yield
        self.phases.append((name, time.perf_counter() - began))

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(seconds for _, seconds in self.phases)


def build_engine(
    config: EngineConfig, source: ModelSource | None = None, grammars: GrammarCompiler | None = None
) -> Engine:
    """Find, load and pack the model, size its cache, record its program.

    Args:
        source: the model, when the caller has opened it already.
        grammars: those of a frontend in this process.

    Raises:
        UserError: whatever of the configuration, the model or the machine does not fit; one line says what to do.
    """
    clock = _Clock()
    with clock.phase("open model"):
        source = source or locate_model(config)
        machine = read_machine()
        model = resolve_for(config, source, machine)
        fit = require_fit(config, source, model, machine.memory_available)
        backend = open_backend(model)
    try:
        with clock.phase("load weights"):
            loaded = _load(config, source, backend, model)
        with clock.phase("size cache, record program"):
            machinery = _assemble(config, source, loaded, backend, model, fit, grammars or _grammars(config, source))
        engine = _finish(machinery, source, loaded, backend, clock)
    except BaseException:
        backend.close()
        raise
    _tell(engine, loaded.from_cache)
    return engine


def locate_model(config: EngineConfig) -> ModelSource:
    """Find and open the model that the configuration names.

    Raises:
        ModelNotFoundError, CheckpointError, UnsupportedError: it is not there, damaged, or of an unknown kind.
    """
    model = config.model
    return open_model(
        find_model(model.model, model.revision, model.download_dir, model.hf_token),
        read_pooling_wish(model),
        read_overrides(model.hf_overrides),
    )


def resolve_for(config: EngineConfig, source: ModelSource, machine: Machine) -> ResolvedModel:
    """What will happen with a model on a machine, as far as headers tell.

    Raises:
        ConfigError, UnsupportedError: options exclude each other, the machine or the model.
    """
    facts = ModelFacts(
        name=config.model.model or source.path.name,
        max_positions=source.spec.max_positions,
        vocab=source.spec.vocab,
        format=source.dtype,
        file_bytes=source.file_bytes,
        method=source.method,
        coded="" if source.quantized is None else source.quantized.format,
        pooled=source.pooler is not None,
        whole=source.spec.whole,
        usual_length=None if source.pooler is None else source.pooler.max_length,
        rotates=all(need.can_rotate for need in layer_needs(source.spec).values()),
    )
    isas = () if config.execution.backend == "torch" else supported_isas()
    environment = read_environment()
    model = resolve_model(config, facts, machine, environment, isas)
    # What is used after loading only is looked at now: nobody waits for weights to be told of a wrong flag.
    read_weights(config.scheduling.tenant_weights)
    resolve_tiers(config, environment, model.backend.value)
    return model


def _load(config: EngineConfig, source: ModelSource, backend: Backend, model: ResolvedModel) -> LoadedModel[Any]:
    directory = model.weight_cache_dir.value
    cache = WeightCache(directory, model.weight_cache_bytes.value) if directory is not None else None
    return load_decoder(
        source,
        backend.packer,
        dtype=config.model.dtype,
        scheme=model.quantization.value,
        max_positions=model.max_model_len.value,
        cache=cache,
    )


@dataclass(frozen=True, slots=True)
class _Machinery:
    """What steps are made with."""

    resolved: ResolvedConfig
    groups: tuple[KVCacheGroup, ...]
    page_bytes: int
    loop: EngineLoop
    pin_tokens: int


def _assemble(
    config: EngineConfig,
    source: ModelSource,
    loaded: LoadedModel[Any],
    backend: Backend,
    model: ResolvedModel,
    fit: Fit,
    grammars: GrammarCompiler,
) -> _Machinery:
    """Everything from the weights to the loop."""
    _place(_matrices(loaded.weights), model)
    groups = backend.groups(source.spec)
    layout = backend.layout(source.spec, groups)
    page = layout.page_bytes
    tiers = resolve_tiers(config, read_environment(), model.backend.value)
    resolved = ResolvedConfig(model, _resolve_cache(config, model, groups, page, fit), tiers)
    table = SlotTable(
        model.max_num_seqs.value,
        model.max_model_len.value,
        max(1, len(groups)),
        model.block_size.value,
        state_pages(groups),
    )
    decoder = Decoder(source.spec, loaded.weights, layer_caches(source.spec, groups), loaded.ropes)
    runner = (
        backend.runner(decoder, table, resolved, layout)
        if source.pooler is None
        else StatePooler(backend.pooling_runner(decoder, table, resolved, layout))
    )
    fingerprint = cache_fingerprint(source, _formats(_matrices(loaded.weights)), resolved, groups)
    below = (
        None
        if backend.pages is None
        else build_tiers(resolved, groups, backend.pages, fingerprint, read_machine().memory_available)
    )
    cache = CacheManager(
        groups, _cache_options(config, resolved, fingerprint.hex()), None if below is None else below.books
    )
    memory = _sleeping_memory(config, source, loaded, backend, model)
    transfers = None if below is None else below.transfers
    worker = Worker(runner, table, transfers, memory, GrammarTable(grammars, table))
    return _Machinery(
        resolved,
        groups,
        page,
        EngineLoop(Scheduler(cache, _limits(config, resolved)), LocalExecutor(worker)),
        cache.pin_tokens,
    )


def _place(weights: list[PackedWeight], model: ResolvedModel) -> None:
    """Put weights beside the threads that read them; a system that refuses has them where they are."""
    if model.backend.value != "native":
        return
    try:
        place_weights(weights, model.placement.value)
    except OSError as error:
        logger("engine").warning("weights stay on the memory nodes where they were first written: %s", error)


def _grammars(config: EngineConfig, source: ModelSource) -> GrammarCompiler:
    """Those of an engine without a frontend beside it: the tokenizer is read when the first grammar comes."""

    def load() -> Tokenizer | None:
        from octavo.engine.frontend import load_tokenizer

        return load_tokenizer(config, source)

    return GrammarCompiler(load, source.spec.vocab)


def _sleeping_memory(
    config: EngineConfig, source: ModelSource, loaded: LoadedModel[Any], backend: Backend, model: ResolvedModel
) -> SleepingMemory | None:
    """What the engine lets go of when it sleeps; None when it never does."""
    pages = backend.pages
    if pages is None or not config.execution.enable_sleep_mode:
        return None

    def arrays(weights: DecoderWeights[Any]) -> list[Bytes]:
        return [cast(Bytes, segment.data) for matrix in _matrices(weights) for segment in matrix.segments]

    return SleepingMemory(
        pages.release, arrays(loaded.weights), lambda: arrays(_load(config, source, backend, model).weights)
    )


def _finish(
    machinery: _Machinery, source: ModelSource, loaded: LoadedModel[Any], backend: Backend, clock: _Clock
) -> Engine:
    """The client, and the figures about all of it."""
    resolved, groups = machinery.resolved, machinery.groups
    weights = _matrices(loaded.weights)
    growing = sum(not group.is_state for group in groups)
    info = replace(_info(resolved, source, _formats(weights), clock.total), pin_tokens=machinery.pin_tokens)
    return Engine(
        client=LocalClient(info, machinery.loop),
        info=info,
        source=source,
        resolved=resolved,
        backend=backend,
        groups=groups,
        kernels=tuple(backend.kernels(weights)),
        memory=MemoryFigures(
            weight_bytes=sum(_segment_bytes(weight) for weight in weights),
            token_bytes=growing * machinery.page_bytes // resolved.model.block_size.value,
            resident_bytes=_resident_bytes(),
            available_bytes=read_machine().memory_available,
        ),
        phases=tuple(clock.phases),
    )


def _resolve_cache(
    config: EngineConfig, model: ResolvedModel, groups: tuple[KVCacheGroup, ...], page: int, fit: Fit
) -> ResolvedCache:
    """From what was free before the weights came: what is free now counts their mapped files as free."""
    step = model.max_num_batched_tokens.value
    least = sequence_blocks(groups, model.max_model_len.value, step, model.block_size.value)
    return resolve_cache(config, model, page, least, fit.free, read_environment().kv_cache_bytes)


def _cache_options(config: EngineConfig, resolved: ResolvedConfig, fingerprint: str) -> CacheOptions:
    return CacheOptions(
        num_blocks=resolved.cache.num_blocks.value,
        block_size=resolved.model.block_size.value,
        prefix_caching=resolved.cache.prefix_caching.value,
        eviction=config.cache.cache_eviction,
        pin_budget=config.cache.cache_pin_budget,
        fingerprint=fingerprint,
    )


def _limits(config: EngineConfig, resolved: ResolvedConfig) -> SchedulerLimits:
    scheduling = config.scheduling
    return SchedulerLimits(
        max_num_seqs=resolved.model.max_num_seqs.value,
        max_num_batched_tokens=resolved.model.max_num_batched_tokens.value,
        max_model_len=resolved.model.max_model_len.value,
        enable_chunked_prefill=resolved.model.chunked.value,
        policy=scheduling.scheduling_policy,
        max_waiting=scheduling.max_waiting,
        max_waiting_tokens=scheduling.max_waiting_tokens,
        target_itl=resolved.model.target_itl_ms.value / 1000 or None,
        request_timeout=scheduling.request_timeout,
        ttft_deadline=scheduling.ttft_deadline,
        tenant_weights=read_weights(scheduling.tenant_weights),
    )


def _info(resolved: ResolvedConfig, source: ModelSource, formats: tuple[str, ...], seconds: float) -> EngineInfo:
    model = resolved.model
    return EngineInfo(
        max_model_len=model.max_model_len.value,
        num_blocks=resolved.cache.num_blocks.value,
        block_size=model.block_size.value,
        max_num_seqs=model.max_num_seqs.value,
        max_num_batched_tokens=model.max_num_batched_tokens.value,
        vocab=source.spec.vocab,
        start_seconds=seconds,
        fingerprint=_fingerprint(resolved, source, formats),
    )


def _fingerprint(
    resolved: ResolvedConfig, source: ModelSource, formats: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """What decides the bits of answers. Batch, threads, chunks and cache hits do not."""
    model = resolved.model
    kernels = (ABI_VERSION, model.backend.value, model.isa.value, library_digest(model.isa.value))
    settings = (formats, model.linear_compute.value, repr(model.cache_types), model.max_model_len.value)
    return (
        ("model", source.fingerprint(times=False)),
        ("kernels", hashlib.sha256(repr(kernels).encode()).hexdigest()),
        ("settings", hashlib.sha256(repr(settings).encode()).hexdigest()),
    )


def _tell(engine: Engine, from_cache: bool) -> None:
    model, log = engine.resolved.model, logger("engine")
    log.info(
        "%s: %s in %s, %s",
        engine.source.family,
        format_size(engine.memory.weight_bytes),
        model.weights.value if model.quantization.value == "none" else model.quantization.value,
        "packed weights from the cache" if from_cache else f"packed from {format_size(engine.source.file_bytes)}",
    )
    log.info(
        "%s %s on %d %s, KV cache %s in %s (%s)",
        *(
            model.backend.value,
            model.isa.value,
            model.threads.value,
            "thread" if model.threads.value == 1 else "threads",
        ),
        *(format_size(engine.resolved.cache.cache_bytes.value), model.cache_types),
        engine.resolved.cache.num_blocks.reason,
    )
    if chosen := [f"{name} {c.value}" for name, c in engine.resolved.choices() if c.reason.startswith(BY_PROFILE)]:
        log.info("the profile sets %s", ", ".join(chosen))


def _matrices(weights: DecoderWeights[Any]) -> list[PackedWeight]:
    """Every matrix once; a tied head is the embedding."""
    found = [weights.embed, weights.head, weights.positions, weights.project_in, weights.project_out]
    found += [weights.token_types, *(layer.weight for layer in weights.pooled_head)]
    for layer in weights.layers:
        for block in layer.blocks:
            for branch in block.branches:
                body = branch.body
                found += [
                    value for name in type(body).__slots__ if isinstance(value := getattr(body, name), PackedWeight)
                ]
    unique = {id(weight): weight for weight in found if weight is not None}
    return list(unique.values())


def _formats(matrices: list[PackedWeight]) -> tuple[str, ...]:
    return tuple(format for matrix in matrices for format in matrix.formats)


def _segment_bytes(weight: PackedWeight) -> int:
    """Bytes of a matrix as packed; numpy's and torch's arrays both know theirs."""
    return sum(int(getattr(segment.data, "nbytes", 0)) for segment in weight.segments)


def _resident_bytes() -> int:
    """Memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * mmap.PAGESIZE
