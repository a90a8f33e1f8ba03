"""Tool calls written as Python: [name(key=value, ...), ...]; and in FunctionGemma's way: call:name{key:value,...}."""

import ast
import json
import re
from typing import Any

from octavo.outputs.answer.feed import Feed, MalformedCall, Markers, Reading, expect, peek, take, until, word

_NAME = re.compile(r"[\w.\-]")
_KEY = re.compile(r"\w")
_INSIDE = re.compile(r"[^()\[\]{},\"'\\]+")
_QUOTED = re.compile(r"[^\"'\\]+")
_CLOSING = {")": "(", "]": "[", "}": "{"}
_MOST_VALUE = 1 << 20  # characters
_ESCAPE = Markers(("<escape>",))
_BARE = re.compile(r"[^,}\]<]")


def read_list(feed: Feed) -> Reading[None]:
    """A list of calls; each is a call once it is complete.

    Raises:
        MalformedCall: there is none, or what follows the last is none.
    """
    yield from expect(feed, "[")
    while True:
        yield from peek(feed)
        yield from read_call(feed)
        character = yield from peek(feed)
        feed.mark()
        feed.at += bool(character)
        if character == "]":
            feed.settle()
            return
        if character != ",":
            raise MalformedCall


def read_call(feed: Feed) -> Reading[None]:
    """name(key=value, ...)

    Raises:
        MalformedCall: it is none.
    """
    name = yield from word(feed, _NAME)
    yield from peek(feed)
    yield from expect(feed, "(")
    arguments: dict[str, Any] = {}
    while True:
        character = yield from peek(feed)
        if character == ")":
            feed.at += 1
            break
        key = yield from word(feed, _KEY)
        yield from peek(feed)
        yield from expect(feed, "=")
        arguments[key] = _literal((yield from _value(feed)))
        if (yield from peek(feed)) == ",":
            feed.at += 1
    _emit(feed, name, arguments)


def _value(feed: Feed) -> Reading[str]:
    """The text of a Python literal, up to the comma or parenthesis behind it."""
    pieces: list[str] = []
    stack: list[str] = []
    quote, length = "", 0
    while True:
        piece = yield from _piece(feed, bool(quote))
        if not quote and not stack and piece in (",", ")"):
            return "".join(pieces)
        if piece == quote:
            quote = ""
        elif not quote and piece in ('"', "'"):
            quote = piece
        elif not quote:
            _nest(stack, piece)
        feed.at += len(piece)
        length += len(piece)
        pieces.append(piece)
        if length > _MOST_VALUE:
            raise MalformedCall


def _piece(feed: Feed, quoted: bool) -> Reading[str]:
    """The next run of plain characters, or one that means something, or an escape; not passed over."""
    while True:
        left = len(feed.text) - feed.at
        if left:
            found = (_QUOTED if quoted else _INSIDE).match(feed.text, feed.at)
            if found is not None:
                return found.group()
            if feed.text[feed.at] != "\\":
                return feed.text[feed.at]
            if left > 1:
                return feed.text[feed.at : feed.at + 2]
        if feed.ended:
            feed.at = len(feed.text)
            raise MalformedCall
        yield


def _nest(stack: list[str], piece: str) -> None:
    if piece in ("(", "[", "{"):
        stack.append(piece)
    elif piece in _CLOSING and (not stack or stack.pop() != _CLOSING[piece]):
        raise MalformedCall


def _literal(text: str) -> Any:
    plain = {"true": True, "false": False, "null": None}
    text = text.strip()
    if text in plain:
        return plain[text]
    try:
        value: Any = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise MalformedCall from None
    return value


def read_gemma(feed: Feed) -> Reading[None]:
    """call:name{key:value,...} where texts stand between <escape> marks.

    Raises:
        MalformedCall: it is none.
    """
    yield from peek(feed)
    yield from expect(feed, "call:")
    name = yield from word(feed, _NAME)
    yield from peek(feed)
    arguments = yield from _gemma_object(feed, 0)
    _emit(feed, name, arguments)


def _gemma_object(feed: Feed, depth: int) -> Reading[dict[str, Any]]:
    yield from expect(feed, "{")
    found: dict[str, Any] = {}
    while True:
        character = yield from peek(feed)
        feed.at += character in ("}", ",") and bool(character)
        if character == "}":
            return found
        if character == ",":
            continue
        key = yield from _gemma_key(feed)
        yield from peek(feed)
        yield from expect(feed, ":")
        found[key] = yield from _gemma_value(feed, depth + 1)


def _gemma_key(feed: Feed) -> Reading[str]:
    if (yield from take(feed, "<escape>")):
        return (yield from _gemma_text(feed))
    return (yield from word(feed, _KEY))


def _gemma_value(feed: Feed, depth: int) -> Reading[Any]:
    if depth > 50:
        raise MalformedCall
    character = yield from peek(feed)
    if character == "{":
        return (yield from _gemma_object(feed, depth))
    if character == "[":
        feed.at += 1
        items: list[Any] = []
        while True:
            character = yield from peek(feed)
            feed.at += character in ("]", ",") and bool(character)
            if character == "]":
                return items
            if character != ",":
                items.append((yield from _gemma_value(feed, depth + 1)))
    if (yield from take(feed, "<escape>")):
        return (yield from _gemma_text(feed))
    text = (yield from word(feed, _BARE, most=4096)).strip()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _gemma_text(feed: Feed) -> Reading[str]:
    pieces: list[str] = []
    if not (yield from until(feed, _ESCAPE, pieces.append)):
        raise MalformedCall
    return "".join(pieces)


def _emit(feed: Feed, name: str, arguments: dict[str, Any]) -> None:
    feed.call(name)
    feed.arguments(json.dumps(arguments, ensure_ascii=False))
