"""From the body of a pooled request to running requests and back: the same for every pooled route."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from msgspec import UNSET
from starlette.requests import Request

from octavo.errors import DeadlineExceededError, InternalError, InvalidRequestError, OctavoError, UnsupportedError
from octavo.flow.delta import TextDelta
from octavo.flow.pooling import Pooled
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason
from octavo.inputs.pooling import Framing, PoolingProcessor, Task
from octavo.serving.limits import LONG_TEXT, body_bytes
from octavo.serving.naming import Naming
from octavo.serving.openai.answers import Usage
from octavo.serving.openai.chat import render
from octavo.serving.openai.generation import Tally, read_fields
from octavo.serving.openai.schema import BodyReader
from octavo.serving.pooling.schema import EncodedFields, InputFields, PooledFields
from octavo.serving.record import record_of
from octavo.serving.state import ServerState
from octavo.serving.stream import until_disconnect
from octavo.serving.tenant import tenant_of

MAX_INPUTS = 2048  # texts of one request; OpenAI's bound
_MAX_ID = 128
_MAX_SECONDS = 1e9
# Fields that ask for something missing.
_UNSUPPORTED = {
    "mm_processor_kwargs": "images, audio and video",
    "chat_template": "a chat template in the request (start the server with --chat-template)",
}
_SETTINGS = ("truncate_prompt_tokens", "truncation_side", "use_activation", "normalize", "softmax", "activation")


@dataclass(frozen=True, slots=True)
class PoolingJob:
    """One API request under way: its identity in answers, what it is answered with, and what is to be said."""

    id: str
    created: int
    model: str
    requests: list[GenerationRequest]
    answers: list[Pooled]
    tally: Tally
    warnings: list[str]

    @property
    def usage(self) -> Usage:
        """Tokens of all texts."""
        return self.tally.usage()

    @property
    def common(self) -> dict[str, Any]:
        """Fields that the answers of most routes share."""
        named = {"id": self.id, "created": self.created, "model": self.model, "usage": self.usage}
        return named | {"warnings": self.warnings or UNSET}


async def read_pooled(
    request: Request, state: ServerState, reader: BodyReader
) -> tuple[Any, PoolingProcessor, list[str]]:
    """The body of a pooled request, the way to the engine, and a warning for each field that is unknown.

    Raises:
        OctavoError: the server takes none now, its model generates, or the body is not what it should be.
    """
    body, warnings = await read_fields(request, state, reader)
    assert isinstance(body, PooledFields)
    state.check_model(body.model)
    processor = state.pooling_processor()
    for name, what in _UNSUPPORTED.items():
        if getattr(body, name) not in (None, False, "", {}):
            raise UnsupportedError(f"{name}: {what} is not supported", name)
    return body, processor, warnings


def params_of(body: PooledFields, **more: Any) -> PoolingParams:
    """The body's pooling parameters.

    Raises:
        InvalidRequestError: a value is out of its range.
    """
    given = {name: getattr(body, name) for name in _SETTINGS} | more
    return PoolingParams(**{name: value for name, value in given.items() if value is not None})


def framing_of(body: PooledFields, special: bool = True) -> Framing:
    """What belongs to each text of a body."""
    return Framing(
        arrival=time.monotonic(),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        add_special_tokens=special if body.add_special_tokens is None else body.add_special_tokens,
        prompt_name=getattr(body, "prompt_name", None),
    )


async def run_inputs(
    request: Request,
    state: ServerState,
    body: InputFields,
    prefix: str,
    task: Task,
    params: PoolingParams,
    warnings: Sequence[str] = (),
) -> PoolingJob:
    """Pool every input of a body.

    Raises:
        OctavoError: an input is refused, or the engine takes none.
    """
    processor = state.pooling_processor()
    special = True
    if body.messages is not None:
        if body.input is not None:
            raise InvalidRequestError("give either input or messages", "input")
        if body.add_generation_prompt is None:
            body.add_generation_prompt = False  # nobody answers
        inputs: list[str | list[int]] = [await render(request, state, body)]
        special = False  # the template has written the special tokens itself
    else:
        inputs = read_inputs(body.input)
    framing = framing_of(body, special)

    def prepare(name: str) -> list[GenerationRequest]:
        made: list[GenerationRequest] = []
        for number, text in enumerate(inputs):
            try:
                made.append(processor.prepare(text, params, f"{name}-{number}", task, framing))
            except InvalidRequestError as error:
                if len(inputs) > 1 and error.param in (None, "input", "prompt"):
                    error.args = (f"input {number}: {error}",)
                raise
        return made

    name = "input" if body.messages is None else "messages"
    with Naming({"input": name, "prompt": name}).of_errors():
        return await run_job(request, state, body, prefix, prepare, warnings)


async def run_job(
    request: Request,
    state: ServerState,
    body: PooledFields,
    prefix: str,
    prepare: Callable[[str], list[GenerationRequest]],
    warnings: Sequence[str] = (),
) -> PoolingJob:
    """Make requests, submit them, and wait for their answers or for the client to leave.

    Args:
        prefix: how the answer's id begins.
        prepare: makes requests whose ids are the name it is given, a dash, and a number.

    Raises:
        OctavoError: an input is refused, the engine takes none, or one of them failed.
    """
    record = record_of(request)
    public = f"{prefix}{(body.request_id or record.request_id)[:_MAX_ID]}"
    internal = uuid.uuid4().hex  # clients may repeat their ids; the engine's must differ
    if body_bytes(request) > LONG_TEXT:  # so that the event loop keeps serving others
        made = await until_disconnect(request.receive, asyncio.to_thread(prepare, internal))
    else:
        made = prepare(internal)
    said = list(dict.fromkeys([*warnings, *_notices(body, state)]))
    state.check_strict(said)
    deadlines = {"timeout": read_timeout(body)}
    tenant, weight = tenant_of(request, body.user), record.owner.weight
    requests = [replace(item, tenant=tenant, tenant_weight=weight, **deadlines) for item in made]
    tally = Tally(sum(len(item.prompt_token_ids) for item in requests), state.config.enable_prompt_tokens_details)
    stream = state.engine.open(*requests)
    record.answering(public, tally, False)
    numbers = {item.id: number for number, item in enumerate(requests)}
    answers: list[Pooled | None] = [None] * len(requests)

    async def gather() -> None:
        async with stream:
            async for deltas in stream:
                for delta in deltas:
                    answers[numbers[delta.request_id]] = answer_in(delta)
                    tally.add(delta)

    await until_disconnect(request.receive, gather())
    found = [answer for answer in answers if answer is not None]
    return PoolingJob(public, int(time.time()), state.models[0], requests, found, tally, said)


def read_timeout(body: PooledFields) -> float | None:
    """The seconds that a request allows.

    Raises:
        InvalidRequestError: they are not above 0.
    """
    if body.timeout is not None and not 0 < body.timeout <= _MAX_SECONDS:
        raise InvalidRequestError(
            f"timeout must be a number of seconds above 0 and at most {_MAX_SECONDS:.0f}, got {body.timeout}", "timeout"
        )
    return body.timeout


def answer_in(delta: TextDelta) -> Pooled:
    """The answer that a request's one delta brings.

    Raises:
        OctavoError: it brings none.
    """
    if delta.pooled is not None:
        return delta.pooled
    raise _failure(delta)


def _failure(delta: TextDelta) -> OctavoError:
    if delta.finish_reason is FinishReason.TIMEOUT:
        return DeadlineExceededError("the time allowed for this request has passed before its answer")
    return InternalError(delta.error or "the engine failed on this request")


def read_inputs(value: object) -> list[str | list[int]]:
    """Texts or lists of token ids: one, or a list of either.

    Raises:
        InvalidRequestError: nothing, an empty one, too many, or a mixture.
    """
    if value is None:
        raise InvalidRequestError("input: this field is required", "input")
    listed = cast(list[Any], value) if isinstance(value, list) else []
    if isinstance(value, str) or (listed and all(type(item) is int for item in listed)):
        inputs: list[Any] = [value]
    elif all(isinstance(item, str) for item in listed) or all(_is_ids(item) for item in listed):
        inputs = listed
    else:
        inputs = []
        value = None
    if value is None or not isinstance(value, (str, list)):
        raise InvalidRequestError(
            "input: expected a text, a list of texts, a list of token ids, or a list of such lists", "input"
        )
    if not inputs:
        raise InvalidRequestError("input is empty: at least one text is needed", "input")
    check_many(len(inputs), "input")
    empty = next((number for number, item in enumerate(inputs) if not item), None)
    if empty is not None:
        raise InvalidRequestError(f"input: text {empty} is empty", "input")
    return inputs


def check_many(count: int, name: str) -> None:
    """Raises:
    InvalidRequestError: more texts than one request may bring.
    """
    if count > MAX_INPUTS:
        raise InvalidRequestError(f"{name} has {count} texts; at most {MAX_INPUTS} can be sent at once", name)


def _is_ids(item: object) -> bool:
    return isinstance(item, list) and all(type(token) is int for token in cast(list[object], item))


def _notices(body: PooledFields, state: ServerState) -> list[str]:
    """One line for each field that asks for something which does not happen."""
    said: list[str] = []
    if body.priority and state.policy != "priority":
        said.append(f"priority has no effect: the server's scheduling policy is {state.policy!r}")
    if isinstance(body, EncodedFields) and body.encoding_format in (None, "float"):
        unused = [name for name in ("embed_dtype", "endianness") if getattr(body, name) is not None]
        said += [f"{name} has no effect: numbers are written as text (encoding_format)" for name in unused]
    if body.truncation_side is not None and body.truncate_prompt_tokens is None:
        said.append("truncation_side has no effect without truncate_prompt_tokens")
    return said
