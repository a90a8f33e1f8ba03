"""Which fields inside a body's objects and lists nobody reads: each is told, as those at the top are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union, cast

# Known fields and what is known inside them; None: anything may be there. A shape holds for each item of a list, too.
Shape = Union[Mapping[str, "Shape"], None]  # noqa: UP007  a name in quotes is not yet a type

_MOST_LOOKED_AT = 4096  # items of one list


def _known(*names: str, **inside: Shape) -> Shape:
    return {**dict.fromkeys(names), **inside}


_CALLED = _known("name", "arguments")
_CALL = _known("id", "type", "index", function=_CALLED)
_CACHE = _known("type", "ttl")
_PART = _known("type", "text", "refusal", "annotations", "logprobs", cache_control=_CACHE)
_FUNCTION = _known("name", "description", "parameters", "strict")
_SCHEMA = _known("name", "description", "schema", "strict")
_REPETITION = _known("max_pattern_size", "min_pattern_size", "min_count")

# Of OpenAI's chat and text completions.
MESSAGES = _known(
    *("role", "name", "tool_call_id", "reasoning", "reasoning_content", "refusal", "annotations", "audio"),
    content=_PART,
    tool_calls=_CALL,
    cache_control=_CACHE,
)
TOOLS = _known("type", function=_FUNCTION)
CHOICE = _known("type", function=_known("name"))
COMPLETION: Mapping[str, Shape] = {
    "stream_options": _known("include_usage", "continuous_usage_stats"),
    "response_format": _known("type", "structures", "triggers", "format", "schema", json_schema=_SCHEMA),
    "repetition_detection": _REPETITION,
    "cache_control": _CACHE,
}
CHAT: Mapping[str, Shape] = {**COMPLETION, "tool_choice": CHOICE}

# Of OpenAI's Responses. Items are of many types; what any of them has is known.
RESPONSES: Mapping[str, Shape] = {
    "input": _known(
        *("type", "id", "role", "status", "call_id", "name", "arguments", "encrypted_content", "phase"),
        content=_PART,
        output=_PART,
        summary=_PART,
    ),
    "tools": _known("type", "name", "description", "parameters", "strict"),
    "tool_choice": _known("type", "name"),
    "text": _known("verbosity", format=_known("type", "name", "description", "schema", "strict")),
    "reasoning": _known("effort", "summary", "generate_summary"),
    "stream_options": _known("include_obfuscation"),
}

# Of Anthropic's Messages.
_BLOCK_FIELDS = (
    *("type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id", "is_error", "citations"),
    *("source", "title", "context", "caller"),
)
_BLOCK = _known(*_BLOCK_FIELDS, cache_control=_CACHE, content=_known(*_BLOCK_FIELDS, cache_control=_CACHE))
ANTHROPIC: Mapping[str, Shape] = {
    "messages": _known("role", content=_BLOCK),
    "system": _known("type", "text", "citations", cache_control=_CACHE),
    "tools": _known("type", "name", "description", "input_schema", "strict", cache_control=_CACHE),
    "tool_choice": _known("type", "name", "disable_parallel_tool_use"),
    "thinking": _known("type", "budget_tokens", "display"),
    "metadata": _known("user_id"),
    "output_config": _known("effort", format=_known("type", "name", "schema")),
    "cache_control": _CACHE,
}


def unknown_fields(
    value: object, shape: Shape, place: str, reads: Callable[[str], bool] | None = None
) -> Iterator[str]:
    """A line for each field below `place` that nobody reads.

    Args:
        reads: tells of a name whether somebody else, such as the chat template, reads it.
    """
    if shape is None:
        return
    if isinstance(value, Mapping):
        for name, inside in cast("Mapping[object, object]", value).items():
            key = str(name)
            if key in shape:
                yield from unknown_fields(inside, shape[key], f"{place}.{key}", reads)
            elif reads is None or not reads(key):
                yield f"unknown field '{place}.{key[:64]}' was ignored"
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for number, item in enumerate(cast("Sequence[Any]", value)[:_MOST_LOOKED_AT]):
            yield from unknown_fields(item, shape, f"{place}[{number}]", reads)
