"""What users of a chat template will trip over: sample chats are rendered, and what goes wrong is told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.text.chat_template import ChatTemplate

_SYSTEM, _FIRST, _ANSWER, _SECOND = "Speak plainly.", "What is a sheet?", "A piece of paper", "And a quire?"
_RESULT, _TOOL = "noon in Oslo", "tell_hour"
_LONGEST = 160

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Tells the hour.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
_USER = {"role": "user", "content": _FIRST}
_CALLS: list[Mapping[str, Any]] = [
    _USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": _TOOL, "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": _RESULT},
    {"role": "user", "content": _SECOND},
]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A chat, what its prompt must show and must not, and how it is told when it is refused or does not."""

    refused: str
    left_out: str
    messages: Sequence[Mapping[str, Any]]
    shows: Sequence[str] = ()
    hides: Sequence[str] = ()
    tools: Sequence[Mapping[str, Any]] | None = None


_SAMPLES = (
    _Sample(
        "system messages are refused",
        "system messages are not shown to the model",
        [{"role": "system", "content": _SYSTEM}, _USER],
        [_SYSTEM, _FIRST],
    ),
    _Sample(
        "two user messages in a row are refused",
        "of two user messages in a row not both are shown",
        [_USER, {"role": "user", "content": _SECOND}],
        [_FIRST, _SECOND],
    ),
    _Sample(
        "contents that are lists of parts are refused",
        "contents that are lists of parts are not shown as text",
        [{"role": "user", "content": [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]}],
        [_FIRST, _SECOND],
        ["'text'", '"text"'],
    ),
    _Sample(
        "an earlier turn that only called a tool (content null) is refused",
        "an earlier turn that only called a tool, or its result, is not shown, or shown as 'None'",
        _CALLS,
        [_TOOL, _RESULT],
        ["None"],
        tools=_TOOLS,
    ),
    _Sample("chats with tools are refused", "tools are not shown to the model", [_USER], [_TOOL], tools=_TOOLS),
)


def check_template(template: ChatTemplate, tools: bool = True) -> list[str]:
    """One line for each kind of chat that this template refuses or spoils; empty where all is well.

    Args:
        tools: also chats with tools.
    """
    try:
        plain = template.render([_USER])
    except (InvalidRequestError, UnsupportedError) as error:
        return [f"no chat can be rendered ({_short(error)}); give another with --chat-template"]
    return list(_findings(template, plain, tools))


def thinking_switch(template: ChatTemplate) -> str | None:
    """The variable that switches reasoning on and off, where there is one that changes prompts."""
    for name in ("enable_thinking", "thinking"):
        if not template.mentions(name):
            continue
        try:
            on, off = (_switched(template, {name: value}) for value in (True, False))
        except (InvalidRequestError, UnsupportedError):
            continue
        if on != off:
            return name
    return None


def _findings(template: ChatTemplate, plain: str, tools: bool) -> Iterator[str]:
    if _FIRST not in plain:
        yield "user messages are not shown to the model"
    if template.render([_USER], add_generation_prompt=False) == plain:
        yield "prompts do not end with the head of an assistant's turn (add_generation_prompt changes nothing)"
    for sample in _SAMPLES if tools else [sample for sample in _SAMPLES if sample.tools is None]:
        yield from _try(sample, partial(template.render, sample.messages, tools=sample.tools))
    answered = [_USER, {"role": "assistant", "content": _ANSWER}]
    given = _Sample(
        "an answer cannot be continued (continue_final_message)",
        "an answer that is to be continued is changed",
        answered,
        [_ANSWER],
    )
    yield from _try(given, lambda: _continued(template, answered))


def _switched(template: ChatTemplate, variables: dict[str, Any]) -> str:
    return template.render([_USER], **variables)


def _continued(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    return text if text.endswith(_ANSWER) else ""


def _try(sample: _Sample, render: Callable[[], str]) -> Iterator[str]:
    try:
        text = render()
    except (InvalidRequestError, UnsupportedError) as error:
        yield f"{sample.refused} ({_short(error)})"
        return
    if any(part not in text for part in sample.shows) or any(part in text for part in sample.hides):
        yield sample.left_out


def _short(error: Exception) -> str:
    text = " ".join(str(error).removeprefix("chat template: ").split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
