"""The answers of OpenAI's API in vLLM's shapes: what is told. Unset fields are left out, None is told as null."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.flow.receipt import ReceiptFields

OWNER = "octavo"


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request: each prompt once, all its answers."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct, frozen=True):
    """The drawn token at a position and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry a token."""

    content: list[ContentLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry a token. `text_offset` counts characters from the start of the text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CalledFunction(msgspec.Struct, frozen=True):
    """A function and its arguments, as JSON text; in a stream, what is new of them."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool; in a stream it has an index, and the rest once."""

    function: CalledFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """An answer."""

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] = []
    reasoning: str | None = None
    reasoning_content: str | UnsetType = UNSET  # the same, by its older name


class ChatChoice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/chat/completions without stream."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: None = None
    system_fingerprint: None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: None = None
    warnings: list[str] | UnsetType = UNSET
    cache_report: list[dict[str, Any]] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """New text of a streamed answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """New text of one of n answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One server-sent event of a streamed chat."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    cache_report: list[dict[str, Any]] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer to one prompt, whole or (in a stream) what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/completions without stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    service_tier: None = None
    system_fingerprint: None = None
    kv_transfer_params: None = None
    warnings: list[str] | UnsetType = UNSET
    cache_report: list[dict[str, Any]] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One server-sent event of a streamed text completion."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    warnings: list[str] | UnsetType = UNSET
    cache_report: list[dict[str, Any]] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class ModelPermission(msgspec.Struct, frozen=True, kw_only=True):
    """What older clients look for in a model card; everything is allowed that this server can do."""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A served model. `tasks`: "generate", or what a pooled model does, what is usual first."""

    id: str
    object: str = "model"
    created: int
    root: str
    max_model_len: int
    tasks: list[str]
    permission: list[ModelPermission]
    owned_by: str = OWNER
    parent: None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class Tokenized(msgspec.Struct, frozen=True):
    """Answer to POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    warnings: list[str] | UnsetType = UNSET


class Detokenized(msgspec.Struct, frozen=True):
    """Answer to POST /detokenize."""

    prompt: str
    warnings: list[str] | UnsetType = UNSET


class Generated(msgspec.Struct, frozen=True):
    """Answer to POST /generate: the prompt and what follows it, for each of n. Streamed, warnings come with the first
    line and a receipt with the last."""

    text: list[str]
    warnings: list[str] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class ErrorInfo(msgspec.Struct, frozen=True):
    """What went wrong; `code` is the HTTP status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every error but 401."""

    error: ErrorInfo
