"""How a text that comes in pieces is read: a parser is a generator that yields when it needs more, and writes events.

A parser decides by the text alone, never by how it was cut, so a stream's events, joined, are those of the whole text.
Every parser moves on only: nothing is read twice, so the work is linear in the text.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(r"\s*")


class AnswerEvent(NamedTuple):
    """A part of an answer. A "call" begins tool call `number` and names it; "arguments" are more of its JSON."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    number: int = 0


class MalformedCall(Exception):
    """What looked like a tool call is none."""


class Markers:
    """Texts to look for. None may be the beginning of another."""

    __slots__ = ("_longest", "_prefixes", "pattern")

    def __init__(self, texts: Sequence[str]) -> None:
        self.pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._prefixes = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=1) - 1

    def held(self, text: str, start: int) -> int:
        """How many of the last characters may be the beginning of a marker."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[len(text) - length :] in self._prefixes:
                return length
        return 0


class Feed:
    """The text so far, the place in it, and what was found. Mutable; one parser owns it.

    White space between content and a call belongs to neither; nor does what is before content that follows reasoning.

    Args:
        schemas: parameters of the tools, by name.
        most_calls: calls beyond these are left out.
    """

    def __init__(self, schemas: Mapping[str, Any] | None = None, most_calls: int | None = None) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.calls = 0
        self.schemas = schemas or {}
        self.events: list[AnswerEvent] = []
        self._most = most_calls
        self._mark: int | None = None
        self._space = ""  # of content or reasoning, may have to be left out
        self._lead = False  # content begins anew: white space before it is left out
        self._reasoned = False

    def push(self, text: str) -> None:
        """More text; what has been read is forgotten, unless it is marked."""
        start = self.at if self._mark is None else self._mark
        self.text = self.text[start:] + text
        self.at -= start
        if self._mark is not None:
            self._mark = 0

    def mark(self, before: int = 0) -> None:
        """Remember this place, or one some characters `before` it: what follows may turn out to be no call."""
        self._mark = self.at - before

    def give_up(self) -> None:
        """What was read since the mark is content; but a rest of markup behind an answer's calls is nothing."""
        if self._mark is None:
            return
        text = self.text[self._mark : self.at]
        self._mark = None
        if not (self.ended and self.at == len(self.text) and self.calls):
            self.content(text)

    def settle(self) -> None:
        """What was read since the mark is dealt with."""
        self._mark = None

    def content(self, text: str) -> None:
        """Words to the user."""
        self._write("content", text)

    def reasoning(self, text: str) -> None:
        """Words to itself."""
        if not self._reasoned:
            text = text.lstrip()
        self._reasoned = self._reasoned or bool(text)
        self._write("reasoning", text)

    def end_reasoning(self) -> None:
        """Content begins."""
        self._space, self._lead = "", True

    def call(self, name: str) -> None:
        """A tool call begins: it is one, whatever follows."""
        self._space, self._lead, self._mark = "", True, None
        self.calls += 1
        if self._most is None or self.calls <= self._most:
            self.events.append(AnswerEvent("call", name, self.calls - 1))

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if text and (self._most is None or self.calls <= self._most):
            self.events.append(AnswerEvent("arguments", text, self.calls - 1))

    def finish(self, kind: Literal["reasoning", "content"]) -> None:
        """Nothing more comes: give out the white space that was held, unless it follows calls."""
        if self._space and not self.calls:
            self.events.append(AnswerEvent(kind, self._space))
        self._space = ""

    def _write(self, kind: Literal["reasoning", "content"], text: str) -> None:
        if self._lead and kind == "content":
            text = text.lstrip()
        if not text:
            return
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._lead = False
            self.events.append(AnswerEvent(kind, shown))


def until(feed: Feed, markers: Markers, write: Callable[[str], None]) -> Reading[str]:
    """Write everything up to the next marker; return it, read, or an empty text at the end."""
    while True:
        found = markers.pattern.search(feed.text, feed.at)
        if found is not None:
            write(feed.text[feed.at : found.start()])
            feed.at = found.end()
            return found.group()
        held = markers.held(feed.text, feed.at)
        end = len(feed.text) - held
        write(feed.text[feed.at : end])
        feed.at = end
        if feed.ended:
            if not feed.calls:
                write(feed.text[end:])
            feed.at = len(feed.text)
            return ""
        yield


def peek(feed: Feed) -> Reading[str]:
    """The next character that is no white space, which is passed over; empty at the end."""
    while True:
        found = _SPACE.match(feed.text, feed.at)
        assert found is not None
        feed.at = found.end()
        if feed.at < len(feed.text):
            return feed.text[feed.at]
        if feed.ended:
            return ""
        yield


def take(feed: Feed, literal: str) -> Reading[bool]:
    """Pass over a text if it comes next."""
    while len(feed.text) - feed.at < len(literal) and literal.startswith(feed.text[feed.at :]) and not feed.ended:
        yield
    found = feed.text.startswith(literal, feed.at)
    feed.at += len(literal) if found else 0
    return found


def expect(feed: Feed, literal: str) -> Reading[None]:
    """Pass over a text that must come next.

    Raises:
        MalformedCall: something else comes.
    """
    if not (yield from take(feed, literal)):
        raise MalformedCall


def word(feed: Feed, pattern: re.Pattern[str], most: int = 256) -> Reading[str]:
    """The longest run of characters that `pattern` (of one character) matches.

    Raises:
        MalformedCall: there is none, it is longer than `most`, or the text ends in it.
    """
    end = feed.at
    while True:
        while end < len(feed.text) and pattern.match(feed.text[end]):
            end += 1
        if end - feed.at > most:
            raise MalformedCall
        if end < len(feed.text):
            break
        if feed.ended:
            feed.at = end
            raise MalformedCall
        offset = end - feed.at
        yield
        end = feed.at + offset
    found = feed.text[feed.at : end]
    feed.at = end
    if not found:
        raise MalformedCall
    return found
