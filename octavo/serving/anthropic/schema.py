"""The bodies of Anthropic's Messages API: what may be asked. Answers are in `answers.py`.

As in `openai/schema.py`, unknown fields are told in the answer's `warnings`. Those below `chat_template_kwargs` are
vLLM's additions to chat requests, and mean what they mean there.
"""

from typing import Any

import msgspec

JsonObject = dict[str, Any]


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[JsonObject]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    cache_control: JsonObject | None = None
    output_config: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    # Refused unless neutral.
    container: Any = None
    mcp_servers: Any = None
    context_management: Any = None
    # Additions.
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    ttft_deadline: float | None = None
    deterministic: bool | None = None
    receipt: JsonObject | None = None


# Fields that chat requests have by the same name.
SAME = (
    *("model", "max_tokens", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "priority", "cache_salt", "timeout", "ttft_deadline"),
    *("deterministic", "receipt"),
)
