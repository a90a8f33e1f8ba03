"""Chat messages in one form before a template sees them: contents as text or text parts, tool arguments as objects."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from octavo.errors import InvalidRequestError, UnsupportedError

Message = dict[str, Any]

_TEXT_PARTS = ("text", "input_text", "output_text")
_MOST_MESSAGES = 65_536


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies of the messages: content never None, keys with None left out, tool arguments parsed.

    Raises:
        InvalidRequestError: no messages, a message without a role, or a content of another type.
        UnsupportedError: a content part that is not text.
    """
    given = cast("object", messages)
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Sequence):
        raise InvalidRequestError("messages must be a list of {role, content} objects", "messages")
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message", "messages")
    if len(messages) > _MOST_MESSAGES:
        raise InvalidRequestError(f"{len(messages)} messages are too many ({_MOST_MESSAGES} are allowed)", "messages")
    return [_normalized(message, f"messages[{index}]") for index, message in enumerate(messages)]


def as_text(message: Message) -> Message:
    """The message with its parts joined by line ends."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def as_parts(message: Message) -> Message:
    """The message with its text as a list of one part."""
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def with_marker(conversation: list[Message], marker: str) -> list[Message]:
    """The conversation, its last message's text followed by `marker`."""
    *before, last = conversation
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + marker}]
    if not content:
        return [*before, {**last, "content": marker}]
    part = {**content[-1], "text": content[-1]["text"] + marker}
    return [*before, {**last, "content": [*content[:-1], part]}]


def _normalized(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(cast("object", message), Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", "messages")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise InvalidRequestError(f"{where} has no role", "messages")
    result: Message = {key: value for key, value in message.items() if value is not None}
    result["content"] = _content(message.get("content"), where)
    if "tool_calls" in result:
        calls = result["tool_calls"]
        if not isinstance(calls, (list, tuple)):
            raise InvalidRequestError(f"{where}.tool_calls must be a list", "messages")
        listed = cast("Sequence[Any]", calls)
        result["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(listed)]
    return result


def _content(content: Any, where: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(f"{where}.content must be a text or a list of parts", "messages")
    return [_part(part, f"{where}.content[{i}]") for i, part in enumerate(cast("Sequence[Any]", content))]


def _part(part: Any, where: str) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a type", "messages")
    fields = cast("Mapping[str, Any]", part)
    kind = fields.get("type", "text")
    if kind == "refusal":
        fields = {"text": fields.get("refusal")}
    elif kind not in _TEXT_PARTS:
        raise UnsupportedError(
            f"{where}: parts of type {kind!r} are not supported, this model reads text only", "messages"
        )
    text = fields.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a text", "messages")
    return {"type": "text", "text": text}


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """Templates walk the arguments as an object; clients send them as JSON text."""
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{where} must be an object", "messages")
    result = dict(cast("Mapping[str, Any]", call))
    function: Any = result.get("function")
    if not isinstance(function, Mapping):
        return result
    fields = dict(cast("Mapping[str, Any]", function))
    arguments: Any = fields.get("arguments")
    if arguments is None or isinstance(arguments, str):
        fields["arguments"] = _arguments(arguments or "", where)
    result["function"] = fields
    return result


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        value: object = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        raise InvalidRequestError(
            f"{where}.function.arguments is not JSON (cut off by max_tokens?): leave this call out, or send '{{}}'",
            "messages",
        ) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where}.function.arguments must be a JSON object", "messages")
    return cast("dict[str, Any]", value)
