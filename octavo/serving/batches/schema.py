"""The bodies and objects of OpenAI's Batch API, and the lines of its files."""

from typing import Any, Literal

import msgspec

# Paths that lines may ask; those among them that are served.
ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/classify", "/pooling"),
)
ENDED = ("completed", "failed", "expired", "cancelled")

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchRequest(msgspec.Struct, kw_only=True):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a file, and in which line of it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wrong, as far as it is told."""

    object: str = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, kw_only=True):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch, as far as it is. Times are seconds since the epoch."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    model: str | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the batches, in order."""

    object: str = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Line(msgspec.Struct, frozen=True):
    """One line of an input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineAnswer(msgspec.Struct, frozen=True):
    """What was answered to a line."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: LineAnswer | None = None
    error: LineError | None = None
