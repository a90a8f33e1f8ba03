"""How large the KV cache is, what of it is reused, and what lies below it, each with its reason."""

import os
from dataclasses import replace
from pathlib import Path

from octavo.config.engine import CacheConfig, EngineConfig
from octavo.config.environment import Environment
from octavo.config.resolve import ASKED, Choice, ResolvedCache, ResolvedModel, ResolvedTiers, by_profile, profile_of
from octavo.config.sizing import Request, Setup, grant, read_wish, too_small
from octavo.config.values import format_size, parse_size
from octavo.errors import ConfigError, UnsupportedError


def resolve_cache(
    config: EngineConfig,
    model: ResolvedModel,
    page_bytes: int,
    least_blocks: int,
    memory_available: int,
    environment_bytes: int | None = None,
) -> ResolvedCache:
    """Decide the number of blocks.

    Args:
        page_bytes: what a block takes, all layers of its group together.
        least_blocks: what one sequence of the longest length needs.
        memory_available: bytes free for it, weights and buffers counted.
        environment_bytes: what the environment says, where no flag does.

    Raises:
        ConfigError: the memory does not hold what is asked for, or one sequence of `max_model_len` tokens.
    """
    demand = _setup(model).demand(page_bytes, least_blocks)
    wish = read_wish(config.cache, environment_bytes)
    granted = grant(wish, profile_of(config), _default_cache_reason(config), demand, memory_available)
    problem = granted.problem
    if not problem and granted.blocks < least_blocks:
        problem = too_small(granted, page_bytes, least_blocks, sequences=1, length=model.max_model_len.value)
    if problem:
        raise ConfigError(f"{problem}: lower --max-model-len, or change --kv-cache-size (--kv-cache-memory-bytes)")
    blocks = Choice(granted.blocks, granted.reason)
    return ResolvedCache(
        blocks,
        Choice(blocks.value * page_bytes, f"{blocks.value} blocks of {format_size(page_bytes)}"),
        *(_no_reuse("nothing is kept beyond a step") if model.whole.value else _reuse(config.cache, blocks.value)),
    )


def _reuse(asked: CacheConfig, blocks: int) -> tuple[Choice[bool], Choice[str], Choice[int]]:
    """Whether blocks are reused, which are forgotten first, and how many may be pinned."""
    if not asked.enable_prefix_caching:
        return _no_reuse("enable_prefix_caching is off")
    eviction, default = asked.cache_eviction, CacheConfig().cache_eviction
    return (
        Choice(True, "equal beginnings are computed once"),
        Choice(eviction, "the default" if eviction == default else ASKED),
        Choice(int(asked.cache_pin_budget * blocks), f"cache_pin_budget {asked.cache_pin_budget:g}"),
    )


def _no_reuse(why: str) -> tuple[Choice[bool], Choice[str], Choice[int]]:
    return Choice(False, why), Choice("none", why), Choice(0, why)


def _setup(model: ResolvedModel) -> Setup:
    """The choices that memory depends on."""
    return Setup(
        max_model_len=model.max_model_len.value,
        max_num_seqs=model.max_num_seqs.value,
        max_num_batched_tokens=model.max_num_batched_tokens.value,
        cache_types=model.cache_types,
        block_size=model.block_size.value,
        chunked=model.chunked.value,
        whole=model.whole.value,
    )


def sizing_request(config: EngineConfig, model: ResolvedModel, environment: Environment, available: int) -> Request:
    """The question whether a configuration fits, of which nothing is loaded yet.

    Args:
        available: bytes that are free before anything is loaded.
    """
    return Request(
        setup=_setup(model),
        wish=read_wish(config.cache, environment.kv_cache_bytes),
        profile=profile_of(config),
        default_reason=_default_cache_reason(config),
        available=available,
        reserved=0 if config.cache.kv_host is None else parse_size(config.cache.kv_host),
    )


def resolve_tiers(config: EngineConfig, environment: Environment, backend: str) -> ResolvedTiers:
    """Decide what lies below the KV cache.

    Raises:
        ConfigError: there is nothing for tiers to keep, or a path without a size.
        UnsupportedError: the backend cannot copy its cache out.
    """
    asked = config.cache
    if asked.kv_disk_path is not None and asked.kv_disk is None:
        raise ConfigError("kv_disk_path needs kv_disk, the space that may be used there")
    if asked.kv_host is None and asked.kv_disk is None:
        return ResolvedTiers()
    if not asked.enable_prefix_caching:
        raise ConfigError("kv_host and kv_disk keep cached prefixes, but enable_prefix_caching is off")
    if backend != "native":
        raise UnsupportedError(f"kv_host and kv_disk are not supported with the {backend} backend")
    tiers = ResolvedTiers()
    if asked.kv_host is not None:
        reason = f"{ASKED}; the KV cache is in host memory already, and would gain more from it"
        tiers = replace(tiers, kv_host=Choice(parse_size(asked.kv_host), reason))
    if asked.kv_disk is not None:
        path = Choice(str(environment.cache_dir / "kv"), "in the cache directory (OCTAVO_CACHE_DIR)")
        if asked.kv_disk_path is not None:
            path = Choice(str(Path(os.path.expanduser(asked.kv_disk_path))), ASKED)
        tiers = replace(tiers, kv_disk=Choice(parse_size(asked.kv_disk), ASKED), kv_disk_path=path)
    return tiers


def _default_cache_reason(config: EngineConfig) -> str:
    size = format_size(profile_of(config).cache_bytes)
    return by_profile(config, f"{size}, or one sequence of full length if that is more")
