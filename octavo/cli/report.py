"""What `octavo inspect` prints of an engine: the model, what was chosen and why, memory, kernels, the program."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import cast

from octavo.config.values import format_size
from octavo.engine.build import Engine
from octavo.kernels.choose import KernelChoice
from octavo.kernels.cpu.describe import describe
from octavo.spec.decoder import (
    Body,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    LatentSpec,
    LayerSpec,
    NormSpec,
    RopeSpec,
    ShortConvSpec,
    StateSpaceSpec,
)
from octavo.text.chat_template import ChatTemplate
from octavo.text.template_check import check_template, thinking_switch

_WIDTH = 26  # of the longest name
_SIZES = ("weight_cache_bytes", "cache_bytes", "kv_host", "kv_disk", "target_itl_ms")  # 0: none


def report(engine: Engine, template: ChatTemplate | None) -> Iterator[str]:
    """Everything but the program, line by line.

    Args:
        template: of chats.
    """
    yield from _section("model", _model_lines(engine))
    yield from _section("layers", _layer_lines(engine.source.spec))
    yield from _section("configuration", _choice_lines(engine))
    yield from _section("memory", _memory_lines(engine))
    yield from _section("cache groups", _group_lines(engine))
    yield from _section("kernels", _kernel_lines(engine.kernels))
    yield from _section("chat template", _template_lines(template))
    yield from _section("start-up", [_pair(phase, f"{seconds:.2f} s") for phase, seconds in engine.phases])


def _template_lines(template: ChatTemplate | None) -> list[str]:
    if template is None:
        return ["none: chats are refused; give one with --chat-template"]
    switch = thinking_switch(template)
    told = [f"chat_template_kwargs: {switch} (true or false) switches reasoning"] if switch else []
    return [*told, *(check_template(template) or ["sample chats are rendered as they should be"])]


def program(engine: Engine) -> Iterator[str]:
    """The recorded program, one line an instruction."""
    if engine.backend.program is None:
        yield "this backend records no program: it runs op by op"
        return
    yield from describe(engine.backend.program)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield title
    yield from (f"  {line}" for line in lines)
    yield ""


def _pair(name: str, value: object) -> str:
    return f"{name:{_WIDTH}} {value}"


def _model_lines(engine: Engine) -> list[str]:
    source, spec = engine.source, engine.source.spec
    return [
        _pair("path", source.path),
        _pair("family", source.family),
        _pair("hidden", spec.hidden),
        _pair("layers", len(spec.layers)),
        _pair("vocabulary", spec.vocab),
        _pair("context", f"{spec.max_positions} tokens"),
        _pair("embedding", _fields(spec.embedding)),
        _pair("head", "none" if spec.head is None else _fields(spec.head)),
        _pair("final norm", "none" if spec.final_norm is None else _norm(spec.final_norm)),
    ]


def _layer_lines(spec: DecoderSpec) -> list[str]:
    lines: list[str] = []
    first = 0
    for layer, members in groupby(spec.layers):
        count = len(list(members))
        place = f"{first}" if count == 1 else f"{first}-{first + count - 1}"
        lines += [_pair(place if index == 0 else "", text) for index, text in enumerate(_layer(layer))]
        first += count
    return lines


def _layer(layer: LayerSpec) -> list[str]:
    lines: list[str] = []
    for block in layer.blocks:
        for branch in block.branches:
            norms = [f"{name} {_norm(norm)}" for name, norm in _norms(branch.norm or block.norm, branch.post_norm)]
            lines.append(", ".join([_body(branch.body), *norms]))
    return lines


def _norms(before: NormSpec | None, after: NormSpec | None) -> list[tuple[str, NormSpec]]:
    return [(name, norm) for name, norm in (("norm", before), ("post-norm", after)) if norm is not None]


def _body(body: Body) -> str:
    if isinstance(body, DenseMlpSpec):
        return f"{'gated ' if body.gated else ''}MLP {body.width}, {body.activation}{', biases' if body.bias else ''}"
    if isinstance(body, LatentSpec):
        return ", ".join(_latent(body))
    if isinstance(body, ShortConvSpec):
        return f"short convolution of {body.conv.width} over {body.conv.taps}{', biases' if body.bias else ''}"
    if isinstance(body, StateSpaceSpec):
        return (
            f"state space {body.heads} heads of {body.head_dim}, state {body.state}, {body.groups} groups, "
            f"convolution over {body.taps}, norm {body.norm_eps:g}"
        )
    parts = [f"attention {body.heads} heads of {body.head_dim}, {body.kv_heads} kv, scale {body.scale:.4g}"]
    parts += _rope(body.rope)
    limits = (("window", body.window), ("chunks of", body.chunk), ("keys and values of layer", body.kv_from))
    parts += [f"{name} {value}" for name, value in limits if value is not None]
    if not body.causal:
        parts.append("both ways")
    if body.softcap is not None:
        parts.append(f"softcap {body.softcap:g}")
    parts += [text for text, there in (("qkv bias", body.qkv_bias), ("out bias", body.out_bias)) if there]
    if body.query_scale is not None:
        parts.append(f"queries scaled by {body.query_scale.scale:g} every {body.query_scale.span:g} positions")
    if body.qk_norm is not None:
        parts.append(f"qk-norm {_norm(body.qk_norm)}")
    return ", ".join(parts)


def _latent(body: LatentSpec) -> list[str]:
    through = "" if body.q_rank is None else f" through {body.q_rank}"
    parts = [
        f"latent attention {body.heads} heads of {body.nope} + {body.rope_dim}{through}, values of {body.value_dim}"
    ]
    parts += [f"latent of {body.rank}, norm {_norm(body.latent_norm)}", f"scale {body.scale:.4g}", *_rope(body.rope)]
    return [*parts, "biases"] if body.bias else parts


def _rope(rope: RopeSpec | None) -> list[str]:
    if rope is None:
        return ["no rope"]
    parts = [f"rope {rope.theta:g} over {rope.width}"]
    return parts if rope.scaling is None else [*parts, type(rope.scaling).__name__]


def _norm(norm: NormSpec) -> str:
    return f"{norm.kind} {norm.eps:g}"


def _fields(spec: EmbeddingSpec | HeadSpec) -> str:
    """What a small spec has: its numbers, and by name what is so."""
    told: list[str] = []
    for name, value in ((field.name, getattr(spec, field.name)) for field in fields(spec)):
        if value is True:
            told.append(name)
        elif value not in (None, False):
            shown = _norm(value) if isinstance(value, NormSpec) else f"{value:g}" if isinstance(value, float) else value
            told.append(f"{name} {shown}")
    return ", ".join(told)


def _value(name: str, value: object) -> str:
    if value is None or value == () or (name in _SIZES and value == 0):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and name in _SIZES:
        return format_size(value)
    return ", ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 5, 7-8."""
    runs = groupby(enumerate(numbers), lambda place: place[1] - place[0])
    members = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in members)


def _choice_lines(engine: Engine) -> list[str]:
    lines = [
        _pair(name, f"{_value(name, choice.value):28} {choice.reason}") for name, choice in engine.resolved.choices()
    ]
    quantized = engine.source.quantized
    return lines + [_pair("checkpoint", note) for note in (() if quantized is None else quantized.notes)]


def _memory_lines(engine: Engine) -> list[str]:
    memory = engine.memory
    cache = engine.resolved.cache
    return [
        _pair("weights in the file", format_size(engine.source.file_bytes)),
        _pair("weights as packed", format_size(memory.weight_bytes)),
        _pair("KV cache", f"{format_size(cache.cache_bytes.value)}, taken as tokens come"),
        _pair("KV cache a token", format_size(memory.token_bytes)),
        _pair("this process now", format_size(memory.resident_bytes)),
        _pair("free on the machine", format_size(memory.available_bytes)),
    ]


def _kernel_lines(kernels: Sequence[KernelChoice]) -> list[str]:
    """A table: names of formats are long."""
    what, kernel = (max(len(getattr(choice, name)) for choice in kernels) for name in ("what", "kernel"))
    return [f"{k.what:{max(what, _WIDTH)}} {k.kernel:{kernel}} {k.reason}" for k in kernels]


def _group_lines(engine: Engine) -> list[str]:
    lines: list[str] = []
    for index, group in enumerate(engine.groups):
        size = f" in {group.pages} blocks a sequence" if group.is_state else ""
        members = _ranges(group.layers)
        lines.append(_pair(str(index), f"{len(group.layers)} layers keep {group.keeps}{size}: {members}"))
    return lines
