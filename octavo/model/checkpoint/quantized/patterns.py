"""Matches the regular expressions of a checkpoint's configuration with names of modules, in bounded time.

A file's author chooses both, and `re` alone takes exponential time for `(a*)*b`. Here all places where a part may end
are followed at once (Thompson, "Regular expression search algorithm", CACM 1968), and the steps are counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.errors import CheckpointError

_LONGEST = 1000  # characters of a pattern
_DEEPEST = 20  # groups within groups
_MOST_STEPS = 100_000_000  # looks at a character, all patterns and names of a checkpoint together: half a minute
_CHARACTERS_A_STEP = 16  # that `re` compares where it cannot turn back
_TOKEN = re.compile(
    r"(?P<edge>\\[bBAZ]|[\^$])"
    r"|(?P<one>\\[dDwWsSnrtfvx0-9a-zA-Z]|\\.|\[\^?\]?(?:\\.|[^\\\]])*\])"
    r"|(?P<group>\((?:\?(?:P<\w+>|:|=|!))?(?!\?))"
    r"|(?P<count>[*+?]|\{(?:\d+(?:,\d*)?|,\d*)\})\??"
    r"|(?P<sign>[|)])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_MISSING = re.compile(r"\\[1-9gxuUN0]|\(\?(?!P<\w+>|:|=|!)|(?:[*+?]|\{\d*,?\d*\})\+")
_WHOLE = re.compile(r"\\[^1-9gxuUN0]|\[\^?\]?(?:\\.|[^\\\]])*\]")  # in which nothing of that is meant
_TURNS = re.compile(r"[*+?{|]")  # where a matcher that goes back may have to
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(slots=True)
class _One:
    """A character."""

    what: "re.Pattern[str]"


@dataclass(slots=True)
class _Edge:
    """A place without a character. `inside`: that of a look ahead."""

    what: "re.Pattern[str] | None" = None
    inside: "_Either | None" = None
    negative: bool = False


@dataclass(slots=True)
class _Repeat:
    inside: "_Part"
    least: int
    most: int | None


@dataclass(slots=True)
class _Either:
    """One of several sequences."""

    choices: "list[list[_Part]]" = field(default_factory=lambda: [[]])


_Part = _One | _Edge | _Repeat | _Either


class Patterns:
    """The patterns of one checkpoint. `where`: what errors name; `mark`: what may stand before a pattern."""

    def __init__(self, where: str, mark: str = "", steps: int = _MOST_STEPS) -> None:
        self._where = where
        self._mark = mark
        self._read: dict[str, re.Pattern[str] | _Either] = {}
        self._left = steps

    def begins(self, pattern: str, name: str) -> bool:
        """A name, or a beginning of it, matches.

        Raises:
            CheckpointError: the pattern is none, says something that is not supported, or takes too long.
        """
        if pattern not in self._read:
            self._read[pattern] = self._compiled(pattern)
        read = self._read[pattern]
        if isinstance(read, re.Pattern):
            self._step(1 + len(name) // _CHARACTERS_A_STEP)
            return read.match(name) is not None
        return bool(self._ends(read, name, {0}))

    def _compiled(self, marked: str) -> "re.Pattern[str] | _Either":
        shown, pattern = repr(marked[:80]), marked.removeprefix(self._mark)
        if len(pattern) > _LONGEST:
            raise CheckpointError(f"{self._where} {shown} is longer than {_LONGEST} characters")
        try:
            compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise CheckpointError(f"{self._where} {shown} is no regular expression: {error}") from error
        if len(_TURNS.findall(pattern.replace("(?:", "("))) <= 1:
            return compiled
        found = _MISSING.search(_WHOLE.sub("x", pattern))
        if found:
            raise CheckpointError(
                f"{self._where} {shown}: {found.group()} is not supported in a pattern of a checkpoint"
            )
        tokens = _TOKEN.finditer(pattern)
        try:
            return _either(tokens, _DEEPEST)[0]
        except RecursionError as error:
            raise CheckpointError(f"{self._where} {shown} is nested too deeply") from error

    def _step(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise CheckpointError(
                f"{self._where}: its patterns take too long to match with the names of all modules; write simpler ones"
            )

    def _ends(self, part: _Part, name: str, starts: set[int]) -> set[int]:
        """Where a part may end that begins at one of some places."""
        self._step(1 + len(starts))
        if isinstance(part, _One):
            match = part.what.match
            return {start + 1 for start in starts if match(name, start)}
        if isinstance(part, _Edge):
            return {start for start in starts if self._holds(part, name, start)}
        if isinstance(part, _Repeat):
            return self._repeated(part, name, starts)
        found: set[int] = set()
        for choice in part.choices:
            ends = starts
            for inside in choice:
                ends = self._ends(inside, name, ends) if ends else ends
            found |= ends
        return found

    def _holds(self, edge: _Edge, name: str, start: int) -> bool:
        if edge.inside is not None:
            return bool(self._ends(edge.inside, name, {start})) is not edge.negative
        return edge.what is not None and edge.what.match(name, start) is not None

    def _repeated(self, part: _Repeat, name: str, starts: set[int]) -> set[int]:
        ends = starts
        for _ in range(part.least):
            ends = self._ends(part.inside, name, ends) if ends else ends
        found, new, times = set(ends), ends, part.least
        while new and (part.most is None or times < part.most):
            new = self._ends(part.inside, name, new) - found
            found |= new
            times += 1
        return found


def _either(tokens: "Iterator[re.Match[str]]", deepest: int) -> tuple[_Either, str]:
    """What is read up to a bracket or the end, and which of them ended it."""
    if not deepest:
        raise RecursionError
    read = _Either()
    for token in tokens:
        kind, text = token.lastgroup, token.group()
        sequence = read.choices[-1]
        if kind == "sign":
            if text == ")":
                return read, text
            read.choices.append([])
        elif kind == "count":
            sequence[-1] = _Repeat(sequence[-1], *_count(token.group("count")))
        elif kind == "group":
            inside, _ = _either(tokens, deepest - 1)
            looks = text in ("(?=", "(?!")
            sequence.append(_Edge(None, inside, text == "(?!") if looks else inside)
        elif kind == "edge":
            sequence.append(_Edge(re.compile(text)))
        else:
            sequence.append(_One(re.compile(text if kind == "one" or text == "." else re.escape(text))))
    return read, ""


def _count(text: str) -> tuple[int, int | None]:
    if text in _COUNTS:
        return _COUNTS[text]
    least, comma, most = text[1:-1].partition(",")
    fewest = int(least or 0)
    return fewest, (int(most) if most else None) if comma else fewest
