"""How the offline classes pool: prompts in, answers in their order out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from octavo.api.offline import OfflineEngine
from octavo.api.pooling_outputs import PooledAnswer, ScoringOutput, ScoringRequestOutput
from octavo.api.progress import open_progress
from octavo.api.prompts import PromptType, list_prompts, spread
from octavo.errors import DeadlineExceededError, InternalError, InvalidRequestError, OctavoError, UnsupportedError
from octavo.flow.delta import TextDelta
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.pooling import Framing, PoolingProcessor, Task
from octavo.inputs.scoring import plan_scores, read_texts
from octavo.text.chat_template import ChatTemplate

Params = PoolingParams | Sequence[PoolingParams] | None
_TOKENIZATION = ("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "max_length", "truncation")


class OfflinePooling:
    """The pooled side of an engine in this process.

    Raises:
        UnsupportedError: its model generates.
    """

    def __init__(self, offline: OfflineEngine) -> None:
        self._offline = offline
        self.processor: PoolingProcessor = offline.frontend.pooling(offline.engine.info)

    def run(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: Params,
        task: str | None,
        use_tqdm: bool | Callable[..., Any],
        options: "Tokenizing",
    ) -> tuple[Task, list[PooledAnswer]]:
        """The answers to prompts, in their order, and what they are.

        Args:
            task: None: what the first parameters say, else what is usual for the model.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was computed then.
        """
        listed = list_prompts(prompts)
        each = spread(params, len(listed), "pooling_params")
        asked = task or next((one.task for one in each if one is not None and one.task), None)
        chosen = self.processor.task_of(asked)
        requests: list[GenerationRequest] = []
        for index, (prompt, one) in enumerate(zip(listed, each, strict=True)):
            try:
                name = self._offline.next_id()
                requests.append(self.processor.prepare(prompt, options.applied(one), name, chosen, options.framing))
            except InvalidRequestError as error:
                if len(listed) > 1:
                    error.args = (f"prompt {index}: {error}",)
                raise
        return chosen, self._answers(requests, use_tqdm)

    def score(
        self,
        texts: tuple[object, object],
        params: PoolingParams | None,
        use_tqdm: bool | Callable[..., Any],
        options: "Tokenizing",
        template: ChatTemplate | None = None,
    ) -> list[ScoringRequestOutput]:
        """The scores of one text against many, or of each against its own. `template`: writes the pairs.

        Raises:
            InvalidRequestError: as `run`.
            UnsupportedError: the model has no scores.
        """
        sides = read_texts(texts[0], "data_1"), read_texts(texts[1], "data_2")
        framing = replace(options.framing, template=template)
        plan = plan_scores(self.processor, sides, options.applied(params), self._offline.next_id(), framing)
        answers = self._answers(plan.requests, use_tqdm)
        scores = plan.scores([answer.pooled for answer in answers])
        found: list[ScoringRequestOutput] = []
        for score, (a, b) in zip(scores, plan.pairs, strict=True):
            ids = [] if a == b else answers[a].prompt_token_ids
            found.append(
                ScoringRequestOutput(answers[b].request_id, ScoringOutput(score), [*ids, *answers[b].prompt_token_ids])
            )
        return found

    def _answers(
        self, requests: Sequence[GenerationRequest], use_tqdm: bool | Callable[..., Any]
    ) -> list[PooledAnswer]:
        found: dict[str, PooledAnswer] = {}
        ids = {request.id: request.prompt_token_ids for request in requests}
        with self._offline.turn(), open_progress(use_tqdm, len(requests)) as progress:
            for deltas in self._offline.stream(requests):
                for delta in deltas:
                    answer = answer_of(delta, ids[delta.request_id])
                    found[delta.request_id] = answer
                    progress.finished(len(answer.prompt_token_ids), 0)
        return [found[request.id] for request in requests]


class Tokenizing:
    """Options of the methods about how texts become tokens.

    Raises:
        UnsupportedError: one that Octavo does not have.
    """

    def __init__(self, truncate_prompt_tokens: int | None, kwargs: Mapping[str, Any] | None, prompt_name: str | None):
        given = dict(kwargs or {})
        for name in given:
            if name not in _TOKENIZATION:
                raise UnsupportedError(f"tokenization_kwargs: {name} is not supported; there are {_TOKENIZATION}")
        cut = given.get("truncate_prompt_tokens", truncate_prompt_tokens)
        if cut is None and given.get("truncation"):
            cut = given.get("max_length", -1)
        self._given: dict[str, Any] = {"truncate_prompt_tokens": cut, "truncation_side": given.get("truncation_side")}
        self._special = given.get("add_special_tokens", True)
        self._prompt_name = prompt_name

    def applied(self, params: PoolingParams | None) -> PoolingParams:
        """The parameters with what the options add."""
        base = PoolingParams() if params is None else params
        if not isinstance(cast("object", base), PoolingParams):
            raise InvalidRequestError(f"pooling parameters must be PoolingParams, got {type(base).__name__}")
        return replace(base, **{name: value for name, value in self._given.items() if value is not None})

    def of_sampling(self, params: SamplingParams | None) -> tuple[SamplingParams | None, bool]:
        """Parameters of generation with what the options add, and whether special tokens are."""
        given = {name: value for name, value in self._given.items() if value is not None}
        return (replace(params or SamplingParams(), **given) if given else params), self._special

    @property
    def framing(self) -> Framing:
        """What belongs to each request besides its text."""
        return Framing(arrival=time.monotonic(), add_special_tokens=self._special, prompt_name=self._prompt_name)


def answer_of(delta: TextDelta, prompt: Sequence[int]) -> PooledAnswer:
    """The answer that a request's one delta brings.

    Raises:
        OctavoError: it brings none.
    """
    if delta.pooled is None:
        raise pooling_error(delta)
    return PooledAnswer(delta.request_id, list(prompt), delta.pooled, delta.num_cached_tokens)


def pooling_error(delta: TextDelta) -> OctavoError:
    """Why a pooled request ended without an answer."""
    if delta.finish_reason is FinishReason.TIMEOUT:
        return DeadlineExceededError("the time allowed for this request has passed before its answer")
    return InternalError(delta.error or f"the request ended without an answer ({delta.finish_reason})")
