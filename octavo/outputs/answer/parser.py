"""One answer's text as it comes, told apart into reasoning, content and tool calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.outputs.answer.feed import AnswerEvent, Feed, Markers, Reading, until
from octavo.outputs.answer.formats import ToolFormat, read_tools
from octavo.outputs.answer.harmony import MARKERS, read_harmony
from octavo.outputs.answer.reasoning import ReasoningFormat, read_reasoning


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """What an answer may consist of.

    Attributes:
        reasoning: None: nothing is told apart.
        opened: it begins inside its reasoning.
        tools: None: there are no calls.
        schemas: parameters of the tools, by name.
        most_calls: calls beyond these are left out.
        only_calls: what else there is is the markup of a call that was cut off, and left out.
    """

    reasoning: ReasoningFormat | None = None
    opened: bool = False
    tools: ToolFormat | None = None
    schemas: Mapping[str, Any] | None = None
    most_calls: int | None = None
    only_calls: bool = False

    @property
    def plain(self) -> bool:
        """All of it is content."""
        return self.reasoning is None and self.tools is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must be seen, also where they are special tokens."""
        marks: list[str] = []
        if self.tools is not None:
            marks += [*self.tools.markers, *self.tools.hidden]
        if self.reasoning is not None:
            marks += [*self.reasoning.begin, *self.reasoning.end]
        if _is_whole(self):
            marks += MARKERS
        return (*marks, "[ARGS]", "[CALL_ID]", "<|tool_sep|>", "<｜tool▁sep｜>", "</tool_call>")  # noqa: RUF001


class AnswerParser:
    """Reads one stream of text. For every way to cut the text, the events, joined, are the same."""

    def __init__(self, shape: AnswerShape) -> None:
        self._feed = Feed(shape.schemas, shape.most_calls)
        self._shape = shape
        self._reading = _read(self._feed, shape)
        self._over = False

    @property
    def calls(self) -> int:
        """Tool calls that have begun."""
        return min(self._feed.calls, self._shape.most_calls or self._feed.calls)

    def push(self, text: str) -> list[AnswerEvent]:
        """What more text brings."""
        if self._shape.plain:
            return [AnswerEvent("content", text)] if text else []
        if text:
            self._feed.push(text)
            self._advance()
        return self._take()

    def finish(self) -> list[AnswerEvent]:
        """What was held back."""
        if not self._shape.plain:
            self._feed.ended = True
            self._advance()
            self._feed.finish("content")
        return self._take()

    def _advance(self) -> None:
        if not self._over:
            try:
                next(self._reading)
            except StopIteration:
                self._over = True

    def _take(self) -> list[AnswerEvent]:
        events, self._feed.events = self._feed.events, []
        return [event for event in events if event.kind != "content"] if self._shape.only_calls else events


def read_answer(text: str, shape: AnswerShape) -> list[AnswerEvent]:
    """The events of a whole text, joined."""
    parser = AnswerParser(shape)
    return joined([*parser.push(text), *parser.finish()])


def joined(events: Sequence[AnswerEvent]) -> list[AnswerEvent]:
    """Neighbours of one kind as one."""
    result: list[AnswerEvent] = []
    for event in events:
        last = result[-1] if result else None
        if last is not None and last.kind == event.kind != "call" and last.number == event.number:
            result[-1] = AnswerEvent(event.kind, last.text + event.text, event.number)
        else:
            result.append(event)
    return result


def _is_whole(shape: AnswerShape) -> bool:
    by_tools = shape.tools is not None and shape.tools.whole is not None
    return by_tools or (shape.reasoning is not None and shape.reasoning.whole)


def _read(feed: Feed, shape: AnswerShape) -> Reading[None]:
    if _is_whole(shape):
        yield from read_harmony(feed)
        return
    if shape.reasoning is not None:
        yield from read_reasoning(feed, shape.reasoning, shape.opened)
    if shape.tools is not None:
        yield from read_tools(feed, shape.tools)
    else:
        yield from until(feed, Markers(()), feed.content)
