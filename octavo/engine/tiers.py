"""Puts tiers below a KV cache: sizes become pages, the directory is opened, books and transfers are made."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import state_pages
from octavo.cache.prefix import tails_of
from octavo.cache.tier import HostLevel, SlowLevel
from octavo.cache.tiers import CacheTiers, TierOptions
from octavo.config.resolve import ResolvedConfig
from octavo.config.values import format_size
from octavo.errors import ConfigError
from octavo.execution.tiers.disk import DiskTier, TierInUseError
from octavo.execution.tiers.envelope import Envelope
from octavo.execution.tiers.interface import Tier
from octavo.execution.tiers.pages import DevicePages
from octavo.execution.tiers.transfers import TierTransfers
from octavo.kernels.cpu.library import ABI_VERSION
from octavo.model.source import ModelSource
from octavo.telemetry.log import logger

_STAGING_BYTES = 64 << 20  # of host memory, when it is only the way to and from slower tiers
# Raised when the numbers in a page change for the same model and options: rounding of kernels, page layout.
_NUMBERS = 3


@dataclass(frozen=True, slots=True)
class EngineTiers:
    """Tiers of one engine: the scheduler's side and the worker's."""

    books: CacheTiers
    transfers: TierTransfers


def cache_fingerprint(
    source: ModelSource, formats: Sequence[str], resolved: ResolvedConfig, groups: Sequence[KVCacheGroup]
) -> bytes:
    """32 bytes that name whatever decides the numbers in cached blocks, and how they lie there.

    Args:
        formats: those of all matrices, in order; beside quantized ones some may be in the type of `dtype`.
    """
    model = resolved.model
    parts = (
        *(source.fingerprint(), tuple(formats), model.cache_types, model.block_size.value),
        *(model.linear_compute.value, model.backend.value, model.isa.value, ABI_VERSION, _NUMBERS, repr(groups)),
    )
    digest = hashlib.blake2b(digest_size=32, person=b"octavo-pages")
    for part in parts:
        encoded = str(part).encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def build_tiers(
    resolved: ResolvedConfig, groups: Sequence[KVCacheGroup], device: DevicePages, fingerprint: bytes, free: int
) -> EngineTiers | None:
    """What is asked for; None when that is nothing.

    Args:
        free: bytes of memory.

    Raises:
        ConfigError: a tier is too small or too large, or its directory cannot be used.
    """
    asked = resolved.tiers
    if not asked.kv_host.value and not asked.kv_disk.value:
        return None
    page_bytes, block_size = device.page_bytes, resolved.model.block_size.value
    envelope = Envelope(fingerprint, page_bytes)
    slow: list[Tier] = []
    if asked.kv_disk.value:
        _check_size("kv_disk", asked.kv_disk.value, envelope.blob_bytes)
        slow += _open_disk(Path(asked.kv_disk_path.value), asked.kv_disk.value, envelope)
    if asked.kv_host.value:
        _check_size("kv_host", asked.kv_host.value, page_bytes)
        if asked.kv_host.value > free:
            raise ConfigError(
                f"kv_host {format_size(asked.kv_host.value)} exceeds the {format_size(free)} that are free"
            )
    elif not slow:
        return None
    pages = asked.kv_host.value // page_bytes or _staging_pages(resolved, groups, page_bytes)
    generation = max((tier.generation for tier in slow), default=0)
    options = TierOptions(tails_of(groups, block_size), block_size, page_bytes, generation=generation)
    levels = [SlowLevel(tier.name, tier.capacity, tier.keys()) for tier in slow]
    books = CacheTiers(options, HostLevel(pages, keeps=bool(asked.kv_host.value)), levels)
    return EngineTiers(books, TierTransfers(device, envelope, pages, slow))


def _staging_pages(resolved: ResolvedConfig, groups: Sequence[KVCacheGroup], page_bytes: int) -> int:
    """Room for what two steps push out, and for a prefix on its way back."""
    model = resolved.model
    step = model.max_num_batched_tokens.value // model.block_size.value + model.max_num_seqs.value
    growing = sum(not group.is_state for group in groups)
    state = sum(state_pages(groups))
    return max(2 * (step * growing + state), _STAGING_BYTES // page_bytes)


def _check_size(name: str, size: int, page_bytes: int) -> None:
    if size < page_bytes:
        raise ConfigError(f"{name} {format_size(size)} does not hold one block of {format_size(page_bytes)}")


def _open_disk(path: Path, size: int, envelope: Envelope) -> list[Tier]:
    """The tier; none when another engine has it, since this one can do without."""
    log = logger("tiers")
    try:
        tier = DiskTier(path, size, envelope.fingerprint, envelope.blob_bytes)
    except TierInUseError as error:
        log.warning("%s: this engine goes on without", error)
        return []
    found = tier.findings
    log.info("kv_disk %s: %d blocks of up to %d are there", path, len(tier.keys()), tier.capacity)
    if found.torn or found.stale or found.foreign:
        log.info("ignored: %d torn, %d stale, %d foreign files", found.torn, found.stale, found.foreign)
    return [tier]
