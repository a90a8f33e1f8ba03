"""The bodies and objects of OpenAI's Responses API: what may be asked and what is told."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.flow.receipt import ReceiptFields

JsonObject = dict[str, Any]


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses. Those from `top_k` on are additions and mean what they mean in chat requests."""

    input: str | list[JsonObject]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None
    text: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning: JsonObject | None = None
    max_output_tokens: int | None = None
    truncation: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    # Refused unless neutral.
    conversation: Any = None
    prompt: Any = None
    # Additions.
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: Any = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    ttft_deadline: float | None = None
    chat_template_kwargs: JsonObject | None = None
    deterministic: bool | None = None
    receipt: JsonObject | None = None


# Fields that chat requests have by the same name.
SAME = (
    *("model", "parallel_tool_calls", "temperature", "top_p", "prompt_cache_key", "prompt_cache_retention", "top_k"),
    *("min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "priority", "cache_salt"),
    *("timeout", "ttft_deadline", "chat_template_kwargs", "stream", "deterministic", "receipt"),
    *("logit_bias", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "structured_outputs"),
)


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, as far as it is."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: JsonObject | None = None
    incomplete_details: JsonObject | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[JsonObject]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: JsonObject | None = None
    service_tier: None = None
    store: bool = True
    temperature: float | None = None
    text: JsonObject
    tool_choice: str | JsonObject = "auto"
    tools: list[JsonObject] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: JsonObject | None = None
    user: str | None = None
    metadata: dict[str, str] = {}
    warnings: list[str] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class ResponseEvent(msgspec.Struct, frozen=True):
    """An event of a response; its other fields depend on its type."""

    type: str
    sequence_number: int


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """What a response was made of."""

    object: str = "list"
    data: list[JsonObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response is not kept any more."""

    id: str
    object: str = "response"
    deleted: bool = True
