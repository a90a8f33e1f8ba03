"""How alike texts are: which requests tell it, and how their answers become scores."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.pooled_values import values_of
from octavo.flow.pooling import Pooled
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest
from octavo.inputs.pooling import Framing, PoolingProcessor
from octavo.inputs.sides import SIDES


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """Requests, and the two (or, of a cross-encoder, the one twice) whose answers make each score."""

    requests: list[GenerationRequest]
    pairs: list[tuple[int, int]]
    late: bool = False

    def scores(self, answers: Sequence[Pooled]) -> list[float]:
        """A cross-encoder's number, the cosine of two vectors or, of vectors of tokens, their `_max_sim`."""
        if self.late:
            return [_max_sim(values_of(answers[a]), values_of(answers[b])) for a, b in self.pairs]
        values = [values_of(answer)[0].astype(np.float64) for answer in answers]
        return [float(values[a][0]) if a == b else _cosine(values[a], values[b]) for a, b in self.pairs]


def plan_scores(
    processor: PoolingProcessor,
    texts: tuple[list[str], list[str]],
    params: PoolingParams | None,
    request_id: str,
    framing: Framing,
) -> ScorePlan:
    """The requests that score the first texts against the second ones: one against all, or each against its own.

    Raises:
        InvalidRequestError: the numbers of texts do not fit together, or a text is wrong.
        UnsupportedError: the model has no scores.
    """
    firsts, seconds = texts
    if len(firsts) not in (1, len(seconds)):
        raise InvalidRequestError(
            f"{len(firsts)} texts cannot be scored against {len(seconds)}: give one against any number, or as many",
            "text_1",
        )
    if processor.spec.kind == "embed":
        return _by_vectors(processor, firsts, seconds, params, request_id, framing)
    if not processor.scores:
        raise UnsupportedError(
            "this model gives no scores: an embedding model or a classifier with one class (a cross-encoder) does"
        )
    wide = firsts * len(seconds) if len(firsts) == 1 else firsts
    requests: list[GenerationRequest] = []
    for number, (first, second) in enumerate(zip(wide, seconds, strict=True)):
        # Of a pair that is too long the longer text is what can be shortened.
        side, at = ("text_1", min(number, len(firsts) - 1)) if len(first) > len(second) else ("text_2", number)
        with _telling(side, at, len(firsts if side == "text_1" else seconds)):
            requests.append(processor.prepare_pair(first, second, params, f"{request_id}-{number}", framing))
    return ScorePlan(requests, [(number, number) for number in range(len(requests))])


def _by_vectors(
    processor: PoolingProcessor,
    firsts: list[str],
    seconds: list[str],
    params: PoolingParams | None,
    request_id: str,
    framing: Framing,
) -> ScorePlan:
    count, task = len(firsts), processor.tasks[0]
    requests: list[GenerationRequest] = []
    for side, texts, role in (("text_1", firsts, SIDES[0]), ("text_2", seconds, SIDES[1])):
        framing = replace(framing, side=role)
        for number, text in enumerate(texts):
            with _telling(side, number, len(texts)):
                requests.append(processor.prepare(text, params, f"{request_id}-{len(requests)}", task, framing))
    pairs = [(min(n, count - 1), count + n) for n in range(len(seconds))]
    return ScorePlan(requests, pairs, processor.spec.late)


@contextmanager
def _telling(side: str, number: int, count: int) -> Generator[None, None, None]:
    """Errors about a text say which of the two sides has it, and, of several, where."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param in (None, "input", "prompt"):
            error.param = side
            error.args = (f"{side}{f'[{number}]' if count > 1 else ''}: {error}",)
        raise


def shortened(
    processor: PoolingProcessor, texts: tuple[list[str], list[str]], limits: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """The texts of both sides, cut to their first tokens. `limits`: how many; 0: all.

    Raises:
        InvalidRequestError: a limit is below 0.
    """
    for name, limit in zip(("max_tokens_per_query", "max_tokens_per_doc"), limits, strict=True):
        if limit < 0:
            raise InvalidRequestError(f"{name} must be at least 1, or 0 for no limit, got {limit}", name)
    first, second = (
        [processor.shortened(text, limit) for text in side] if limit else side
        for side, limit in zip(texts, limits, strict=True)
    )
    return first, second


def read_texts(value: object, name: str) -> list[str]:
    """Texts to be scored: one, or a list of them, each a string, {"text": ...} or {"content": [text parts]}.

    Raises:
        InvalidRequestError: something else, or nothing.
        UnsupportedError: images and other media.
    """
    listed: list[object] = []
    if isinstance(value, (str, Mapping)):
        listed = [cast(object, value)]
    elif isinstance(value, (list, tuple)):
        listed = list(cast(Sequence[object], value))
    else:
        raise InvalidRequestError(f"{name}: expected a text or a list of texts", name)
    if not listed:
        raise InvalidRequestError(f"{name} is empty: at least one text is needed", name)
    if all(isinstance(item, Mapping) and "type" in item for item in listed):
        listed = [{"content": listed}]
    texts = [_text_of(item, name) for item in listed]
    if "" in texts:
        raise InvalidRequestError(f"{name}: text {texts.index('')} is empty", name)
    return texts


def _text_of(item: object, name: str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        fields = cast(Mapping[str, Any], item)
        parts: object = fields.get("content")
        if isinstance(parts, list):
            return "\n".join(_part_text(part, name) for part in cast(list[object], parts))
        text: object = fields.get("text", parts)
        if isinstance(text, str):
            return text
    raise InvalidRequestError(f"{name}: expected a text, or an object with a text", name)


def _part_text(part: object, name: str) -> str:
    fields: Mapping[str, Any] = cast(Mapping[str, Any], part) if isinstance(part, Mapping) else {}
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return str(fields["text"])
    if fields.get("type", "text") != "text":
        raise UnsupportedError(
            f"{name}: parts of type {str(fields['type'])[:64]!r} are not supported, only text is", name
        )
    raise InvalidRequestError(f"{name}: a part needs a text", name)


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(a @ b / max(float(np.sqrt((a @ a) * (b @ b))), 1e-12))


def _max_sim(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """For each token of the first text the likest of the second's, all added up (Khattab and Zaharia 2020,
    arXiv:2004.12832, equation 3). Both: [tokens, width]."""
    if not len(second):  # all of its tokens are skipped
        return 0.0
    likeness: NDArray[np.float64] = np.einsum("ik,jk->ij", first, second, dtype=np.float64, optimize=True)
    return float(likeness.max(axis=1).sum())
