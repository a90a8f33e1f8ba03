"""How vectors are written: as numbers, as base64 of their bytes, or as the bytes themselves."""

import base64
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from octavo.flow.pooled_values import values_of
from octavo.flow.pooling import Pooled
from octavo.serving.pooling.job import PoolingJob
from octavo.serving.pooling.schema import ElementType, EncodedFields, Endianness

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def numbers_of(pooled: Pooled, per_token: bool) -> list[Any]:
    """A list of numbers, or one for each token."""
    values = values_of(pooled)
    return (values if per_token else values[0]).tolist()


def base64_of(pooled: Pooled, body: EncodedFields) -> str:
    """The base64 of an answer's bytes."""
    return base64.b64encode(bytes_of(pooled, body.embed_dtype or "float32", body.endianness or "native")).decode()


def bytes_of(pooled: Pooled, kind: ElementType, endianness: Endianness) -> bytes:
    """An answer's numbers as elements of another type and order of bytes."""
    order = {"native": sys.byteorder, "big": "big", "little": "little"}[endianness]
    mark = "<" if order == "little" else ">"
    if kind == "float32":
        return values_of(pooled).astype(f"{mark}f4").tobytes()
    if kind == "float16":
        with np.errstate(over="ignore"):
            return values_of(pooled).astype(f"{mark}f2").tobytes()
    return _bfloat16(values_of(pooled)).astype(f"{mark}u2").tobytes()


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To nearest even; answers are finite."""
    bits: NDArray[np.uint32] = np.frombuffer(values.tobytes(), np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bytes_response(job: PoolingJob, body: EncodedFields, per_token: bool) -> Response:
    """All answers one after the other; where each is, says the header `metadata` (vLLM's form)."""
    kind, order = body.embed_dtype or "float32", body.endianness or "native"
    parts = [bytes_of(answer, kind, order) for answer in job.answers]
    headers: dict[str, str] = {}
    if body.encoding_format == "bytes":
        headers["metadata"] = msgspec.json.encode(
            {
                "id": job.id,
                "created": job.created,
                "model": job.model,
                "data": list(_places(parts, job.answers, kind, order, per_token)),
                "usage": job.usage,
            }
        ).decode("latin-1")
    return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")


def _places(
    parts: Sequence[bytes], answers: Sequence[Pooled], kind: str, order: str, per_token: bool
) -> list[dict[str, Any]]:
    places: list[dict[str, Any]] = []
    start = 0
    for index, (part, answer) in enumerate(zip(parts, answers, strict=True)):
        shape = [answer.rows, answer.width] if per_token else [answer.width]
        end = start + len(part)
        where = {"start": start, "end": end, "shape": shape}
        places.append({"index": index, "embed_dtype": kind, "endianness": order, **where})
        start = end
    return places
