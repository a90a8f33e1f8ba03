"""What the pooled routes tell, in the shapes of vLLM, OpenAI, Jina and Cohere."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.serving.openai.answers import Usage


class EmbeddingData(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or the base64 of their bytes."""

    index: int
    object: str = "embedding"
    embedding: list[float] | str


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v1/embeddings."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[EmbeddingData]
    usage: Usage
    warnings: list[str] | UnsetType = UNSET


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v2/embed. `embeddings`: by their form, in the order of the texts."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, Any]
    response_type: str = "embeddings_by_type"
    warnings: list[str] | UnsetType = UNSET


class PoolingData(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: numbers, a list of them for each token, or the base64 of their bytes."""

    index: int
    object: str = "pooling"
    data: list[float | list[float]] | str


class PoolingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /pooling."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PoolingData]
    usage: Usage
    warnings: list[str] | UnsetType = UNSET


class ClassData(msgspec.Struct, frozen=True):
    """The likeliest class of one text, and the numbers of all."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /classify."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ClassData]
    usage: Usage
    warnings: list[str] | UnsetType = UNSET


class ScoreData(msgspec.Struct, frozen=True, kw_only=True):
    """One score."""

    index: int
    object: str = "score"
    score: float


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /score."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ScoreData]
    usage: Usage
    warnings: list[str] | UnsetType = UNSET


class RankedDocument(msgspec.Struct, frozen=True):
    """A document as it was sent: its text, or what else it was."""

    text: str | None = None
    multi_modal: Any = None


class Ranked(msgspec.Struct, frozen=True):
    """One document's place."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankUsage(msgspec.Struct, frozen=True):
    """Tokens of all pairs."""

    prompt_tokens: int
    total_tokens: int


class Reranked(msgspec.Struct, frozen=True):
    """The answer of /rerank: the best first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Ranked]
    warnings: list[str] | UnsetType = UNSET
