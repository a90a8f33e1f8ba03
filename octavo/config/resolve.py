"""Turns what was asked into what will happen: every "decide for me" becomes a value with its reason.

Here before weights are loaded (types, sizes, threads); `config/resolve_cache.py` after, when what is left of the memory
is known.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Generic, TypeVar

from octavo.config.cache_types import CacheTypes, choose_cache_dtype, plain_cache_dtype
from octavo.config.engine import EngineConfig
from octavo.config.environment import Environment
from octavo.config.machine import Machine, Placement, place_threads
from octavo.config.profile import PROFILES, Profile
from octavo.config.quantization import (
    EXCEPT_OF_SCHEME,
    FORMAT_OF_DTYPE,
    FORMAT_OF_SCHEME,
    choose_linear_compute,
    choose_quantization,
)
from octavo.config.sizing import read_wish
from octavo.config.values import parse_size
from octavo.errors import ConfigError, UnsupportedError

T = TypeVar("T")

ASKED = "asked for"
BY_PROFILE = "profile"  # how the reasons of its choices begin
# A step's buffers and a prompt chunk's time grow with these; a small machine gets small ones.
_SMALL_MACHINE_THREADS = 8
_POOLED_SEQS = 256
_WHOLE_STEP = 4096  # tokens of texts that share a step when nobody is kept waiting by it
_LOGITS_SHARE = 0.05  # of memory, for the logits of all sequences


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value and why it is this one."""

    value: T
    reason: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What choices depend on, read from the model before its weights are loaded. Sizes in bytes."""

    name: str
    max_positions: int
    vocab: int
    format: str  # in which most weights are stored: "bf16", "q4_k", ...
    file_bytes: int
    method: str = ""  # what a quantized checkpoint says it is: "gptq: 4 bits, groups of 128, ..."
    coded: str = ""  # the format of its quantized layers, beside which an embedding may take more bytes
    pooled: bool = False  # nothing is generated
    whole: bool = False  # texts are computed in one step, since their tokens see each other both ways
    usual_length: int | None = None  # tokens of a text that it is made for, when not as many as it has positions
    rotates: bool = True  # what it caches may be kept in the types that rotate: int8 and int4


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Everything that can be known before weights are loaded."""

    backend: Choice[str]
    isa: Choice[str]
    threads: Choice[int]
    memory_nodes: Choice[int]
    placement: Choice[Placement]
    weights: Choice[str]
    quantization: Choice[str]
    linear_compute: Choice[str]
    kv_cache_dtype: Choice[str]
    block_size: Choice[int]
    max_model_len: Choice[int]
    max_num_seqs: Choice[int]
    max_num_batched_tokens: Choice[int]
    weight_cache_dir: Choice[Path | None]
    weight_cache_bytes: Choice[int]
    target_itl_ms: Choice[float] = Choice(0.0, "no target is asked for")  # 0: none
    kv_cache_dtype_skip_layers: Choice[tuple[str, ...]] = Choice((), "not asked for")
    chunked: Choice[bool] = Choice(True, "the default")
    whole: Choice[bool] = Choice(False, "each token sees those before it")

    @property
    def cache_types(self) -> CacheTypes:
        """How each layer's keys and values are kept."""
        plain = plain_cache_dtype(self.weights.value)[0]
        return CacheTypes(self.kv_cache_dtype.value, self.kv_cache_dtype_skip_layers.value, plain)


@dataclass(frozen=True, slots=True)
class ResolvedCache:
    """What the KV cache gets."""

    num_blocks: Choice[int]
    cache_bytes: Choice[int]
    prefix_caching: Choice[bool]
    cache_eviction: Choice[str]
    pinned_blocks: Choice[int]  # at most


@dataclass(frozen=True, slots=True)
class ResolvedTiers:
    """What lies below the KV cache. Sizes in bytes; 0: there is no such tier."""

    kv_host: Choice[int] = Choice(0, "not asked for")
    kv_disk: Choice[int] = Choice(0, "not asked for")
    kv_disk_path: Choice[str] = Choice("none", "kv_disk is not asked for")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """What will happen: no None, no "auto"."""

    model: ResolvedModel
    cache: ResolvedCache
    tiers: ResolvedTiers = ResolvedTiers()

    def choices(self) -> list[tuple[str, Choice[object]]]:
        """Every choice with its name, in order."""
        parts = (self.model, self.cache, self.tiers)
        return [(f.name, getattr(part, f.name)) for part in parts for f in fields(part)]


def resolve_model(
    config: EngineConfig, facts: ModelFacts, machine: Machine, environment: Environment, isas: tuple[str, ...]
) -> ResolvedModel:
    """Decide all that does not depend on the memory that weights take.

    Args:
        isas: native builds that are installed and run here, best first; empty when there is none.

    Raises:
        ConfigError, UnsupportedError: options exclude each other, this machine or this model.
    """
    _refuse_what_is_missing(config)
    whole = _whole(config, facts)
    threads = choose_threads(config.execution.threads, machine, environment)
    max_model_len = _max_model_len(config, facts)
    max_num_seqs = _max_num_seqs(config, facts, machine, threads.value)
    quantization = Choice(*choose_quantization(config.model.quantization, facts.format, facts.method))
    weights = _weights(config, facts, quantization.value)
    backend, isa = _backend(config, environment, isas)
    compute = choose_linear_compute(
        config.execution.linear_compute, facts.coded or weights.value, quantization.value, backend.value
    )
    return ResolvedModel(
        backend=backend,
        isa=isa,
        threads=threads,
        memory_nodes=_memory_nodes(machine),
        placement=_placement(threads.value, machine),
        weights=weights,
        quantization=quantization,
        linear_compute=Choice(*compute),
        kv_cache_dtype=Choice(
            *choose_cache_dtype(
                config.cache,
                weights.value,
                quantization.value if compute[0] == "int8" else "none",
                whole=facts.whole,
                rotates=facts.rotates,
            )
        ),
        kv_cache_dtype_skip_layers=_skipped_layers(config),
        block_size=_asked_or_default(config.cache.block_size, 16, "the default"),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=_max_batched_tokens(
            config, facts, threads.value, max_num_seqs.value, max_model_len.value
        ),
        weight_cache_dir=_weight_cache_dir(config, environment),
        weight_cache_bytes=Choice(parse_size(config.model.weight_cache_size), "weight_cache_size"),
        target_itl_ms=Choice(0.0, "nothing is generated") if facts.whole else _target_itl_ms(config),
        chunked=_chunked(config, facts),
        whole=whole,
    )


def profile_of(config: EngineConfig) -> Profile:
    """What `--profile` sets where no other flag does."""
    return PROFILES[config.scheduling.profile]


def by_profile(config: EngineConfig, default: str) -> str:
    """The reason of a choice that the profile has a part in."""
    name = config.scheduling.profile
    return default if name == "balanced" else f"{BY_PROFILE} {name}: {PROFILES[name].aim}"


def _target_itl_ms(config: EngineConfig) -> Choice[float]:
    asked = config.scheduling.target_itl_ms
    if asked is not None:
        return Choice(asked, ASKED)
    wanted = profile_of(config).target_itl_ms
    if wanted and config.scheduling.enable_chunked_prefill:
        return Choice(wanted, by_profile(config, ""))
    return Choice(0.0, "no target is asked for")


def _refuse_what_is_missing(config: EngineConfig) -> None:
    read_wish(config.cache)  # flags that contradict each other are told before anything is loaded
    if config.model.trust_remote_code:
        raise UnsupportedError("trust_remote_code: Octavo never runs code from a checkpoint; leave it out")
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(config.execution, name) != 1:
            raise UnsupportedError(f"{name} above 1 is not supported yet")
    scheduling = config.scheduling
    if scheduling.tenant_weights and scheduling.scheduling_policy != "fair":
        raise ConfigError("tenant_weights: shares are kept by scheduling_policy 'fair' alone; ask for that, too")


def _whole(config: EngineConfig, facts: ModelFacts) -> Choice[bool]:
    """Whether nothing is kept beyond a step.

    Raises:
        ConfigError: there is to be a tier for what is kept.
    """
    if not facts.whole:
        return Choice(False, "each token sees those before it")
    if config.cache.kv_host is not None or config.cache.kv_disk is not None:
        raise ConfigError(
            f"kv_host and kv_disk keep cached prefixes, but {facts.name} computes texts whole: leave them out"
        )
    return Choice(True, "tokens see each other both ways: a text is computed in one step")


def _chunked(config: EngineConfig, facts: ModelFacts) -> Choice[bool]:
    if facts.whole:
        return Choice(False, "texts are computed whole")
    asked = config.scheduling.enable_chunked_prefill
    return Choice(asked, "the default" if asked else ASKED)


def _asked_or_default(asked: T, default: T, reason: str) -> Choice[T]:
    return Choice(asked, reason if asked == default else ASKED)


def choose_threads(wanted: int | None, machine: Machine, environment: Environment) -> Choice[int]:
    """As many as `wanted` or the environment says; else one for each core, but no more than the container's time
    suffices for: rounded down, because a thread that is stopped for the rest of a period keeps all others waiting."""
    cores, quota = len(machine.cores), machine.cpu_quota
    for asked, reason in ((wanted, ASKED), (environment.threads, "OCTAVO_THREADS")):
        if asked is not None:
            return Choice(asked, f"{reason}{_too_many(asked, machine)}")
    if quota is not None and quota < cores:
        return Choice(max(1, int(quota)), f"the container grants {quota:g} CPUs' worth of time")
    return Choice(cores, f"one for each of the {cores} cores this process may use")


def _too_many(threads: int, machine: Machine) -> str:
    """What is wrong with so many threads on a machine, to follow a reason; "": nothing."""
    quota, cores, cpus = machine.cpu_quota, len(machine.cores), len(machine.cpus)
    if quota is not None and threads > quota:
        return f", but the container grants {quota:g} CPUs' worth of time: they will be stopped and wait for each other"
    if threads > cpus:
        return f", but only {cpus} CPUs may be used: they will wait for each other"
    return f"; two threads of one core share its arithmetic; cores there are: {cores}" if threads > cores else ""


def _memory_nodes(machine: Machine) -> Choice[int]:
    """Where memory lies: who first writes a page decides its node."""
    count = max(1, len(machine.nodes))
    if count == 1:
        return Choice(1, "all memory is equally near to all cores this process may use")
    sizes = ", ".join(f"{len(node)} CPUs" for node in machine.nodes)
    advice = "one server a node, under numactl --cpunodebind=N --membind=N, reads no memory of another"
    return Choice(count, f"{sizes}: weights lie beside the threads that packed them, cached ones where read; {advice}")


def _placement(threads: int, machine: Machine) -> Choice[Placement]:
    placement = place_threads(threads, machine)
    if placement.nodes:
        return Choice(placement, "each on a CPU of its own, by node, with its own part of each matrix beside it")
    if len(machine.nodes) < 2:
        return Choice(placement, "memory has one part")
    return Choice(placement, "there are fewer CPUs than threads, or one thread")


def _backend(config: EngineConfig, environment: Environment, isas: tuple[str, ...]) -> tuple[Choice[str], Choice[str]]:
    if config.execution.backend == "torch":
        return Choice("torch", ASKED), Choice("none", "the torch backend has no native kernels")
    asked = config.execution.isa if config.execution.isa != "auto" else environment.isa
    backend = Choice("native", ASKED if config.execution.backend == "native" else "the CPU's kernels")
    if asked not in (None, "auto"):
        if asked not in isas:
            usable = ", ".join(isas) or "none"
            raise ConfigError(f"isa {asked}: this machine and build run {usable}; leave it out, or choose one of these")
        return backend, Choice(asked, ASKED if config.execution.isa != "auto" else "OCTAVO_ISA")
    if not isas:
        raise ConfigError("the native libraries are missing from this installation: install Octavo again, see README")
    return backend, Choice(isas[0], f"the best of {', '.join(isas)} that this CPU runs")


def _weights(config: EngineConfig, facts: ModelFacts, quantization: str) -> Choice[str]:
    """How weights are stored in memory; quantized ones stay as they are, whatever `dtype` says."""
    if quantization in FORMAT_OF_SCHEME:
        reason = f"quantization {quantization}{EXCEPT_OF_SCHEME.get(quantization, '')}"
        return Choice(FORMAT_OF_SCHEME[quantization], reason)
    asked = FORMAT_OF_DTYPE.get(config.model.dtype)
    if asked is None or asked == facts.format:
        return Choice(facts.format, "as in the file")
    if facts.format not in FORMAT_OF_DTYPE.values():
        return Choice(facts.format, f"as in the file; dtype {config.model.dtype} holds for its unquantized tensors")
    return Choice(asked, "asked for with dtype")


def _skipped_layers(config: EngineConfig) -> Choice[tuple[str, ...]]:
    skipped = tuple(part for item in config.cache.kv_cache_dtype_skip_layers for part in item.split(",") if part)
    return Choice(skipped, ASKED if skipped else "not asked for")


def _max_model_len(config: EngineConfig, facts: ModelFacts) -> Choice[int]:
    asked = config.model.max_model_len
    if asked is None:
        if facts.usual_length is not None and facts.usual_length < facts.max_positions:
            return Choice(facts.usual_length, f"what the model is made for; it has {facts.max_positions} positions")
        return Choice(facts.max_positions, "the model's context length")
    if asked > facts.max_positions:
        raise ConfigError(f"max_model_len {asked} exceeds the {facts.max_positions} positions that {facts.name} knows")
    return Choice(asked, ASKED)


def _max_num_seqs(config: EngineConfig, facts: ModelFacts, machine: Machine, threads: int) -> Choice[int]:
    if config.scheduling.max_num_seqs is not None:
        return Choice(config.scheduling.max_num_seqs, ASKED)
    profile = profile_of(config)
    if facts.pooled:
        return Choice(_POOLED_SEQS, "short texts share a step")
    wanted = profile.scaled(64 if threads <= _SMALL_MACHINE_THREADS else 256, profile.sequences)
    affordable = int(machine.memory_total * _LOGITS_SHARE) // (2 * 4 * facts.vocab)  # float32, raw and processed
    if affordable < wanted:
        return Choice(max(1, affordable), f"more would need over 5 % of memory for logits of {facts.vocab} tokens each")
    return Choice(wanted, by_profile(config, f"the default with {threads} threads"))


def _max_batched_tokens(
    config: EngineConfig, facts: ModelFacts, threads: int, max_num_seqs: int, max_model_len: int
) -> Choice[int]:
    asked = config.scheduling.max_num_batched_tokens
    whole = not _chunked(config, facts).value
    if asked is not None:
        if asked < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens {asked} is below max_num_seqs {max_num_seqs}: raise or lower one"
            )
        if whole and asked < max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_batched_tokens {asked} must reach max_model_len {max_model_len}"
            )
        return Choice(asked, ASKED)
    if facts.whole:
        return Choice(max(_WHOLE_STEP, max_model_len), "whole texts, as many as fit")
    profile = profile_of(config)
    wanted = profile.scaled(512 if threads <= _SMALL_MACHINE_THREADS else 2048, profile.step_tokens)
    wanted = max(min(wanted, max_num_seqs * max_model_len), max_num_seqs)  # more can never come together
    if whole and wanted < max_model_len:
        return Choice(max_model_len, "max_model_len, since prompts are not chunked")
    default = f"the default with {threads} threads: long prompts delay running ones by one chunk only"
    return Choice(wanted, by_profile(config, default))


def _weight_cache_dir(config: EngineConfig, environment: Environment) -> Choice[Path | None]:
    if not config.model.weight_cache:
        return Choice(None, "--no-weight-cache")
    if config.model.weight_cache_dir is not None:
        return Choice(Path(os.path.expanduser(config.model.weight_cache_dir)), ASKED)
    return Choice(environment.cache_dir / "weights", "in the cache directory (OCTAVO_CACHE_DIR)")
