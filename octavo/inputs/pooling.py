"""Texts and pairs of texts to requests whose answer is made of hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from octavo.errors import InvalidRequestError, PromptTooLongError, UnsupportedError
from octavo.flow.pooling import Pooling
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.inputs.limits import InputLimits, check_priority, short_salt
from octavo.inputs.prompt import Prompt, read_prompt
from octavo.inputs.sides import SIDES, Side, SideTokens, side_tokens
from octavo.spec.pooling import PoolerSpec
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

Task = Literal["embed", "token_embed", "classify", "token_classify", "score"]
PER_TOKEN: tuple[Task, ...] = ("token_embed", "token_classify")  # answers are one for each token
# Other names that vLLM has, or had, for tasks.
_ALIASES: dict[str, str] = {
    "embedding": "embed",
    "encode": "token_embed",
    "classification": "classify",
    "token_classification": "token_classify",
}
_NOTHING_DRAWN = Sampling(temperature=0.0)
_LONG_TEXT = 16  # characters a token beyond which a text is measured before it is tokenized
_CUT_TEXT = 1 << 20  # characters of a text that is cut anyway, at least


@dataclass(frozen=True, slots=True)
class Framing:
    """What belongs to a request besides its text. `prompt_name`: which of the model's prompts goes before the text.
    `side`: which side of late interaction it is; None: `prompt_name` may say so.
    `template`: writes a pair of texts, in place of the server's."""

    arrival: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    add_special_tokens: bool = True
    prompt_name: str | None = None
    side: Side | None = None
    template: ChatTemplate | None = None


_PLAIN = Framing()


class PoolingProcessor:
    """The only way of pooled requests into the engine. Safe to share between threads.

    Args:
        tokenizer: None takes token ids only.
        limits: of this model.
        spec: what the model's states are read as.
        name: of the model, for messages.
        template: writes a pair of texts, which have the roles "query" and "document", for a cross-encoder.

    Raises:
        CheckpointError: the tokenizer lacks what marks queries and documents.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        limits: InputLimits,
        spec: PoolerSpec,
        name: str,
        template: ChatTemplate | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self.limits = limits
        self.spec = spec
        self._name = name
        self._sides = side_tokens(spec.sides, tokenizer)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What may be asked for, what is usual first."""
        if self.spec.kind == "embed":
            return ("token_embed",) if self.spec.late else ("embed", "token_embed")
        if self.spec.kind == "token_classify":
            return ("token_classify",)
        return ("classify", "score") if self.spec.width == 1 else ("classify",)

    @property
    def scores(self) -> bool:
        """Texts can be compared."""
        return self.spec.kind == "embed" or "score" in self.tasks

    def task_of(self, name: str | None, field: str = "task") -> Task:
        """The task of a name; None is the usual one. `field`: what asked for it.

        Raises:
            InvalidRequestError: this model has no such task.
        """
        if name is None:
            return self.tasks[0]
        task = _ALIASES.get(name, name)
        if task == "reward":  # vLLM's older name
            task = self.tasks[0] if self.spec.kind != "embed" else task
        if task == "token_embed" and name == "encode":
            return self.tasks[-1] if self.spec.kind == "embed" else self.tasks[0]
        if task not in self.tasks:
            raise InvalidRequestError(
                f"model {self._name} has no task {name[:64]!r}; it does {' and '.join(self.tasks)}", field
            )
        return task

    def refuse_generation(self) -> UnsupportedError:
        """The error for a prompt to this model; names what it does, and where to ask for it."""
        uses = [("/v1/embeddings", "embed")] if "embed" in self.tasks else []
        uses += [("/classify", "classify")] if "classify" in self.tasks else []
        uses += [("/score", "score"), ("/rerank", "score")] if self.scores else []
        routes, methods = zip(*uses, ("/pooling", "encode"), strict=True)
        return UnsupportedError(
            f"model {self._name} is pooled: it does {' and '.join(self.tasks)} and generates no text; "
            f"use {' or '.join(routes)} ({', '.join(f'LLM.{name}' for name in dict.fromkeys(methods))})",
            "model",
        )

    def prepare(
        self, prompt: Prompt, params: PoolingParams | None, request_id: str, task: Task, framing: Framing = _PLAIN
    ) -> GenerationRequest:
        """A request for one text.

        Args:
            prompt: text, token ids, {"prompt": ...} or {"prompt_token_ids": ...}.
            params: None: as the model says. Not altered.

        Raises:
            InvalidRequestError: what is wrong and what would be right; PromptTooLongError among them.
            UnsupportedError: what Octavo does not have.
        """
        checked = _checked(params)
        read = read_prompt(prompt)
        limit = self._cut_at(checked)
        side = None
        if read.ids is not None:
            ids, second_at = _cut(list(read.ids), limit, checked.truncation_side), 0
        else:
            if not read.text:
                raise InvalidRequestError("the text is empty", "input")
            text = self._prefix(framing.prompt_name) + read.text
            side = self._side_of(framing)
            if side is None:
                ids, second_at = self._encode(text, None, limit, checked, framing)
            else:
                ids, second_at = self._encode_side(text, side, limit, checked, framing), 0
        request = self._request(
            ids,
            second_at,
            checked,
            request_id,
            task,
            replace(framing, cache_salt=framing.cache_salt or read.cache_salt),
        )
        if side is not None and request.pooling is not None:
            request = replace(request, pooling=replace(request.pooling, skipped=side.skipped))
        return request

    def prepare_pair(
        self, first: str, second: str, params: PoolingParams | None, request_id: str, framing: Framing = _PLAIN
    ) -> GenerationRequest:
        """A request for the score of two texts that a cross-encoder reads as one.

        Raises:
            InvalidRequestError: as `prepare`.
        """
        checked = _checked(params)
        limit, template = self._cut_at(checked), framing.template or self._template
        if template is not None:
            pair = [{"role": "query", "content": first}, {"role": "document", "content": second}]
            text = template.render(pair, add_generation_prompt=True)
            ids, second_at = self._encode(text, None, limit, checked, framing)
        elif self.spec.joined:
            ids, second_at = self._encode(first + second, None, limit, checked, framing)
        else:
            ids, second_at = self._encode(first, second, limit, checked, framing)
        return self._request(ids, second_at, checked, request_id, "score", framing)

    def shortened(self, text: str, tokens: int) -> str:
        """The beginning of a text, as many tokens of it as that; whole characters.

        Raises:
            InvalidRequestError: there is no tokenizer.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer (skip_tokenizer_init): texts cannot be cut", "documents")
        most = tokens * self.tokenizer.longest_token()
        return self.tokenizer.beginning(text[: max(most, _CUT_TEXT)], tokens)

    def _request(
        self, ids: list[int], second_at: int, params: PoolingParams, request_id: str, task: Task, framing: Framing
    ) -> GenerationRequest:
        check_priority(framing.priority)
        self._check_ids(ids)
        pooling = self._pooling(params, task)
        if second_at and self.spec.token_types > 1:
            pooling = replace(pooling, second_at=second_at)
        return GenerationRequest(
            id=request_id,
            prompt_token_ids=tuple(ids),
            sampling=_NOTHING_DRAWN,
            stopping=Stopping(0),
            arrival=framing.arrival,
            priority=framing.priority,
            cache_salt=short_salt(framing.cache_salt),
            detokenize=False,
            pooling=pooling,
        )

    def _pooling(self, params: PoolingParams, task: Task) -> Pooling:
        spec, active = self.spec, params.activates
        if params.dimensions is not None and task not in ("embed", "token_embed"):
            raise InvalidRequestError("dimensions are of embeddings only", "dimensions")
        for name in ("step_tag_id", "returned_token_ids"):
            if getattr(params, name) is not None and task != "token_classify":
                raise InvalidRequestError(f"{name} is of models with classes of every token only", name)
        if task in ("embed", "token_embed"):
            return Pooling(
                "all" if task == "token_embed" else spec.how,
                normalize=spec.normalize if active is None else active,
                dimensions=self._dimensions(params.dimensions),
            )
        squashing = spec.score_squashing if task == "score" else spec.squashing
        tag = spec.step_tag if params.step_tag_id is None else params.step_tag_id
        how = "step" if tag is not None and spec.how in ("all", "step") else spec.how
        returned = spec.returned if params.returned_token_ids is None else tuple(params.returned_token_ids)
        if any(not 0 <= number < spec.width for number in returned):
            raise InvalidRequestError(
                f"returned_token_ids must be below {spec.width}, the numbers that this model has of a token",
                "returned_token_ids",
            )
        return Pooling(
            how,
            squashing="none" if active is False else squashing,
            step_tag=-1 if tag is None else tag,
            returned=returned,
        )

    def _dimensions(self, asked: int | None) -> int:
        """How long an embedding becomes; 0: as it is.

        Raises:
            InvalidRequestError: this model's cannot be cut to that.
        """
        spec = self.spec
        wanted = spec.dimensions if asked is None else asked
        if wanted is None or wanted == spec.width:
            return 0
        if spec.matryoshka == ():
            raise InvalidRequestError(
                f"model {self._name} does not support matryoshka representation: its embeddings have {spec.width} "
                f"dimensions and cannot be cut to {wanted}",
                "dimensions",
            )
        if spec.matryoshka and wanted not in spec.matryoshka:
            known = ", ".join(map(str, spec.matryoshka))
            raise InvalidRequestError(f"dimensions may be {known}, or {spec.width}, got {wanted}", "dimensions")
        if wanted > spec.width:
            raise InvalidRequestError(f"dimensions must be between 1 and {spec.width}, got {wanted}", "dimensions")
        return wanted

    def _prefix(self, name: str | None) -> str:
        """The prompt that goes before a text.

        Raises:
            InvalidRequestError: the model has none of that name.
        """
        spec = self.spec
        if name is None:
            return "" if spec.default_prompt is None else spec.prompts[spec.default_prompt]
        if name not in spec.prompts and name in self._sides:
            return ""
        if name not in spec.prompts:
            known = ", ".join(sorted({*spec.prompts, *self._sides})) or "none"
            raise InvalidRequestError(f"prompt_name {name[:64]!r}: the model's prompts are {known}", "prompt_name")
        return spec.prompts[name]

    def _cut_at(self, params: PoolingParams) -> int | None:
        asked, most = params.truncate_prompt_tokens, self.limits.max_model_len
        if asked is not None and asked > most:
            raise InvalidRequestError(
                f"truncate_prompt_tokens {asked} is more than the {most} tokens that this model takes",
                "truncate_prompt_tokens",
            )
        return most if asked == -1 else asked

    def _encode(
        self, text: str, second: str | None, limit: int | None, params: PoolingParams, framing: Framing
    ) -> tuple[list[int], int]:
        """Token ids, and where the second text begins; 0: nowhere.

        Raises:
            InvalidRequestError: no tokenizer, not Unicode, or too long to be worth tokenizing.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer (skip_tokenizer_init): give token ids", "prompt")
        texts = [self._measured(one, limit, params) for one in (text, second) if one is not None]
        side = params.truncation_side or "right"
        parts = self.tokenizer.encode_parts(texts, framing.add_special_tokens, limit, side)
        return parts.ids, parts.second_at

    def _side_of(self, framing: Framing) -> SideTokens | None:
        """What frames a text: it is said to be a query or a document, or a prompt of that name is asked for."""
        named: Side | None = next((name for name in SIDES if framing.prompt_name == name), None)
        side = framing.side or named
        return None if side is None else self._sides.get(side)

    def _encode_side(
        self, text: str, side: SideTokens, limit: int | None, params: PoolingParams, framing: Framing
    ) -> list[int]:
        most = min(side.length, self.limits.max_model_len if limit is None else limit)
        ids, _ = self._encode(text, None, most - len(side.mark), params, framing)
        return side.framed(ids, most)

    def _measured(self, text: str, limit: int | None, params: PoolingParams) -> str:
        """A text that is worth tokenizing: no longer than the model can take, spaces not counted."""
        assert self.tokenizer is not None
        text = text.lower() if self.spec.lowercase else text
        most = self.limits.max_model_len
        if len(text) <= _LONG_TEXT * most:
            return text
        bound = most * self.tokenizer.longest_token()
        if limit is not None:
            bound = max(bound, _CUT_TEXT)
            return text[-bound:] if params.truncation_side == "left" else text[:bound]
        if len(text) > bound and len(" ".join(text.split())) > bound:
            raise self._too_long(f"more than {most}")
        return text

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InvalidRequestError("the text is empty: it has no tokens", "input")
        if len(ids) > self.limits.max_model_len:
            raise self._too_long(str(len(ids)))
        self.limits.check_ids_in_vocabulary(ids)

    def _too_long(self, tokens: str) -> PromptTooLongError:
        return PromptTooLongError(
            f"this model's maximum context length is {self.limits.max_model_len} tokens, but the text has {tokens}; "
            "shorten it, or set truncate_prompt_tokens to have it cut",
            "input",
        )


def _checked(params: PoolingParams | None) -> PoolingParams:
    if params is None:
        return PoolingParams()
    if not isinstance(cast("object", params), PoolingParams):
        raise InvalidRequestError(f"pooling parameters must be PoolingParams, got {type(params).__name__}")
    return params.clone()  # fields may have been changed since: the copy is checked


def _cut(ids: list[int], limit: int | None, side: str | None) -> list[int]:
    if limit is None or len(ids) <= limit:
        return ids
    return ids[-limit:] if side == "left" else ids[:limit]


def refuse_pooling(model: str) -> UnsupportedError:
    """The error for pooling with a model that generates."""
    return UnsupportedError(
        f"model {model} generates text; start it with --runner pooling (LLM(runner='pooling')) to pool its hidden "
        "states, and --convert embed, classify or reward to say as what"
    )
