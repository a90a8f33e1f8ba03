"""A body of the Responses API as a chat request, and what of it has no effect."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.serving.openai.schema import ChatRequest
from octavo.serving.responses.items import messages_of
from octavo.serving.responses.schema import SAME, JsonObject, ResponsesRequest

_REFUSED = {
    "conversation": "conversations are not supported; use previous_response_id",
    "prompt": "stored prompts are not supported; use instructions and input",
}
_LOGPROBS = "message.output_text.logprobs"
_PLAIN_TIERS = (None, "auto", "default")


def chat_request(body: ResponsesRequest, items: Sequence[JsonObject]) -> ChatRequest:
    """The chat request that asks for the same.

    Args:
        items: of the whole conversation, the body's own last.

    Raises:
        InvalidRequestError: a field is not what it should be.
        UnsupportedError: something is wanted that there is not.
    """
    for name, what in _REFUSED.items():
        if getattr(body, name) not in (None, 0, "", [], {}):
            raise UnsupportedError(f"{name}: {what}", name)
    if body.truncation not in (None, "disabled", "auto"):
        raise InvalidRequestError("truncation must be 'auto' or 'disabled'", "truncation")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise InvalidRequestError(
            f"max_output_tokens must be at least 1, got {body.max_output_tokens}", "max_output_tokens"
        )
    fields: JsonObject = {name: getattr(body, name) for name in SAME}
    return ChatRequest(
        **fields,
        logprobs=wants_logprobs(body) or None,
        top_logprobs=body.top_logprobs if wants_logprobs(body) else None,
        request_id=uuid.uuid4().hex,  # whoever has the id gets the response: no client chooses it
        messages=messages_of(items, body.instructions),
        max_completion_tokens=body.max_output_tokens,
        tools=[_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools or ())],
        tool_choice=_choice(body.tool_choice),
        response_format=_form(body.text),
        reasoning_effort=_effort(body.reasoning),
        user=body.safety_identifier or body.user,
    )


def wants_logprobs(body: ResponsesRequest) -> bool:
    """The answer tells log-probabilities; a number of alternatives above 0 asks for them, too."""
    return _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def without_effect(body: ResponsesRequest) -> Iterator[str]:
    """One line for each field that asks for something which does not happen."""
    reasoning, text = body.reasoning or {}, body.text or {}
    found = (
        (body.service_tier not in _PLAIN_TIERS, "service_tier has no effect: there is one"),
        (body.max_tool_calls is not None, "max_tool_calls has no effect: it is about tools that run at OpenAI's"),
        (
            reasoning.get("summary") is not None or reasoning.get("generate_summary") is not None,
            "reasoning.summary has no effect: reasoning is told as it is",
        ),
        (text.get("verbosity") is not None, "text.verbosity has no effect"),
        (set(body.include or ()) - {_LOGPROBS}, f"include: only {_LOGPROBS!r} has an effect"),
        ((body.stream_options or {}).get("include_obfuscation"), "stream_options.include_obfuscation has no effect"),
    )
    yield from (told for condition, told in found if condition)


def _tool(tool: Mapping[str, Any], where: str) -> JsonObject:
    if tool.get("type") != "function":
        raise UnsupportedError(
            f"{where}.type: {str(tool.get('type'))[:64]!r} is not supported; only 'function' is", "tools"
        )
    if not isinstance(tool.get("name"), str):
        raise InvalidRequestError(f"{where}.name: a text is required", "tools")
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in kept if tool.get(name) is not None}}


def _choice(choice: str | JsonObject | None) -> str | JsonObject | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        raise UnsupportedError(
            f"tool_choice: type {str(choice.get('type'))[:64]!r} is not supported; 'function' is", "tool_choice"
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _form(text: JsonObject | None) -> JsonObject | None:
    form: object = (text or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, Mapping):
        raise InvalidRequestError("text.format must be an object with a type", "text")
    fields = cast("Mapping[str, Any]", form)
    if fields.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {**fields}}
    return {**fields}


def _effort(reasoning: JsonObject | None) -> str | None:
    effort: object = (reasoning or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequestError("reasoning.effort must be a text", "reasoning")
    return effort
