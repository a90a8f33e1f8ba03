"""A conversation in Anthropic's blocks as one in chat messages: the one form that templates see."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError

JsonObject = dict[str, Any]
ERROR_UNSEEN = "messages: is_error has no effect: chat templates do not show it"
REDACTED = "messages: redacted_thinking was left out: only whoever wrote it can read it"


class Conversation:
    """Chat messages, made turn by turn; what is to be said about them is in `warnings`."""

    def __init__(self, system: str | Sequence[JsonObject] | None, turns: Sequence[JsonObject]) -> None:
        self.messages: list[JsonObject] = []
        self.warnings: list[str] = []
        self._names: dict[str, str] = {}  # of tools, by the id of a call
        if not turns:
            raise InvalidRequestError("messages: at least one message is needed", "messages")
        if system:
            self._add("system", self._texts(system, "system"))
        for number, turn in enumerate(turns):
            self._turn(turn, f"messages.{number}")

    @property
    def continued(self) -> bool:
        """The last turn is the beginning of the answer."""
        last = self.messages[-1]
        return last["role"] == "assistant" and not last.get("tool_calls")

    def _turn(self, turn: Mapping[str, Any], where: str) -> None:
        role, content = turn.get("role"), turn.get("content")
        if role == "user":
            self._user(content, where)
        elif role == "assistant":
            self._assistant(content, where)
        elif role == "system":
            self._add("system", self._texts(content, f"{where}.content"))
        else:
            raise InvalidRequestError(f"{where}.role must be 'user' or 'assistant', got {str(role)[:32]!r}", "messages")

    def _user(self, content: object, where: str) -> None:
        """Results of tools go before what the user says."""
        said: list[JsonObject] = []
        for block, place in _blocks(content, f"{where}.content"):
            if block.get("type") != "tool_result":
                said.append(_text(block, place))
                continue
            call = block.get("tool_use_id")
            if not isinstance(call, str):
                raise InvalidRequestError(f"{place}.tool_use_id: the id of a tool_use block is required", "messages")
            result: JsonObject = {"role": "tool", "tool_call_id": call}
            result["content"] = self._texts(block.get("content") or "", f"{place}.content")
            if call in self._names:
                result["name"] = self._names[call]
            if block.get("cache_control") is not None:
                result["cache_control"] = block["cache_control"]
            if block.get("is_error"):
                self.warnings.append(ERROR_UNSEEN)
            self.messages.append(result)
        if said or not self.messages or self.messages[-1]["role"] != "tool":
            self._add("user", said)

    def _assistant(self, content: object, where: str) -> None:
        said: list[JsonObject] = []
        thoughts: list[str] = []
        calls: list[JsonObject] = []
        for block, place in _blocks(content, f"{where}.content"):
            kind = block.get("type")
            if kind == "thinking":
                thoughts.append(_string(block, "thinking", place))
            elif kind == "redacted_thinking":
                self.warnings.append(REDACTED)
            elif kind == "tool_use":
                calls.append(self._call(block, place))
            else:
                said.append(_text(block, place))
        message = self._add("assistant", said)
        if thoughts:
            message["reasoning"] = message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = [*message.get("tool_calls", ()), *calls]

    def _call(self, block: Mapping[str, Any], place: str) -> JsonObject:
        number, name, given = _string(block, "id", place), _string(block, "name", place), block.get("input", {})
        if not isinstance(given, Mapping):
            raise InvalidRequestError(f"{place}.input must be an object", "messages")
        self._names[number] = name
        return {"id": number, "type": "function", "function": {"name": name, "arguments": given}}

    def _add(self, role: str, parts: list[JsonObject]) -> JsonObject:
        """Turns of one role that follow each other are one."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == role:
            last["content"] += parts
            return last
        message: JsonObject = {"role": role, "content": parts}
        self.messages.append(message)
        return message

    def _texts(self, content: object, where: str) -> list[JsonObject]:
        return [_text(block, place) for block, place in _blocks(content, where)]


def _blocks(content: object, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The blocks of a content, each with its place."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, where
        return
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a text or a list of blocks", where.partition(".")[0])
    for number, block in enumerate(cast("list[object]", content)):
        if not isinstance(block, Mapping):
            raise InvalidRequestError(f"{where}.{number} must be an object with a type", where.partition(".")[0])
        yield cast("Mapping[str, Any]", block), f"{where}.{number}"


def _text(block: Mapping[str, Any], where: str) -> JsonObject:
    kind = block.get("type")
    if kind != "text":
        raise UnsupportedError(
            f"{where}: blocks of type {str(kind)[:32]!r} are not supported, this model reads text only",
            where.partition(".")[0],
        )
    part: JsonObject = {"type": "text", "text": _string(block, "text", where)}
    if block.get("cache_control") is not None:
        part["cache_control"] = block["cache_control"]
    return part


def _string(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{name}: a text is required", where.partition(".")[0])
    return value
