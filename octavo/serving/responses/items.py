"""Items of the Responses API as chat messages: the one form that templates see."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError

JsonObject = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_IDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def input_items(given: str | Sequence[JsonObject]) -> list[JsonObject]:
    """The items of an input, each with a type and an id.

    Raises:
        InvalidRequestError: there is none, or one is not what it should be.
        UnsupportedError: an item of a kind that there is not.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not given:
        raise InvalidRequestError("input: at least one item is needed", "input")
    return [_item(item, f"input[{number}]") for number, item in enumerate(given)]


def _item(item: Mapping[str, Any], where: str) -> JsonObject:
    kind = item.get("type") or ("message" if "role" in item else None)
    if not isinstance(kind, str) or kind not in _IDS:
        raise UnsupportedError(
            f"{where}: items of type {str(kind)[:64]!r} are not supported; {', '.join(_IDS)} are", "input"
        )
    if kind == "message" and item.get("role") not in _ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(_ROLES)}", "input")
    number = item.get("id") or f"{_IDS[kind]}_{uuid.uuid4().hex}"
    if not isinstance(number, str):
        raise InvalidRequestError(f"{where}.id must be a text", "input")
    return {**item, "type": kind, "id": number}


def messages_of(items: Sequence[JsonObject], instructions: str | None) -> list[JsonObject]:
    """The conversation. What belongs to one turn of the assistant is one message; system and developer messages at the
    start are one, too, because templates have room for one.

    Raises:
        InvalidRequestError: an item lacks something.
    """
    messages: list[JsonObject] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        _add(messages, item, f"input[{number}]")
    return messages


def _add(messages: list[JsonObject], item: Mapping[str, Any], where: str) -> None:
    kind = item["type"]
    if kind == "function_call_output":
        output = item.get("output")
        if isinstance(output, list):
            output = _text(cast("list[object]", output), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": output or ""})
    elif kind == "function_call":
        function = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
        call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
        message = _turn(messages)
        message["tool_calls"] = [*message.get("tool_calls", ()), call]
    elif kind == "reasoning":
        parts = cast("list[object]", [*(item.get("content") or ()), *(item.get("summary") or ())])
        message = _turn(messages)
        message["reasoning"] = message["reasoning_content"] = _text(parts, where)
    else:
        _say(messages, item, where)


def _say(messages: list[JsonObject], item: Mapping[str, Any], where: str) -> None:
    role = "system" if item["role"] == "developer" else str(item["role"])
    content = item.get("content")
    text = content if isinstance(content, str) else _text(content, f"{where}.content")
    last = messages[-1] if messages else None
    if role == "system" and last is not None and len(messages) == 1 and last["role"] == "system":
        last["content"] += "\n\n" + text
    elif role == "assistant" and last is not None and last["role"] == role and not last["content"]:
        last["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _turn(messages: list[JsonObject]) -> JsonObject:
    """The assistant's turn that the conversation is in."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(parts: object, where: str) -> str:
    if not isinstance(parts, list):
        raise InvalidRequestError(f"{where} must be a text or a list of parts", "input")
    return "\n".join(_part(part, f"{where}[{number}]") for number, part in enumerate(cast("list[object]", parts)))


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a type", "input")
    fields = cast("Mapping[str, Any]", part)
    kind = fields.get("type")
    if kind == "refusal":
        return _string(fields, "refusal", where)
    if kind not in ("input_text", "output_text", "text", "reasoning_text", "summary_text"):
        raise UnsupportedError(
            f"{where}: parts of type {str(kind)[:32]!r} are not supported, this model reads text only", "input"
        )
    return _string(fields, "text", where)


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{name}: a text is required", "input")
    return value
