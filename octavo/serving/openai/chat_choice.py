"""One choice of a chat answer: its text as reasoning, content and tool calls, whole or in deltas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from octavo.outputs.answer.feed import AnswerEvent
from octavo.outputs.answer.parser import AnswerParser, AnswerShape, joined
from octavo.serving.openai.answers import CalledFunction, ChatDelta, ChatMessage, ToolCall
from octavo.serving.openai.tools import ToolUse, call_id


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """What all choices of an answer have in common.

    prefix: echoed before the content. tells_reasoning: false leaves reasoning out.
    """

    shape: AnswerShape
    use: ToolUse
    role: str
    prefix: str = ""
    tells_reasoning: bool = True


class ChatChoiceReader:
    """Reads one choice's text. Mutable; one owner."""

    def __init__(self, options: ChoiceOptions) -> None:
        self._options = options
        self._parser = AnswerParser(options.shape)

    def deltas(self, text: str, ended: bool) -> list[ChatDelta]:
        """What more text brings, and, when it has `ended`, what was held back."""
        events = self._parser.push(text)
        if ended:
            events += self._parser.finish()
        return [self._delta(event) for event in self._told(events)]

    def message(self, text: str) -> ChatMessage:
        """The whole message."""
        options = self._options
        events = list(self._told([*self._parser.push(text), *self._parser.finish()]))
        content = "".join(event.text for event in events if event.kind == "content")
        reasoning = "".join(event.text for event in events if event.kind == "reasoning") or None
        names = [event.text for event in events if event.kind == "call"]
        arguments = {event.number: event.text for event in events if event.kind == "arguments"}
        calls = [
            ToolCall(CalledFunction(name, arguments.get(index, "")), call_id(options.shape.tools), "function")
            for index, name in enumerate(names)
        ]
        shown = options.prefix + content
        return ChatMessage(
            options.role,
            None if not shown and (calls or reasoning) else shown,
            tool_calls=calls,
            reasoning=reasoning,
            reasoning_content=reasoning or UNSET,
        )

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that stopped with calls was ended by them; not, as in OpenAI's API, where the caller named one."""
        calls = reason == "stop" and self._parser.calls and self._options.use.choice != "named"
        return "tool_calls" if calls else reason

    def _told(self, events: Sequence[AnswerEvent]) -> Iterator[AnswerEvent]:
        for event in joined(events):
            if event.kind != "reasoning" or self._options.tells_reasoning:
                yield event

    def _delta(self, event: AnswerEvent) -> ChatDelta:
        if event.kind == "content":
            return ChatDelta(content=event.text)
        if event.kind == "reasoning":
            return ChatDelta(reasoning=event.text, reasoning_content=event.text)
        if event.kind == "arguments":
            return ChatDelta(tool_calls=[ToolCall(CalledFunction(arguments=event.text), index=event.number)])
        function = CalledFunction(event.text, "")
        number = call_id(self._options.shape.tools)
        return ChatDelta(tool_calls=[ToolCall(function, number, "function", event.number)])
