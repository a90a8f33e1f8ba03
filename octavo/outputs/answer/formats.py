"""How models write tool calls: a table of formats, each with markers, a reader and, to enforce calls, a frame."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from octavo.outputs.answer.feed import Feed, MalformedCall, Markers, Reading, expect, peek, take, until, word
from octavo.outputs.answer.harmony import read_harmony
from octavo.outputs.answer.json_calls import raw_value, read_object, read_objects
from octavo.outputs.answer.python_calls import read_call, read_gemma, read_list

_NAME = re.compile(r"[\w.\-]")
_LINE = re.compile(r"[^\n`]")
_NO_MARKUP = re.compile(r"[^<>\n]")


@dataclass(frozen=True, slots=True)
class Frame:
    """How calls are written, for a grammar: opening, calls with something between them, closing.

    A call is before + {"name": ..., key: ...} + after.
    """

    key: str = "arguments"
    opening: str = ""
    before: str = ""
    after: str = ""
    between: str = ""
    closing: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write tool calls.

    Attributes:
        markers: texts that begin calls; `read` goes on behind one.
        bare: reads calls that an answer begins with, without a marker.
        whole: reads the whole answer, reasoning and all; then nothing else applies.
        hidden: markers that mean nothing by themselves.
        frame: None: calls are enforced as a plain JSON list.
    """

    name: str
    markers: tuple[str, ...] = ()
    read: Callable[[Feed, str], Reading[None]] | None = None
    bare: Callable[[Feed], Reading[None]] | None = None
    whole: Callable[[Feed], Reading[None]] | None = None
    hidden: tuple[str, ...] = ()
    frame: Frame | None = None


def read_tools(feed: Feed, form: ToolFormat) -> Reading[None]:
    """Content and calls, to the end."""
    if form.bare is not None:
        feed.mark()
        try:
            yield from form.bare(feed)
        except MalformedCall:
            feed.give_up()
        feed.settle()
    markers = Markers((*form.markers, *form.hidden))
    while True:
        marker = yield from until(feed, markers, feed.content)
        if not marker:
            return
        if marker in form.hidden or form.read is None:
            continue
        feed.mark(len(marker))
        try:
            yield from form.read(feed, marker)
        except MalformedCall:
            feed.give_up()
        feed.settle()


def _closed_by(*endings: str) -> Callable[[Feed, str], Reading[None]]:
    """Call objects, then one of these texts, which may be missing."""

    def read(feed: Feed, marker: str) -> Reading[None]:
        del marker
        yield from read_objects(feed)
        yield from _pass(feed, endings)

    return read


def _pass(feed: Feed, endings: tuple[str, ...]) -> Reading[None]:
    if endings and (yield from peek(feed)) == endings[0][0]:
        for ending in endings:
            if (yield from take(feed, ending)):
                return
        if feed.ended and any(ending.startswith(feed.text[feed.at :]) for ending in endings):  # it was cut off
            feed.at = len(feed.text)


def _read_mistral(feed: Feed, marker: str) -> Reading[None]:
    """[TOOL_CALLS] [{...}, ...] or, in later versions, [TOOL_CALLS]name[ARGS]{...}."""
    del marker
    if (yield from peek(feed)) in ("[", "{"):
        yield from read_objects(feed)
        return
    name = yield from word(feed, _NAME)
    if (yield from take(feed, "[CALL_ID]")):
        yield from word(feed, _NAME)
    yield from take(feed, "[ARGS]")
    yield from _named_object(feed, name)


def _named_object(feed: Feed, name: str) -> Reading[None]:
    if (yield from peek(feed)) != "{":
        raise MalformedCall
    feed.call(name)
    yield from raw_value(feed, feed.arguments)


def _read_bare_objects(feed: Feed) -> Reading[None]:
    """{...}; {...}: at the start of an answer."""
    if (yield from peek(feed)) != "{":
        feed.give_up()
        return
    yield from _objects_in_a_row(feed, "")


def _objects_in_a_row(feed: Feed, marker: str) -> Reading[None]:
    del marker
    while True:
        yield from read_object(feed)
        feed.mark()
        character = yield from peek(feed)
        if character not in (";", ",", "{"):
            feed.give_up()
            return
        feed.at += character != "{"
        if (yield from peek(feed)) != "{":
            raise MalformedCall


def _read_bare_list(feed: Feed) -> Reading[None]:
    """The JSON list that enforced calls are written as where a format has no frame."""
    if (yield from peek(feed)) not in ("[", "{"):
        feed.give_up()
        return
    yield from read_objects(feed)


def _read_deepseek(feed: Feed, marker: str) -> Reading[None]:
    """type, separator, name, fenced JSON (V3); or name, separator, JSON (V3.1)."""
    del marker
    yield from peek(feed)
    head = (yield from word(feed, re.compile(r"[^\n<]"))).strip()
    yield from expect(feed, "<｜tool▁sep｜>")  # noqa: RUF001 (the model's own bars)
    if (yield from peek(feed)) != "{":
        head = (yield from word(feed, _LINE)).strip()
        yield from peek(feed)
        if (yield from take(feed, "```")):
            yield from take(feed, "json")
    yield from _named_object(feed, head)
    yield from _pass(feed, ("```",))
    yield from _pass(feed, ("<｜tool▁call▁end｜>",))  # noqa: RUF001


def _read_pythonic(feed: Feed) -> Reading[None]:
    if (yield from peek(feed)) != "[":
        feed.give_up()
        return
    yield from read_list(feed)


def _read_marked_list(feed: Feed, marker: str) -> Reading[None]:
    del marker
    yield from peek(feed)
    yield from read_list(feed)


def _read_gemma(feed: Feed, marker: str) -> Reading[None]:
    if marker == "```tool_code":
        yield from peek(feed)
        yield from read_call(feed)
        yield from _pass(feed, ("```",))
        return
    yield from read_gemma(feed)
    yield from _pass(feed, ("<end_function_call>",))


def _read_tagged(feed: Feed, marker: str) -> Reading[None]:
    """<function=name><parameter=key>value</parameter>...</function></tool_call>; or JSON inside, as Hermes."""
    del marker
    if (yield from peek(feed)) == "{":
        yield from read_objects(feed)
        yield from _pass(feed, ("</tool_call>",))
        return
    yield from expect(feed, "<function=")
    name = yield from word(feed, _NO_MARKUP)
    yield from expect(feed, ">")
    arguments: dict[str, Any] = {}
    while True:
        yield from peek(feed)
        if (yield from take(feed, "</function>")):
            break
        yield from expect(feed, "<parameter=")
        key = yield from word(feed, _NO_MARKUP)
        yield from expect(feed, ">")
        pieces: list[str] = []
        if not (yield from until(feed, _END_OF_PARAMETER, pieces.append)):
            raise MalformedCall
        arguments[key] = _typed("".join(pieces).removeprefix("\n").removesuffix("\n"), feed.schemas.get(name), key)
    feed.call(name)
    feed.arguments(json.dumps(arguments, ensure_ascii=False))
    yield from _pass(feed, ("</tool_call>",))


_END_OF_PARAMETER = Markers(("</parameter>",))


def _typed(text: str, schema: Any, key: str) -> Any:
    """A parameter's value: text where the tool wants text, else JSON where it is JSON."""
    wanted: Any = schema
    for name in ("properties", key, "type"):
        wanted = cast("dict[str, Any]", wanted).get(name) if isinstance(wanted, dict) else None
    if wanted == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


_HERMES = Frame(before="<tool_call>\n", after="\n</tool_call>", between="\n")
_GRANITE = Frame(opening="<|tool_call|>[", between=", ", closing="]")
_MISTRAL = Frame(opening="[TOOL_CALLS] [", between=", ", closing="]")
_DEEPSEEK_HIDDEN = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")  # noqa: RUF001
_DEEPSEEK_BEGIN = ("<｜tool▁call▁begin｜>",)  # noqa: RUF001

# As enforced calls are written where a format has no frame of its own.
PLAIN_LIST = ToolFormat(
    "json", bare=_read_bare_list, frame=Frame(key="parameters", opening="[", between=", ", closing="]")
)

FORMATS: dict[str, ToolFormat] = {
    form.name: form
    for form in (
        ToolFormat("hermes", ("<tool_call>",), _closed_by("</tool_call>"), frame=_HERMES),
        ToolFormat("qwen3_coder", ("<tool_call>",), _read_tagged),
        ToolFormat(
            "llama3_json",
            ("<|python_tag|>",),
            _objects_in_a_row,
            _read_bare_objects,
            frame=Frame(key="parameters", between="; "),
        ),
        ToolFormat("mistral", ("[TOOL_CALLS]",), _read_mistral, frame=_MISTRAL),
        ToolFormat("pythonic", ("<|python_start|>",), _read_marked_list, _read_pythonic, hidden=("<|python_end|>",)),
        ToolFormat("deepseek_v3", _DEEPSEEK_BEGIN, _read_deepseek, hidden=_DEEPSEEK_HIDDEN),
        ToolFormat("granite", ("<|tool_call|>", "<tool_call>"), _closed_by("</tool_call>"), frame=_GRANITE),
        ToolFormat("gemma", ("<start_function_call>", "```tool_code"), _read_gemma),
        ToolFormat("openai", whole=read_harmony),
        PLAIN_LIST,
    )
}

# Other servers' names.
ALIASES = {
    "qwen": "hermes",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_xml": "qwen3_coder",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "deepseek_v31": "deepseek_v3",
    "deepseek": "deepseek_v3",
    "functiongemma": "gemma",
    "gpt_oss": "openai",
    "harmony": "openai",
    "granite4": "granite",
}
