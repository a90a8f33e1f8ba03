"""POST /score and /rerank: how alike texts are."""

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.flow.request import GenerationRequest
from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.scoring import ScorePlan, plan_scores, read_texts, shortened
from octavo.serving.errors import json_response
from octavo.serving.naming import of_sides
from octavo.serving.openai.schema import BodyReader
from octavo.serving.pooling.answers import (
    Ranked,
    RankedDocument,
    Reranked,
    RerankUsage,
    ScoreData,
    Scores,
)
from octavo.serving.pooling.job import PoolingJob, check_many, framing_of, params_of, read_pooled, run_job
from octavo.serving.pooling.schema import PairFields, RerankRequest, ScoreRequest
from octavo.serving.state import ServerState, state_of

_SCORE = BodyReader(ScoreRequest)
_RERANK = BodyReader(RerankRequest)
# vLLM's names for the two sides.
_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


async def create_scores(request: Request) -> Response:
    """A score for every pair: one text against many, or each against its own."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _SCORE)
    first, second = _sides(body)
    texts = read_texts(getattr(body, first), first), read_texts(getattr(body, second), second)
    for name, side in zip((first, second), texts, strict=True):
        check_many(len(side), name)
    with of_sides(first, second).of_errors():
        job, scores = await _scored(request, state, body, processor, texts, ("score-", warnings))
    data = [ScoreData(index=index, score=score) for index, score in enumerate(scores)]
    return json_response(Scores(data=data, **job.common))


async def create_ranking(request: Request) -> Response:
    """Documents by their score for a query, the best first."""
    state = state_of(request)
    body, processor, warnings = await read_pooled(request, state, _RERANK)
    query = read_texts(body.query, "query")
    if len(query) != 1:
        raise InvalidRequestError("query: expected one text", "query")
    documents = read_texts(body.documents, "documents")
    check_many(len(documents), "documents")
    if body.top_n is not None and body.top_n < 0:
        raise InvalidRequestError(f"top_n must be at least 1, or 0 for all documents, got {body.top_n}", "top_n")
    top = body.top_n or len(documents)
    with of_sides("query", "documents").of_errors():
        job, scores = await _scored(request, state, body, processor, (query, documents), ("rerank-", warnings))
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top]
    shown = body.return_documents is not False
    results = [_ranked(index, scores[index], documents[index], shown) for index in order]
    usage = RerankUsage(job.tally.prompt_tokens, job.tally.prompt_tokens)
    return json_response(Reranked(job.id, job.model, usage, results, warnings=job.warnings or UNSET))


def _ranked(index: int, score: float, document: str, shown: bool) -> Ranked:
    return Ranked(index, score, RankedDocument(document)) if shown else Ranked(index, score)


def _sides(body: ScoreRequest) -> tuple[str, str]:
    """The names under which a body has its texts.

    Raises:
        InvalidRequestError: under none, or only one of two.
    """
    given = {name for pair in _SIDES for name in pair if getattr(body, name) is not None}
    for pair in _SIDES:
        if given == set(pair):
            return pair
    if len(given) > 2:
        raise InvalidRequestError(f"give two of these fields, not {', '.join(sorted(given))}", sorted(given)[0])
    missing = next((pair for pair in _SIDES if given & set(pair)), _SIDES[0])
    name = next(one for one in missing if one not in given)
    raise InvalidRequestError(f"{name}: this field is required", name)


async def _scored(
    request: Request,
    state: ServerState,
    body: PairFields,
    processor: PoolingProcessor,
    texts: tuple[list[str], list[str]],
    how: tuple[str, list[str]],
) -> tuple[PoolingJob, list[float]]:
    """Scores of texts. `how`: the prefix of the answer's id, and warnings there are already."""
    prefix, warnings = how
    params, framing = params_of(body), framing_of(body)
    limits = body.max_tokens_per_query or 0, body.max_tokens_per_doc or 0
    plans: list[ScorePlan] = []

    def prepare(name: str) -> list[GenerationRequest]:
        plans.append(plan_scores(processor, shortened(processor, texts, limits), params, name, framing))
        return plans[0].requests

    job = await run_job(request, state, body, prefix, prepare, warnings)
    return job, plans[0].scores(job.answers)
