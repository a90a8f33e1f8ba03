"""`octavo plan`: what a model takes, here or on another machine, before it is loaded, and which flag gives what."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from octavo.cli.options import command_parser, read_config
from octavo.config.engine import EngineConfig, choices_of
from octavo.config.sizing import (
    Alternative,
    Fit,
    Request,
    Setup,
    Wish,
    alternatives,
    least,
    measure,
    refusal,
)
from octavo.config.values import format_size, parse_cache_size, parse_count, parse_size
from octavo.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from octavo.engine.footprint import FormatBytes, HeaderFootprint

_WIDTH = 24
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table.

    Attributes:
        window: tokens; None: what they keep does not depend on how far back it is.
        keeps: what, in words.
        token_bytes: that a token takes; 0 for recurrent states.
        blocks: most that a sequence holds.
        state_bytes: that a sequence's recurrent state takes, whatever its length.
        state_tokens: tokens between two states that are kept for prefixes to go on from.
    """

    layers: int
    window: int | None
    keeps: str
    token_bytes: int
    blocks: int
    state_bytes: int = 0
    state_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What one flag would give. Bytes, blocks, and sequences of full length; `problem` "" when it fits."""

    flag: str
    cache_bytes: int
    blocks: int
    sequences: int
    total_bytes: int
    problem: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Sizes in bytes."""

    model: str
    family: str
    setup: Setup
    available_bytes: int
    file_bytes: int
    checkpoint: tuple[str, ...]  # what a quantized checkpoint is, and what was left out or expanded
    formats: tuple["FormatBytes", ...]
    vector_bytes: int
    activation_bytes: int
    rope_bytes: int
    table_bytes: int
    groups: tuple[Group, ...]
    concurrency: int
    fit: Fit
    rows: tuple[Row, ...]
    alternatives: tuple[Alternative, ...]
    least: Alternative | None  # the smallest there is; None: as it is fits


def run(arguments: Sequence[str]) -> int:
    """Print the plan; 0 when it fits, 1 when not."""
    parser = command_parser("plan", "Show what a model takes, how many sequences fit, and which flag gives what.")
    group = parser.add_argument_group("plan")
    group.add_argument("--concurrency", metavar="N", help="sequences of full length that shall fit at a time")
    group.add_argument("--memory", metavar="SIZE", help="plan for a machine with so much free (default: this one's)")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table; sizes in bytes")
    parsed = parser.parse_args(arguments)
    concurrency = 1 if parsed.concurrency is None else _read("--concurrency", parsed.concurrency, parse_count)
    if concurrency < 1:
        raise ConfigError(f"--concurrency {concurrency}: at least 1 is expected")
    memory = None if parsed.memory is None else _read("--memory", parsed.memory, parse_size)
    more: dict[str, object] = {}
    if parsed.concurrency is not None and getattr(parsed, "max_num_seqs", None) is None:
        more["max_num_seqs"] = concurrency
    config = read_config(parsed, **more)

    plan = make_plan(config, concurrency, memory)
    if parsed.json:
        print(json.dumps(_as_json(plan), indent=2))
    else:
        print("\n".join(describe(plan)))
    return 1 if plan.fit.problem else 0


def _read(flag: str, text: str, parse: Callable[[str], int]) -> int:
    """A number, or an error that names its flag."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def make_plan(config: EngineConfig, concurrency: int, memory: int | None) -> Plan:
    """Ask all the questions.

    Args:
        memory: bytes that are free; None: what this machine has now.
    """
    from octavo.config.environment import read_environment
    from octavo.config.machine import read_machine
    from octavo.config.resolve_cache import sizing_request
    from octavo.engine.build import locate_model, resolve_for
    from octavo.engine.footprint import HeaderFootprint, smaller_files

    source = locate_model(config)
    machine = read_machine()
    if memory is not None:
        machine = replace(machine, memory_total=memory, memory_available=memory)
    model = resolve_for(config, source, machine)
    footprint = HeaderFootprint(source, model, config.model.dtype)
    request = sizing_request(config, model, read_environment(), machine.memory_available)
    request = replace(request, sequences=concurrency)
    setup, fit = request.setup, measure(footprint, request)
    files = smaller_files(source, config, model) if fit.problem else []
    return Plan(
        model=str(source.path),
        family=source.family,
        setup=setup,
        available_bytes=request.available,
        file_bytes=source.file_bytes,
        checkpoint=() if source.quantized is None else (source.method, *source.quantized.notes),
        formats=footprint.formats,
        vector_bytes=footprint.vector_bytes,
        activation_bytes=footprint.activation_bytes(setup.max_num_batched_tokens, setup.max_num_seqs),
        rope_bytes=footprint.rope_bytes(setup.max_model_len),
        table_bytes=footprint.table_bytes(setup),
        groups=_groups(footprint, setup, fit),
        concurrency=concurrency,
        fit=fit,
        rows=tuple(_rows(footprint, request)),
        alternatives=tuple(alternatives(footprint, request, files)) if fit.problem else (),
        least=least(footprint, request, files) if fit.problem else None,
    )


def _groups(footprint: "HeaderFootprint", setup: Setup, fit: Fit) -> tuple[Group, ...]:
    from octavo.cache.group import state_interval  # numpy comes with it, and a question for help needs none

    size, page = setup.block_size, fit.page_bytes
    groups = footprint.groups(setup)
    span = state_interval(groups, size) * size
    return tuple(
        Group(len(group.layers), None, group.keeps, 0, count, group.pages * page, span)
        if group.is_state
        else Group(len(group.layers), group.window, group.keeps, page // size, count)
        for group, count in zip(groups, footprint.group_blocks(setup), strict=True)
    )


def _rows(footprint: "HeaderFootprint", request: Request) -> Iterator[Row]:
    """The configuration as it is, and with one flag changed."""
    setup = request.setup
    yield _row("as it is", footprint, request)
    fit = measure(footprint, request)
    needed = -(-request.sequences * fit.sequence_blocks * fit.page_bytes // _MIB)
    for text in (f"{needed}MiB", "0.5", "0.9"):
        asked = parse_cache_size(text)
        share, size = (asked, None) if isinstance(asked, float) else (None, asked)
        wish = Wish(f"kv_cache_size {text}", share=share, size=size, leave_free=request.wish.leave_free)
        yield _row(f"--kv-cache-size {text}", footprint, replace(request, wish=wish))
    for dtype in choices_of("kv_cache_dtype"):
        if dtype not in ("auto", setup.cache_types.dtype):
            try:
                changed = setup.with_cache(dtype)
                yield _row(f"--kv-cache-dtype {dtype}", footprint, replace(request, setup=changed))
            except (ConfigError, UnsupportedError, KeyError):
                continue  # not on this backend
    half = setup.max_model_len // 2
    if half >= setup.block_size:
        yield _row(f"--max-model-len {half}", footprint, replace(request, setup=replace(setup, max_model_len=half)))
    tokens = max(setup.max_num_batched_tokens // 2, setup.max_num_seqs if setup.chunked else setup.max_model_len)
    if tokens < setup.max_num_batched_tokens:
        changed = replace(setup, max_num_batched_tokens=tokens)
        yield _row(f"--max-num-batched-tokens {tokens}", footprint, replace(request, setup=changed))


def _row(flag: str, footprint: "HeaderFootprint", request: Request) -> Row:
    fit = measure(footprint, request)
    total = fit.weight_bytes + fit.buffer_bytes + fit.cache_bytes
    return Row(flag, fit.cache_bytes, fit.blocks, fit.sequences, total, fit.problem)


# --- for people and for programs -------------------------------------------------------------------------------------


def describe(plan: Plan) -> Iterator[str]:
    """The plan, line by line."""
    fit, setup = plan.fit, plan.setup
    yield f"{plan.family}, {plan.model}"
    yield ""
    yield from _section("weights", _weight_lines(plan))
    yield from _section(
        f"buffers of a step of {setup.max_num_batched_tokens} tokens and {setup.max_num_seqs} sequences",
        [
            _pair("activations, logits", format_size(plan.activation_bytes)),
            _pair("rope tables", f"{format_size(plan.rope_bytes)}, {setup.max_model_len} positions"),
            _pair("history, block tables", format_size(plan.table_bytes)),
        ],
    )
    yield from _section(f"KV cache in {setup.cache_types}", _cache_lines(plan))
    if not all(row.problem for row in plan.rows):  # a table of what does not fit would help nobody
        yield from _section("which flag gives what", list(_flag_lines(plan.rows)))
    if fit.problem:
        yield f"does not fit: {refusal(fit.problem, plan.alternatives, plan.least)}"
    else:
        most = min(fit.sequences, setup.max_num_seqs)
        yield (
            f"fits: {fit.sequences} sequence{'s' if fit.sequences > 1 else ''} "
            f"of {setup.max_model_len} tokens at a time"
            + (f"; --max-num-seqs lets {most} run" if most < fit.sequences else "")
            + f"; {format_size(plan.available_bytes)} are free"
        )


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield title
    yield from (f"  {line}" for line in lines)
    yield ""


def _pair(name: str, value: object) -> str:
    return f"{name:{_WIDTH}} {value}"


def _weight_lines(plan: Plan) -> list[str]:
    lines = [_pair("checkpoint", text) for text in plan.checkpoint]
    lines += [
        _pair(entry.format, f"{format_size(entry.packed):>10} packed, {format_size(entry.stored):>10} in the file")
        for entry in plan.formats
    ]
    lines.append(_pair("norms, biases", f"{format_size(plan.vector_bytes):>10}"))
    lines.append(_pair("together", f"{format_size(plan.fit.weight_bytes):>10}"))
    return lines


def _cache_lines(plan: Plan) -> list[str]:
    fit, setup = plan.fit, plan.setup
    token = sum(group.token_bytes for group in plan.groups)
    long = fit.sequence_blocks * fit.page_bytes
    lines = [
        _pair("a block", f"{setup.block_size} tokens of one group, {format_size(fit.page_bytes)}"),
        _pair("a token", f"{format_size(token)} while no window is full"),
        _pair(
            "a full sequence",
            f"{setup.max_model_len} tokens: {fit.sequence_blocks} blocks, {format_size(long)}, "
            f"{format_size(long / setup.max_model_len)} a token",
        ),
    ]
    seen: dict[Group, int] = {}
    for group in plan.groups:
        seen[group] = seen.get(group, 0) + 1
    for group, count in seen.items():
        if group.state_bytes:
            size = (
                f"{format_size(group.state_bytes)} a sequence in {group.blocks} blocks, "
                f"kept for others every {group.state_tokens} tokens"
            )
        else:
            size = f"{format_size(group.token_bytes)} a token, at most {group.blocks} blocks a sequence"
        lines.append(
            _pair(f"{count} group{'s' if count > 1 else ''}", f"of {group.layers} layers, {group.keeps}: {size}")
        )
    lines.append(_pair("the cache", f"{fit.blocks} blocks, {format_size(fit.cache_bytes)} ({fit.reason})"))
    lines.append(_pair("free for it", format_size(max(0, fit.free))))
    return lines


def _flag_lines(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(row.flag) for row in rows)
    yield f"{'':{width}} {'KV cache':>10} {'blocks':>8} {'sequences':>10} {'in all':>10}"
    for row in rows:
        yield (
            f"{row.flag:{width}} {format_size(row.cache_bytes):>10} {row.blocks:>8} {row.sequences:>10} "
            f"{format_size(row.total_bytes):>10}{'  does not fit' if row.problem else ''}"
        )


def _as_json(plan: Plan) -> dict[str, object]:
    """The same, with names for programs; `fits` first."""
    fit = {"fits": not plan.fit.problem, **asdict(plan.fit)}
    fit |= {"cache_bytes": plan.fit.cache_bytes, "sequences": plan.fit.sequences}
    return {**asdict(plan), "fit": fit}
