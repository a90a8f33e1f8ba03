"""A body of the Messages API as a chat request, and what of it has no effect."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.serving.anthropic.conversation import Conversation
from octavo.serving.anthropic.schema import SAME, CountTokensRequest, JsonObject, MessagesRequest
from octavo.serving.openai.schema import ChatRequest
from octavo.serving.state import ServerState

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REFUSED = {
    "container": "containers",
    "mcp_servers": "MCP servers",
    "context_management": "context management",
}
_PLAIN_TIERS = (None, "auto", "standard_only")


def chat_request(body: CountTokensRequest, state: ServerState) -> tuple[ChatRequest, list[str]]:
    """The chat request that asks for the same.

    Raises:
        InvalidRequestError: a field is not what it should be.
        UnsupportedError: something is wanted that there is not.
    """
    warnings: list[str] = []
    conversation = Conversation(body.system, body.messages)
    fields: JsonObject = {"messages": conversation.messages, "model": body.model, "cache_control": body.cache_control}
    fields |= _tools(body)
    fields |= _thinking(body, state, warnings)
    fields |= _output(body, warnings)
    if conversation.continued:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(body, MessagesRequest):
        fields |= _generation(body, warnings)
    return ChatRequest(**fields), list(dict.fromkeys([*conversation.warnings, *warnings]))


def _generation(body: MessagesRequest, warnings: list[str]) -> JsonObject:
    for name, what in _REFUSED.items():
        if getattr(body, name) not in (None, "", [], {}):
            raise UnsupportedError(f"{name}: {what} are not supported", name)
    if body.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be at least 1, got {body.max_tokens}", "max_tokens")
    if body.service_tier not in _PLAIN_TIERS:
        warnings.append("service_tier has no effect: there is one")
    user = (body.metadata or {}).get("user_id")
    if user is not None and not isinstance(user, str):
        raise InvalidRequestError("metadata.user_id must be a text", "metadata")
    others = [name for name in body.metadata or () if name != "user_id"]
    if others:
        warnings.append(f"metadata.{others[0][:64]} has no effect: only user_id has")
    return {**{name: getattr(body, name) for name in SAME}, "stop": body.stop_sequences or None, "user": user}


def _tools(body: CountTokensRequest) -> JsonObject:
    fields: JsonObject = {"tools": [_tool(tool, f"tools.{number}") for number, tool in enumerate(body.tools or ())]}
    marked = [tool["cache_control"] for tool in body.tools or () if tool.get("cache_control") is not None]
    if marked and body.cache_control is None:
        fields["cache_control"] = marked[-1]  # the whole prompt is kept: there are no borders within it
    choice = body.tool_choice
    if choice is None:
        return fields
    kind = choice.get("type")
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    else:
        raise InvalidRequestError(
            f"tool_choice.type must be 'auto', 'any', 'tool' or 'none', got {str(kind)[:32]!r}", "tool_choice"
        )
    if kind == "tool" and not isinstance(choice.get("name"), str):
        raise InvalidRequestError("tool_choice.name: the name of a tool is required", "tool_choice")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Mapping[str, Any], where: str) -> JsonObject:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise UnsupportedError(
            f"{where}.type: {str(kind)[:64]!r} would run at Anthropic's; only 'custom' is supported", "tools"
        )
    if not isinstance(tool.get("name"), str):
        raise InvalidRequestError(f"{where}.name: a text is required", "tools")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidRequestError(f"{where}.input_schema: a JSON schema is required", "tools")
    function: JsonObject = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _thinking(body: CountTokensRequest, state: ServerState, warnings: list[str]) -> JsonObject:
    fields: JsonObject = {"chat_template_kwargs": dict(body.chat_template_kwargs or {})}
    wanted = body.thinking
    if wanted is None:
        return fields
    kind = wanted.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise InvalidRequestError(
            f"thinking.type must be 'enabled', 'disabled' or 'adaptive', got {str(kind)[:32]!r}", "thinking"
        )
    # The name that Qwen's, DeepSeek's and Granite's templates have for it; others do not read it.
    template = state.inputs.chat_template
    if template is not None and template.mentions("enable_thinking"):
        fields["chat_template_kwargs"].setdefault("enable_thinking", kind != "disabled")
    if kind == "disabled":
        return fields
    budget = wanted.get("budget_tokens")
    if kind == "enabled" and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
        raise InvalidRequestError("thinking.budget_tokens: a number of tokens above 0 is required", "thinking")
    if state.formats.reasoning is None:
        warnings.append("thinking has no effect: this model's reasoning is not told apart (--reasoning-parser)")
    elif kind == "enabled":
        fields["thinking_token_budget"] = budget
    return fields


def _output(body: CountTokensRequest, warnings: list[str]) -> JsonObject:
    wanted = body.output_config or {}
    found: JsonObject = {}
    form: object = wanted.get("format")
    if form is not None:
        described: Mapping[str, Any] = {}
        if isinstance(form, Mapping):
            described = cast("Mapping[str, Any]", form)
        if described.get("type") != "json_schema" or described.get("schema") is None:
            raise InvalidRequestError(
                "output_config.format must be of type 'json_schema', with a schema", "output_config"
            )
        found["response_format"] = {"type": "json_schema", "json_schema": {"schema": described["schema"]}}
    effort = wanted.get("effort")
    if effort is not None:
        if not isinstance(effort, str):
            raise InvalidRequestError("output_config.effort must be a text", "output_config")
        found["reasoning_effort"] = effort
    warnings += _unknown(wanted)
    return found


def _unknown(wanted: Mapping[str, Any]) -> Iterator[str]:
    for name in list(wanted)[:16]:
        if name not in ("format", "effort"):
            yield f"output_config.{name[:64]} has no effect"
