"""POST /generate: the bare route of `vllm.entrypoints.api_server`, a prompt with sampling parameters beside it."""

from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.serving.errors import describe, json_response
from octavo.serving.nested import COMPLETION
from octavo.serving.openai.answers import Generated
from octavo.serving.openai.forms import read_form
from octavo.serving.openai.generation import (
    Job,
    Reading,
    best_of,
    default_length,
    error_in,
    gather,
    more_drawn,
    open_job,
    read_generation,
    sampling_params,
)
from octavo.serving.openai.schema import BodyReader, GenerateRequest
from octavo.serving.state import state_of
from octavo.serving.stream import EventStream, until_disconnect

_READER = BodyReader(GenerateRequest, COMPLETION)
_encode = msgspec.json.Encoder().encode
_DEFAULT_MAX_TOKENS = 16  # of vLLM's SamplingParams


async def generate(request: Request) -> Response:
    """The prompt and what follows it, once for each of n; streamed, a line of JSON with all of it so far each time."""
    state = state_of(request)
    body, warnings = await read_generation(request, state, _READER)
    if not body.prompt:
        raise InvalidRequestError("prompt: the prompt is empty; it needs at least one token", "prompt")
    form, said = read_form(body)
    params = more_drawn(sampling_params(body, state, body.max_tokens, structured_outputs=form), body)
    reading = Reading(warnings=warnings + said, longest=default_length(state, body.max_tokens, _DEFAULT_MAX_TOKENS))
    job = await open_job(
        request,
        state,
        body,
        [(body.prompt, {"add_special_tokens": body.add_special_tokens is not False})],
        params,
        reading,
    )
    if not body.stream:
        parts = best_of(await until_disconnect(request.receive, gather(job)), job, body.n or 1)
        texts = [body.prompt + part.text for part in parts]
        return json_response(Generated(texts, job.warnings or UNSET, job.written()))
    lines = _lines(job, body.prompt)
    first = await until_disconnect(request.receive, anext(lines))
    return EventStream(first, lines, b"", _failed)


async def _lines(job: Job, prompt: str) -> AsyncGenerator[bytes, None]:
    texts = [prompt] * job.n
    async with job.stream as stream:
        async for deltas in stream:
            error = error_in(deltas, job.tally)
            for delta in deltas:
                job.tally.add(delta)
                texts[delta.index] += delta.text
            if deltas:
                warnings, job.warnings = job.warnings, []
                yield _line(Generated(texts, warnings or UNSET))
            if error:
                raise error
        if job.receipt is not None:
            yield _line(Generated(texts, receipt=job.written()))


def _failed(error: Exception) -> bytes:
    return _line({"error": describe(error).message})


def _line(value: object) -> bytes:
    return _encode(value) + b"\n"
