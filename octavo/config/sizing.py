"""How much of the memory the KV cache gets, whether a configuration fits the machine, and what does when it does not.

Pure arithmetic: what a model takes comes from a `Footprint`, which packs nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from octavo.config.cache_types import CacheTypes
from octavo.config.engine import CacheConfig, choices_of
from octavo.config.profile import Profile
from octavo.config.values import format_size, parse_cache_size, parse_size
from octavo.errors import ConfigError, UnsupportedError

_MIB = 1 << 20
_LEAST_LENGTH = 64  # tokens; a shorter context is no alternative worth telling
_SHOWN = 3  # alternatives
_LARGE_SHARE = 0.9  # of what is free: as much as can be recommended


# --- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """How large the cache shall be; at most one of `share` (of what is free), `size` (bytes) and `blocks` is set.

    `source` names the option for messages. `most`: `share` is only a bound on the default size.
    """

    source: str
    share: float | None = None
    size: int | None = None
    blocks: int | None = None
    leave_free: int = 0  # bytes
    most: bool = False


def read_wish(cache: CacheConfig, environment_bytes: int | None = None) -> Wish:
    """What the flags together ask for.

    Args:
        environment_bytes: VLLM_CPU_KVCACHE_SPACE, which any flag for the size overrules.

    Raises:
        ConfigError: two flags contradict each other.
    """
    named = ("kv_cache_size", "kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
    given = [name for name in named if getattr(cache, name) is not None]
    if len(given) > 1:
        both = " and ".join(f"{name} {getattr(cache, name)}" for name in given)
        raise ConfigError(f"{both}: each sizes the KV cache, give one of them")
    leave = 0 if cache.leave_free is None else parse_size(cache.leave_free)
    if cache.num_gpu_blocks_override is not None:
        if leave:
            raise ConfigError(
                f"num_gpu_blocks_override {cache.num_gpu_blocks_override} and leave_free {cache.leave_free}: "
                "a number of blocks looks at no memory, give one of them"
            )
        return Wish("num_gpu_blocks_override", blocks=cache.num_gpu_blocks_override)
    if cache.kv_cache_size is not None:
        asked = parse_cache_size(cache.kv_cache_size)
        source = f"kv_cache_size {cache.kv_cache_size}"
        if isinstance(asked, float):
            return Wish(source, share=asked, leave_free=leave)
        return Wish(source, size=asked, leave_free=leave)
    if cache.kv_cache_memory_bytes is not None:
        return Wish("kv_cache_memory_bytes", size=parse_size(cache.kv_cache_memory_bytes), leave_free=leave)
    if cache.gpu_memory_utilization is not None:
        return Wish("gpu_memory_utilization", share=cache.gpu_memory_utilization, leave_free=leave, most=True)
    if environment_bytes is not None:
        return Wish("VLLM_CPU_KVCACHE_SPACE", size=environment_bytes, leave_free=leave)
    if leave:
        return Wish(f"leave_free {cache.leave_free}", share=1.0, leave_free=leave)
    return Wish("the default", most=True)


# --- what it comes to ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """What the cache is for. `page`: bytes of a block; `sequence`: most blocks of one sequence of full length; `step`:
    blocks of the largest step, when nothing is kept beyond one, else 0."""

    page: int
    sequence: int
    max_num_seqs: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Blocks, why so many, and what makes that impossible ("": nothing)."""

    blocks: int
    reason: str
    problem: str = ""


def grant(wish: Wish, profile: Profile, default_reason: str, demand: Demand, free: int) -> Grant:
    """The number of blocks.

    Args:
        default_reason: why the profile's cache size.
        free: bytes left when weights and buffers are there; may be negative.
    """
    if wish.blocks is not None:
        return Grant(wish.blocks, wish.source)
    room = max(0, free - wish.leave_free)
    left = f"the {format_size(max(0, free))} that are free"
    if wish.leave_free:
        left += f", less the {format_size(wish.leave_free)} to leave"
    if wish.leave_free and room == 0:
        problem = f"leave_free {format_size(wish.leave_free)} exceeds the {format_size(max(0, free))} that are free"
        return Grant(0, wish.source, problem)
    if wish.size is not None:
        problem = f"{wish.source} ({format_size(wish.size)}) exceeds {left}" if wish.size > room else ""
        return Grant(wish.size // demand.page, wish.source, problem)
    if not wish.most:
        share = wish.share or 1.0
        return Grant(int(room * share) // demand.page, f"{wish.source}: {share:.0%} of {left}")
    share = profile.cache_share if wish.share is None else wish.share
    affordable = int(room * share) // demand.page
    if demand.step and affordable >= demand.step:
        return Grant(demand.step, "enough for the tokens of a step; nothing is kept beyond it")
    wanted = max(profile.cache_bytes // demand.page, demand.sequence)
    useful = demand.sequence * demand.max_num_seqs
    if affordable < min(wanted, useful):
        return Grant(affordable, f"{share:.0%} of {left}")
    if useful <= wanted:
        return Grant(useful, f"enough for {demand.max_num_seqs} sequences of full length")
    return Grant(wanted, default_reason)


# --- whether it fits -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices that memory depends on."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cache_types: CacheTypes
    block_size: int
    chunked: bool = True  # prompts may be split over steps
    whole: bool = False  # nothing is kept beyond a step

    def demand(self, page: int, sequence: int) -> Demand:
        """What the cache is for; arguments as the fields of Demand."""
        blocks = self.max_num_batched_tokens // self.block_size + self.max_num_seqs
        return Demand(page, sequence, self.max_num_seqs, max(sequence, blocks) if self.whole else 0)

    def with_cache(self, dtype: str) -> "Setup":
        """The same with another type of keys and values, of which the same layers are left out."""
        return replace(self, cache_types=replace(self.cache_types, dtype=dtype))


class Footprint(Protocol):
    """Bytes and blocks that a model takes under a setup."""

    @property
    def weight_bytes(self) -> int:
        """Weights, as packed for the kernels."""
        ...

    def buffer_bytes(self, setup: Setup) -> int:
        """Everything beside weights and cache: activations of the largest step, logits, rope tables, token history."""
        ...

    def page_bytes(self, setup: Setup) -> int:
        """A cache block.

        Raises:
            ConfigError, UnsupportedError: this model or machine has no such cache.
        """
        ...

    def sequence_blocks(self, setup: Setup) -> int:
        """Most blocks that a sequence of `max_model_len` tokens ever holds."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A configuration on a machine. `available`: bytes free before anything is loaded; `reserved`: bytes that other
    parts of the engine were promised; `sequences`: how many of full length must fit at a time."""

    setup: Setup
    wish: Wish
    profile: Profile
    default_reason: str
    available: int
    reserved: int = 0
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """What a configuration comes to. Bytes; `problem` is "" when it fits."""

    weight_bytes: int
    buffer_bytes: int
    page_bytes: int
    sequence_blocks: int
    free: int  # left for the cache; negative when the rest does not fit
    blocks: int
    reason: str
    problem: str

    @property
    def cache_bytes(self) -> int:
        """The cache."""
        return self.blocks * self.page_bytes

    @property
    def sequences(self) -> int:
        """Sequences of full length that the cache holds at a time."""
        return self.blocks // max(1, self.sequence_blocks)


def measure(footprint: Footprint, request: Request) -> Fit:
    """Lay weights, buffers and cache into the memory that is there."""
    setup = request.setup
    weights, buffers = footprint.weight_bytes, footprint.buffer_bytes(setup)
    page, sequence = footprint.page_bytes(setup), footprint.sequence_blocks(setup)
    free = request.available - request.reserved - weights - buffers
    demand = setup.demand(page, sequence)
    granted = grant(request.wish, request.profile, request.default_reason, demand, free)
    problem = granted.problem
    needed = request.sequences * sequence
    if request.wish.blocks is None and free <= 0:
        problem = (
            f"weights take {format_size(weights)} and buffers {format_size(buffers)}"
            + (f", slower tiers {format_size(request.reserved)}" if request.reserved else "")
            + f", but {format_size(request.available)} of memory are free"
        )
    elif not problem and granted.blocks < needed:
        problem = too_small(granted, page, needed, sequences=request.sequences, length=setup.max_model_len)
    return Fit(weights, buffers, page, sequence, free, granted.blocks, granted.reason, problem)


def too_small(granted: Grant, page: int, needed: int, *, sequences: int, length: int) -> str:
    """Why a cache does not do, with the numbers."""
    many = "one sequence" if sequences == 1 else f"{sequences} sequences"
    return (
        f"a KV cache of {granted.blocks} blocks ({format_size(granted.blocks * page)}; {granted.reason}) is too small "
        f"for {many} of max_model_len {length}, which take{'s' if sequences == 1 else ''} {needed} blocks "
        f"({format_size(needed * page)})"
    )


# --- what would ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change that makes it fit: flags to copy, and what they come to."""

    flags: str
    effect: str


def alternatives(
    footprint: Footprint, request: Request, files: Sequence[tuple[str, Footprint]] = ()
) -> list[Alternative]:
    """The best changes that fit, at most three: what loses nothing first, then single changes, then two together.

    Args:
        files: footprints of the same model in smaller formats, and the flags that choose these.
    """
    found: list[Alternative] = []
    for change in (_larger_cache, _shorter, _smaller_type, _smaller_step):
        found += change(footprint, request)
    found += _smaller_files(files, request)
    if len(found) < _SHOWN:
        found += _two_changes(footprint, request)
    if len(found) < _SHOWN:
        found += _shorter_of_files(files, request)
    return found[:_SHOWN]


def _fits(footprint: Footprint, request: Request) -> bool:
    return not measure(footprint, request).problem


def _larger_cache(footprint: Footprint, request: Request) -> Iterator[Alternative]:
    """The size that is needed, when memory has it; for a size that memory does not have, the largest there is."""
    fit = measure(footprint, request)
    if request.wish.blocks is not None:
        needed = request.sequences * fit.sequence_blocks
        if fit.blocks < needed:
            yield Alternative(f"--num-gpu-blocks-override {needed}", f"{format_size(needed * fit.page_bytes)} of cache")
        return
    needed = -(-request.sequences * fit.sequence_blocks * fit.page_bytes // _MIB) * _MIB
    room = fit.free - request.wish.leave_free
    in_place = request.wish.source in ("kv_cache_memory_bytes", "gpu_memory_utilization")
    instead = f", in place of --{request.wish.source.replace('_', '-')}" if in_place else ""
    if request.wish.size is not None and request.wish.size > room and needed <= _LARGE_SHARE * room:
        size = format_size(_LARGE_SHARE * room)
        yield Alternative(f"--kv-cache-size {_LARGE_SHARE}", f"{size} of what is free{instead}")
    elif needed <= room:
        yield Alternative(f"--kv-cache-size {needed // _MIB}MiB", f"of the {format_size(room)} that are free{instead}")
    elif needed <= fit.free and request.wish.leave_free:
        left = (fit.free - needed) // _MIB
        yield Alternative(f"--leave-free {left}MiB", f"the cache takes {format_size(needed)}")


def _shorter(footprint: Footprint, request: Request) -> Iterator[Alternative]:
    """The longest context that fits."""
    length = _longest(footprint, request)
    if length:
        yield Alternative(f"--max-model-len {length}", f"instead of {request.setup.max_model_len}")


def _longest(footprint: Footprint, request: Request) -> int:
    """Tokens, whole blocks of them; 0 when even a short context does not fit. Needs grow with the length."""
    setup = request.setup

    def fits(blocks: int) -> bool:
        return _fits(footprint, replace(request, setup=replace(setup, max_model_len=blocks * setup.block_size)))

    low, high = -(-_LEAST_LENGTH // setup.block_size), (setup.max_model_len - 1) // setup.block_size
    if high < low or not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * setup.block_size


def _smaller_types(footprint: Footprint, setup: Setup) -> list[str]:
    """Cache types whose blocks are smaller than now, the most exact first."""
    sizes: dict[str, int] = {}
    for dtype in choices_of("kv_cache_dtype"):
        try:
            sizes[dtype] = footprint.page_bytes(setup.with_cache(dtype))
        except (ConfigError, UnsupportedError, KeyError):
            continue  # "auto", or none of this backend's
    now = footprint.page_bytes(setup)
    return sorted((dtype for dtype, size in sizes.items() if size < now), key=lambda dtype: -sizes[dtype])


def _smaller_type(footprint: Footprint, request: Request) -> Iterator[Alternative]:
    for dtype in _smaller_types(footprint, request.setup):
        changed = replace(request, setup=request.setup.with_cache(dtype))
        if _fits(footprint, changed):
            yield Alternative(f"--kv-cache-dtype {dtype}", f"instead of {request.setup.cache_types.dtype}")
            return


def _smaller_step(footprint: Footprint, request: Request) -> Iterator[Alternative]:
    """The largest halving of a step's sequences and tokens that fits."""
    setup = request.setup
    least_tokens = 1 if setup.chunked else setup.max_model_len
    seqs, tokens = setup.max_num_seqs, setup.max_num_batched_tokens
    while seqs > request.sequences or tokens > max(least_tokens, seqs, setup.block_size):
        seqs = max(request.sequences, seqs // 2)
        tokens = max(least_tokens, seqs, tokens // 2)
        smaller = replace(setup, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        if _fits(footprint, replace(request, setup=smaller)):
            yield Alternative(
                f"--max-num-seqs {seqs} --max-num-batched-tokens {tokens}",
                f"instead of {setup.max_num_seqs} and {setup.max_num_batched_tokens}",
            )
            return


def _smaller_files(files: Sequence[tuple[str, Footprint]], request: Request) -> Iterator[Alternative]:
    """The largest of the files with which it fits: the least is lost."""
    for flags, footprint in sorted(files, key=lambda file: -file[1].weight_bytes):
        if _fits(footprint, request):
            yield Alternative(flags, f"weights take {format_size(footprint.weight_bytes)}")
            return


def _shorter_of_files(files: Sequence[tuple[str, Footprint]], request: Request) -> Iterator[Alternative]:
    """Smaller weights and the context that they leave room for: the largest weights first."""
    for flags, footprint in sorted(files, key=lambda file: -file[1].weight_bytes):
        length = 0 if _fits(footprint, request) else _longest(footprint, request)
        if length:
            yield Alternative(
                f"{flags} --max-model-len {length}",
                f"weights take {format_size(footprint.weight_bytes)}; instead of {request.setup.max_model_len} tokens",
            )


def _two_changes(footprint: Footprint, request: Request) -> Iterator[Alternative]:
    """A shorter context together with another saving, where that leaves more of it."""
    setup, alone = request.setup, _longest(footprint, request)
    savings: list[tuple[str, Request]] = []
    if request.wish.most:
        large = Wish(f"kv_cache_size {_LARGE_SHARE}", share=_LARGE_SHARE, leave_free=request.wish.leave_free)
        savings.append((f"--kv-cache-size {_LARGE_SHARE}", replace(request, wish=large)))
    for dtype in _smaller_types(footprint, setup):
        savings.append((f"--kv-cache-dtype {dtype}", replace(request, setup=setup.with_cache(dtype))))
    if setup.chunked:
        seqs = min(request.sequences, setup.max_num_seqs)
        tokens = max(seqs, min(setup.block_size, setup.max_num_batched_tokens))
        smaller = replace(setup, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        flags = f"--max-num-seqs {seqs} --max-num-batched-tokens {tokens}"
        savings.append((flags, replace(request, setup=smaller)))
    for flags, saved in savings:
        length = _longest(footprint, saved)
        if length > alone:
            yield Alternative(f"{flags} --max-model-len {length}", f"instead of {setup.max_model_len} tokens")


def least(footprint: Footprint, request: Request, files: Sequence[tuple[str, Footprint]] = ()) -> Alternative:
    """The smallest that can be made of the model: what it takes, for a machine in whose memory nothing fits."""
    setup, found = request.setup, list[tuple[int, str]]()
    length = min(setup.max_model_len, -(-_LEAST_LENGTH // setup.block_size) * setup.block_size)
    seqs = request.sequences
    tokens = max(seqs, setup.block_size) if setup.chunked else max(seqs, length)
    for flags, model in (("", footprint), *files):
        types = [*_smaller_types(model, setup), setup.cache_types.dtype]
        dtype = min(types, key=lambda name: model.page_bytes(setup.with_cache(name)))
        small = replace(setup.with_cache(dtype), max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        cache = -(-seqs * model.sequence_blocks(small) * model.page_bytes(small) // _MIB)
        needed = model.weight_bytes + model.buffer_bytes(small) + cache * _MIB + request.reserved
        chosen = [flags, f"--max-model-len {length} --max-num-seqs {seqs} --max-num-batched-tokens {tokens}"]
        chosen += [f"--kv-cache-dtype {dtype}"] if dtype != setup.cache_types.dtype else []
        found.append((needed, " ".join([*filter(None, chosen), f"--kv-cache-size {cache}MiB"])))
    needed, text = min(found)
    return Alternative(text, f"takes {format_size(needed)}")


def refusal(problem: str, found: Sequence[Alternative], smallest: Alternative | None = None) -> str:
    """The text of an error: what does not fit, and flags to copy; with none, what the smallest would take."""
    if not found:
        would = "" if smallest is None else f"; the least of it {smallest.effect}:\n  {smallest.flags}"
        return f"{problem}\nnothing smaller fits either: free memory, or take a smaller model or format{would}"
    width = max(len(alternative.flags) for alternative in found)
    lines = [f"  {alternative.flags:{width}}  {alternative.effect}" for alternative in found]
    return "\n".join([problem, "what fits:", *lines])
