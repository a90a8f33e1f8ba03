"""The answers of Anthropic's Messages API: what is told, whole and in events."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.flow.receipt import ReceiptFields


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Words to the user."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """Reasoning. It is not signed: it may be sent back as it is."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens; those of the prompt are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class Message(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """Answer to POST /v1/messages without stream. Only at the start of a stream there is no `stop_reason`."""

    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET
    receipt: ReceiptFields | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True):
    """Answer to POST /v1/messages/count_tokens."""

    input_tokens: int
    warnings: list[str] | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    """The first event."""

    message: Message


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Nothing new."""


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class AddedText(msgspec.Struct, frozen=True, tag="text_delta"):
    """More of a text."""

    text: str


class AddedThinking(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More of a reasoning."""

    thinking: str


class AddedInput(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """More of a call's arguments, as JSON text."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: AddedText | AddedThinking | AddedInput


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True):
    """Why an answer ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    """The answer has ended."""

    delta: MessageEnd
    usage: MessageUsage
    receipt: ReceiptFields | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """The last event."""


MessageEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class AnthropicError(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str


class MessagesError(msgspec.Struct, frozen=True, tag="error"):
    """The body of every error of this API, and the event that ends a stream that failed."""

    error: AnthropicError
