"""Where a text ends because it holds a stop text, however the text is cut into pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Watches one stream of text for stop texts (matching after Knuth, Morris and Pratt, 1977).

    The stop text whose last character comes first ends the text; of several ending there, the longest. So the result
    does not depend on how the text was cut. Only characters that may still become part of a stop text are held back.

    Args:
        stops: none of them empty.
        include: the stop text is part of the output, and nothing needs to be held back.
    """

    __slots__ = ("_failures", "_first", "_held", "_include", "_matched", "_stops")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._failures = [_failure_table(stop) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop that the text so far ends with
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Take more text; return what may be shown of all so far, and the stop text that ends it.

        Args:
            text: nothing is looked at after a stop text was found.
            armed: stop texts that end in this piece count; false before min_tokens.
        """
        if not self._held and self._first.isdisjoint(text) and not any(self._matched):
            return text, None
        text = self._held + text
        for position in range(len(self._held), len(text)):
            found = self._advance(text[position])
            if found is not None and armed:
                end = position + 1
                self._held = ""
                return text[: end if self._include else end - len(found)], found
        kept = 0 if self._include else max(self._matched)
        shown = len(text) - kept
        self._held = text[shown:]
        return text[:shown], None

    def finish(self) -> str:
        """The text that was held back for a stop text that did not come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Take one character; return the longest stop text that it completes."""
        found: str | None = None
        matched = self._matched
        for index, stop in enumerate(self._stops):
            length, failures = matched[index], self._failures[index]
            while length and stop[length] != character:
                length = failures[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                length = failures[length - 1]
            matched[index] = length
        return found


def _failure_table(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper suffix that is a prefix of `stop` too."""
    table = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = table[length - 1]
        if stop[position] == stop[length]:
            length += 1
        table[position] = length
    return table
