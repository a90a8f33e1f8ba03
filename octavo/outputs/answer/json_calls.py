"""Tool calls written as JSON objects with a name and arguments, read as they come."""

import json
import re
from collections.abc import Callable
from typing import Any

from octavo.outputs.answer.feed import Feed, MalformedCall, Reading, peek

Write = Callable[[str], None]

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_FIRST_KEYS = frozenset((*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "function", "id"))
_IN_STRING = re.compile(r'[^"\\]+')
_OUTSIDE = re.compile(r'[^"{}\[\]]+')
_SCALAR = re.compile(r"[^\s,}\]\"{\[]+")


def raw_string(feed: Feed, write: Write) -> Reading[bool]:
    """Write a JSON string as it stands, quotes included; false when the text ends in it."""
    feed.at += 1
    write('"')
    while True:
        found = _IN_STRING.match(feed.text, feed.at)
        if found is not None:
            write(found.group())
            feed.at = found.end()
        left = len(feed.text) - feed.at
        if left and feed.text[feed.at] == '"':
            feed.at += 1
            write('"')
            return True
        if left > 1:  # an escape
            write(feed.text[feed.at : feed.at + 2])
            feed.at += 2
        elif feed.ended:
            feed.at = len(feed.text)
            return False
        else:
            yield


def whole_string(feed: Feed) -> Reading[str]:
    """A JSON string's value.

    Raises:
        MalformedCall: it is none, or the text ends in it.
    """
    pieces: list[str] = []
    if feed.text[feed.at] != '"' or not (yield from raw_string(feed, pieces.append)):
        raise MalformedCall
    try:
        return json.loads("".join(pieces), strict=False)
    except ValueError:
        raise MalformedCall from None


def raw_value(feed: Feed, write: Write) -> Reading[bool]:
    """Write a JSON value as it stands; false when the text ends in it. Inside, only strings and brackets are looked at.

    Raises:
        MalformedCall: there is no value here.
    """
    first = feed.text[feed.at]
    if first == '"':
        return (yield from raw_string(feed, write))
    if first not in "{[":
        return (yield from _scalar(feed, write))
    depth = 0
    while True:
        found = _OUTSIDE.match(feed.text, feed.at)
        if found is not None:
            write(found.group())
            feed.at = found.end()
        if feed.at == len(feed.text):
            if feed.ended:
                return False
            yield
            continue
        character = feed.text[feed.at]
        if character == '"':
            if not (yield from raw_string(feed, write)):
                return False
            continue
        depth += 1 if character in "{[" else -1
        feed.at += 1
        write(character)
        if depth == 0:
            return True


def _scalar(feed: Feed, write: Write) -> Reading[bool]:
    any_found = False
    while True:
        found = _SCALAR.match(feed.text, feed.at)
        if found is not None:
            any_found = True
            write(found.group())
            feed.at = found.end()
        if feed.at < len(feed.text) or feed.ended:
            break
        yield
    if not any_found:
        raise MalformedCall
    return feed.at < len(feed.text)


class _Call:
    """What is known of a call object while it is read."""

    def __init__(self, feed: Feed) -> None:
        self.name: str | None = None
        self.begun = False
        self._feed = feed
        self._held: list[str] | None = None  # arguments that came before the name

    def set_name(self, name: str) -> None:
        if self.name is not None or not name:
            raise MalformedCall
        self.name = name
        if self._held is not None:
            self._begin()

    def open_arguments(self) -> Write:
        if self.begun or self._held is not None:
            return lambda _: None  # the first ones count
        if self.name is not None:
            self._begin()
            return self._feed.arguments
        self._held = []
        return self._held.append

    def close(self) -> None:
        if self.name is None:
            raise MalformedCall
        if not self.begun:
            self._held = ["{}"]
            self._begin()

    def _begin(self) -> None:
        self._feed.call(self.name or "")
        self.begun = True
        for piece in self._held or ():
            self._feed.arguments(piece)


def read_object(feed: Feed) -> Reading[None]:
    """A call object; it is a call as soon as its name and arguments are there.

    Raises:
        MalformedCall: it is none.
    """
    call = _Call(feed)
    try:
        yield from _read_fields(feed, call)
        call.close()
    except MalformedCall:
        if not call.begun:
            raise


def _read_fields(feed: Feed, call: _Call) -> Reading[None]:
    if (yield from peek(feed)) != "{":
        raise MalformedCall
    feed.at += 1
    depth, first = 1, True
    while depth:
        character = yield from peek(feed)
        if character in ("}", ","):
            feed.at += 1
            depth -= character == "}"
            continue
        if not character:
            raise MalformedCall
        key = yield from whole_string(feed)
        if first and key not in _FIRST_KEYS:
            raise MalformedCall
        first = False
        if (yield from peek(feed)) != ":":
            raise MalformedCall
        feed.at += 1
        character = yield from peek(feed)
        if not character:
            raise MalformedCall
        if key in ("function", "tool_call") and character == "{":  # OpenAI's form: what counts is inside
            feed.at += 1
            depth += 1
        else:
            yield from _read_field(feed, call, key, character)


def _read_field(feed: Feed, call: _Call, key: str, character: str) -> Reading[None]:
    if key in _NAME_KEYS or (key == "function" and character == '"'):
        call.set_name((yield from whole_string(feed)))
        return
    if key not in _ARGUMENT_KEYS:
        if not (yield from raw_value(feed, lambda _: None)):
            raise MalformedCall
        return
    if character == "{":
        if not (yield from raw_value(feed, call.open_arguments())):
            raise MalformedCall
        return
    # Arguments as a text of JSON, or none at all.
    pieces: list[str] = []
    yield from raw_value(feed, pieces.append)
    call.open_arguments()(_as_object("".join(pieces)))


def _as_object(raw: str) -> str:
    try:
        value: Any = json.loads(raw, strict=False)
    except ValueError:
        raise MalformedCall from None
    if isinstance(value, str):
        return value if value.strip() else "{}"
    return "{}" if value is None else raw


def read_objects(feed: Feed) -> Reading[None]:
    """One call object, or a list of them.

    Raises:
        MalformedCall: there is none, or what follows the last is none.
    """
    if (yield from peek(feed)) != "[":
        yield from read_object(feed)
        return
    feed.at += 1
    any_read = False
    while True:
        character = yield from peek(feed)
        if character == "]" and any_read:
            feed.at += 1
            return
        if character == "," and any_read:
            feed.at += 1
            continue
        if any_read:
            feed.mark()
        yield from read_object(feed)
        any_read = True
