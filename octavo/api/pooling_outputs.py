"""vLLM's results of pooling: vectors, classes and scores."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.flow.pooled_values import values_of
from octavo.flow.pooling import Pooled

T = TypeVar("T")
Floats = NDArray[np.float32]


@dataclass(slots=True)
class PoolingOutput:
    """`data`: float32, [width], or [tokens, width] where every token has an answer."""

    data: Floats

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and np.array_equal(self.data, other.data)


@dataclass(slots=True)
class EmbeddingOutput:
    """`embedding`: as many numbers as the model's vectors have, or as was asked for."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """`probs`: one number a class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """`score`: the higher, the more alike the two texts are."""

    score: float


@dataclass(slots=True)
class PoolingRequestOutput(Generic[T]):
    """The answer to one text, or to a pair of them."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The vector of one text."""


@dataclass(slots=True)
class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of one text."""


@dataclass(slots=True)
class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The score of two texts."""


@dataclass(slots=True)
class PooledAnswer:
    """What came back for one request."""

    request_id: str
    prompt_token_ids: list[int]
    pooled: Pooled
    num_cached_tokens: int
    common: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.common = {
            "request_id": self.request_id,
            "prompt_token_ids": self.prompt_token_ids,
            "num_cached_tokens": self.num_cached_tokens,
        }

    def as_pooling(self, per_token: bool) -> PoolingRequestOutput[PoolingOutput]:
        """In the general form."""
        values = values_of(self.pooled)
        data: Floats = values if per_token else values[0]
        return PoolingRequestOutput(outputs=PoolingOutput(np.array(data)), **self.common)

    def as_embedding(self) -> EmbeddingRequestOutput:
        """As a vector."""
        return EmbeddingRequestOutput(outputs=EmbeddingOutput(values_of(self.pooled)[0].tolist()), **self.common)

    def as_classes(self) -> ClassificationRequestOutput:
        """As classes."""
        return ClassificationRequestOutput(
            outputs=ClassificationOutput(values_of(self.pooled)[0].tolist()), **self.common
        )
