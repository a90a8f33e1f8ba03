"""POST /v1/embeddings, /pooling and /classify."""

from starlette.requests import Request
from starlette.responses import Response

from octavo.flow.pooled_values import values_of
from octavo.inputs.pooling import PER_TOKEN
from octavo.serving.errors import json_response
from octavo.serving.openai.schema import BodyReader
from octavo.serving.pooling.answers import (
    ClassData,
    Classes,
    EmbeddingData,
    Embeddings,
    PoolingAnswer,
    PoolingData,
)
from octavo.serving.pooling.encoding import base64_of, bytes_response, numbers_of
from octavo.serving.pooling.job import PoolingJob, params_of, read_pooled, run_inputs
from octavo.serving.pooling.schema import ClassifyRequest, EmbeddingRequest, EncodedFields, PoolingRequest
from octavo.serving.state import state_of

_EMBEDDINGS = BodyReader(EmbeddingRequest)
_POOLING = BodyReader(PoolingRequest)
_CLASSIFY = BodyReader(ClassifyRequest)


async def create_embeddings(request: Request) -> Response:
    """A vector for every input."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _EMBEDDINGS)
    task = processor.task_of("embed", "model")
    job = await run_inputs(request, state, body, "embd-", task, params_of(body, dimensions=body.dimensions), warnings)
    if _as_bytes(body):
        return bytes_response(job, body, False)
    data = [
        EmbeddingData(index=index, embedding=base64_of(answer, body) if _as_base64(body) else numbers_of(answer, False))
        for index, answer in enumerate(job.answers)
    ]
    return json_response(Embeddings(data=data, **job.common))


async def create_pooling(request: Request) -> Response:
    """What the model makes of every input: for the text, or for each of its tokens."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _POOLING)
    task = processor.task_of(body.task)
    params = params_of(
        body, dimensions=body.dimensions, step_tag_id=body.step_tag_id, returned_token_ids=body.returned_token_ids
    )
    job = await run_inputs(request, state, body, "pool-", task, params, warnings)
    per_token = task in PER_TOKEN
    if _as_bytes(body):
        return bytes_response(job, body, per_token)
    data = [
        PoolingData(index=index, data=base64_of(answer, body) if _as_base64(body) else numbers_of(answer, per_token))
        for index, answer in enumerate(job.answers)
    ]
    return json_response(PoolingAnswer(data=data, **job.common))


async def create_classes(request: Request) -> Response:
    """The class of every input."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _CLASSIFY)
    task = processor.task_of("classify", "model")
    job = await run_inputs(request, state, body, "classify-", task, params_of(body), warnings)
    data = _classes(job, processor.spec.labels)
    return json_response(Classes(data=data, **job.common))


def _classes(job: PoolingJob, labels: tuple[str, ...]) -> list[ClassData]:
    found: list[ClassData] = []
    for index, answer in enumerate(job.answers):
        numbers = values_of(answer)[0]
        best = int(numbers.argmax())
        found.append(ClassData(index, labels[best] if best < len(labels) else None, numbers.tolist(), len(numbers)))
    return found


def _as_base64(body: EncodedFields) -> bool:
    return body.encoding_format == "base64"


def _as_bytes(body: EncodedFields) -> bool:
    return body.encoding_format in ("bytes", "bytes_only")
