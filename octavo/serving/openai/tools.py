"""What a chat request may call: its tools, its choice, how the answer is read and, where it must call, held to it."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.inputs.keywords import misspelt
from octavo.outputs.answer.enforce import can_guard, enforced
from octavo.outputs.answer.formats import ToolFormat
from octavo.outputs.answer.parser import AnswerShape
from octavo.serving.openai.schema import MOST_WARNINGS, ChatRequest
from octavo.serving.state import ServerState

_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")
_MOST_TOOLS = 512


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that a request offers: parameters by name, and which may or must be called.

    `choice`: "none", "auto", "required", or "named" with one tool in `tools`. `strict`: to be called right.
    """

    tools: Mapping[str, Any] = field(default_factory=dict[str, Any])
    choice: str = "none"
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def must(self) -> bool:
        """A tool has to be called."""
        return self.choice in ("required", "named")

    def guards(self, form: ToolFormat | None) -> bool:
        """Calls that the model chooses to make have to be right, and can be made to be."""
        return self.choice == "auto" and bool(self.strict) and can_guard(form)


def read_tool_use(body: ChatRequest, state: ServerState) -> tuple[ToolUse, list[str]]:
    """The request's tools and choice, and what should be said about them.

    Raises:
        InvalidRequestError: a tool or a choice that is none.
        UnsupportedError: calls that this server cannot read.
    """
    tools = _tools(body.tools or [])
    choice, named = _choice(body.tool_choice, bool(tools))
    warnings: list[str] = []
    if choice in ("required", "named") and not tools:
        raise InvalidRequestError("tool_choice: there are no tools to choose from", "tool_choice")
    if named is not None:
        if named not in tools:
            raise InvalidRequestError(f"tool_choice: {named[:128]!r} is none of the tools", "tool_choice")
        tools = {named: tools[named]}
    formats = state.formats
    if choice == "auto":
        _check_auto(state)
    warnings += unshown(state, bool(tools) and choice != "none")
    strict = frozenset(name for name, function in _functions(body) if function.get("strict"))
    warnings += _misspelt(body)
    use = ToolUse(tools, choice, body.parallel_tool_calls is not False and named is None, strict)
    if strict and choice == "auto" and not use.guards(formats.tools):
        warnings.append("tools: strict has no effect on calls in this model's format, unless a call is required")
    return use, warnings


def _misspelt(body: ChatRequest) -> list[str]:
    """Keywords of parameters' schemas that are none; a few at most."""
    found = (
        line
        for number, (_, function) in enumerate(_functions(body))
        for line in misspelt(function.get("parameters"), f"tools[{number}].function.parameters")
    )
    return list(islice(found, MOST_WARNINGS))


def unshown(state: ServerState, tools: bool) -> list[str]:
    """What is to be said where tools are given and the model never learns of them."""
    if not tools or state.formats.shows_tools:
        return []
    return ["tools: the model's chat template does not show it the tools: --chat-template"]


def shape_of(body: ChatRequest, state: ServerState, use: ToolUse, prompt: str) -> AnswerShape:
    """How the answer to this prompt is read."""
    form: ToolFormat | None = None
    if use.choice == "auto":
        form = state.formats.tools
    elif use.must:
        form = enforced(state.formats.tools)
    reasoning = state.formats.reasoning
    opened = reasoning is not None and not body.continue_final_message and reasoning.opened_by(prompt)
    return AnswerShape(reasoning, opened, form, use.tools, None if use.parallel else 1, use.must)


def call_id(form: ToolFormat | None) -> str:
    """A new call's name. Mistral's templates take only those of nine letters and digits."""
    number = uuid.uuid4().hex
    return number[:9] if form is not None and form.name == "mistral" else f"chatcmpl-tool-{number}"


def _functions(body: ChatRequest) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and descriptions of the tools, which are known to be right."""
    return [(tool["function"]["name"], tool["function"]) for tool in body.tools or ()]


def _tools(listed: list[dict[str, Any]]) -> dict[str, Any]:
    if len(listed) > _MOST_TOOLS:
        raise InvalidRequestError(f"tools: at most {_MOST_TOOLS} are taken, got {len(listed)}", "tools")
    tools: dict[str, Any] = {}
    for number, tool in enumerate(listed):
        where = f"tools[{number}]"
        if tool.get("type", "function") != "function":
            raise UnsupportedError(
                f"{where}.type: only 'function' is supported, got {str(tool.get('type'))[:64]!r}", "tools"
            )
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise InvalidRequestError(f"{where}.function: an object is required", "tools")
        fields = cast("Mapping[str, Any]", function)
        name, parameters = fields.get("name"), fields.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{where}.function.name must be 1 to 128 letters, digits, '_', '-' or '.', got {str(name)[:64]!r}",
                "tools",
            )
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequestError(f"{where}.function.parameters must be a JSON schema", "tools")
        kind = repr("object" if parameters is None else cast("Mapping[str, Any]", parameters).get("type", "object"))
        if "'object'" not in kind:  # it may be a list
            raise InvalidRequestError(f"{where}.function.parameters must be of type 'object', got {kind[:64]}", "tools")
        if name in tools:
            raise InvalidRequestError(f"{where}: there are two tools of the name {name!r}", "tools")
        tools[name] = parameters
    return tools


def _choice(choice: object, any_tools: bool) -> tuple[str, str | None]:
    if choice is None:
        return ("auto" if any_tools else "none"), None
    if choice == "auto" and not any_tools:
        return "none", None
    if choice in ("none", "auto", "required"):
        return str(choice), None
    if isinstance(choice, Mapping):
        fields = cast("Mapping[str, Any]", choice)
        function = fields.get("function")
        name = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else None
        if fields.get("type") == "function" and isinstance(name, str):
            return "named", name
    raise InvalidRequestError(
        "tool_choice must be 'none', 'auto', 'required' or "
        '{"type": "function", "function": {"name": ...}}, got ' + f"{choice!r:.100}",
        "tool_choice",
    )


def _check_auto(state: ServerState) -> None:
    instead = "set tool_choice to 'none', 'required' or a function"
    if not state.config.enable_auto_tool_choice:
        raise UnsupportedError(
            f"tools: the model may not choose to call them (--enable-auto-tool-choice); {instead}", "tools"
        )
    if state.formats.tools is None:
        raise UnsupportedError(
            f"tools: how this model writes calls is not known ({state.formats.tools_reason}): start the server with "
            f"--tool-call-parser, or {instead}",
            "tools",
        )
