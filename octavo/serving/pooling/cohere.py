"""POST /v2/embed: vectors in the form of Cohere's API."""

import base64
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.pooled_values import values_of
from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.scoring import read_texts
from octavo.serving.errors import json_response
from octavo.serving.naming import Naming
from octavo.serving.openai.schema import BodyReader
from octavo.serving.pooling.answers import CohereEmbeddings
from octavo.serving.pooling.job import params_of, read_pooled, run_inputs
from octavo.serving.pooling.schema import CohereEmbedRequest, EmbeddingRequest, PooledFields
from octavo.serving.state import state_of

_EMBED = BodyReader(CohereEmbedRequest)
_TYPES = ("float", "base64", "binary", "ubinary")
_SIDES = {"END": "right", "START": "left"}
# What this API has under other names.
_OTHER_NAMES = {"truncate_prompt_tokens": "use max_tokens", "truncation_side": "use truncate"}
# Cohere's names of what texts are for, and how models name their prompts for it.
_PURPOSES = {"search_query": ("query",), "search_document": ("document", "passage")}


async def create_cohere_embeddings(request: Request) -> Response:
    """A vector for every text, in every form that is asked for."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _EMBED)
    warnings += [f"{name} has no effect: {usual}" for name, usual in _OTHER_NAMES.items() if getattr(body, name)]
    texts, kinds = _texts(body), _kinds(body)
    plain = _as_embedding(body, texts, processor)
    task = processor.task_of("embed", "model")
    with _names(body).of_errors():
        params = params_of(plain, dimensions=plain.dimensions)
        job = await run_inputs(request, state, plain, "embd-", task, params, warnings)
    vectors = [values_of(answer)[0] for answer in job.answers]
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": job.tally.prompt_tokens}}
    embeddings = {kind: [_written(vector, kind) for vector in vectors] for kind in kinds}
    return json_response(
        CohereEmbeddings(id=job.id, embeddings=embeddings, texts=texts, meta=meta, warnings=job.warnings or UNSET)
    )


def _names(body: CohereEmbedRequest) -> Naming:
    return Naming({"input": "texts" if body.inputs is None else "inputs", "dimensions": "output_dimension"})


def _texts(body: CohereEmbedRequest) -> list[str]:
    """The texts of a body.

    Raises:
        InvalidRequestError: there are none, or they come in two forms.
        UnsupportedError: images.
    """
    if body.images:
        raise UnsupportedError("images are not supported; send texts", "images")
    if body.texts is not None and body.inputs is not None:
        raise InvalidRequestError("give either texts or inputs", "texts")
    name, given = ("texts", body.texts) if body.inputs is None else ("inputs", body.inputs)
    if given is None:
        raise InvalidRequestError("texts: this field is required", "texts")
    return read_texts(cast(object, given), name)


def _kinds(body: CohereEmbedRequest) -> Sequence[str]:
    """Raises:
    InvalidRequestError: a form that there is not.
    """
    kinds = tuple(dict.fromkeys(body.embedding_types or ("float",)))
    for kind in kinds:
        if kind not in _TYPES:
            raise InvalidRequestError(
                f"embedding_types may be {', '.join(_TYPES)}, got {kind[:64]!r}", "embedding_types"
            )
    return kinds


def _as_embedding(body: CohereEmbedRequest, texts: list[str], processor: PoolingProcessor) -> EmbeddingRequest:
    """The same request in the form of /v1/embeddings.

    Raises:
        InvalidRequestError: a value is wrong.
    """
    how = (body.truncate or "END").upper()
    if how not in ("NONE", *_SIDES):
        raise InvalidRequestError(f"truncate may be NONE, START or END, got {how[:64]!r}", "truncate")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens must be at least 1, got {body.max_tokens}", "max_tokens")
    if body.max_tokens is not None and how == "NONE":
        raise InvalidRequestError("max_tokens cuts texts: set truncate to START or END with it", "max_tokens")
    most = processor.limits.max_model_len
    shared: dict[str, Any] = {n: getattr(body, n) for n in PooledFields.__struct_fields__ if n not in _OTHER_NAMES}
    return EmbeddingRequest(
        **shared,
        input=texts,
        dimensions=body.output_dimension,
        truncate_prompt_tokens=None if how == "NONE" else min(body.max_tokens or most, most),
        truncation_side=cast(Any, _SIDES.get(how)),
        prompt_name=_prompt_name(body.input_type, processor.spec.prompts),
    )


def _prompt_name(purpose: str | None, prompts: dict[str, str]) -> str | None:
    """The model's prompt for what texts are for; None: it makes no difference to the model."""
    if purpose is None:
        return None
    return next((name for name in (purpose, *_PURPOSES.get(purpose, ())) if name in prompts), None)


def _written(vector: NDArray[np.float32], kind: str) -> Any:
    """A vector as numbers, as the base64 of its bytes, or as one bit a number: whether it is above 0."""
    if kind == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if kind == "float":
        return vector.tolist()
    bits = np.packbits(vector > 0).astype(np.int64)
    return (bits if kind == "ubinary" else bits - 128).tolist()
