"""vLLM's offline API: `LLM(model).generate(prompts, params)` and what belongs to it, in the caller's process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from octavo.api.engine_args import read_options
from octavo.api.offline import OfflineEngine
from octavo.api.outputs import BeamSearchOutput, RequestCollector, RequestOutput, beam_search_output
from octavo.api.pooled import OfflinePooling, Tokenizing
from octavo.api.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from octavo.api.progress import open_progress
from octavo.api.prompts import PromptType, list_conversations, list_prompts, spread
from octavo.api.tokenizer import ApiTokenizer, tokenizer_of
from octavo.engine.client import EngineInfo
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.execution.sleep import PARTS, Part
from octavo.flow.beam_search_params import BeamSearchParams
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.request import GenerationRequest
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.pooling import PER_TOKEN
from octavo.telemetry.metrics import Reading
from octavo.text.chat_template import ChatTemplate

Params = SamplingParams | Sequence[SamplingParams] | None
Messages = Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]]


class LLM:
    """A model in this process. Threads may share it: their calls run one after the other.

    Args:
        model: directory in Hugging Face layout, .gguf file or hub name; None is the demo model.
        options: every option of `octavo serve` by its name, and vLLM's: those that have no meaning here are answered
            with a warning, those that ask for something missing with an error.

    Raises:
        ConfigError, UnsupportedError: an option is wrong or asks for something that Octavo does not have.
        ModelNotFoundError, CheckpointError: the model is not there, or damaged.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._offline = OfflineEngine(read_options(model, options))
        self._queued: list[tuple[GenerationRequest, RequestCollector]] = []

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> "LLM":
        """As the constructor, from an `EngineArgs`."""
        return cls(**engine_args.options)

    # --- generating --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Continue every prompt; results come in the order of the prompts.

        Args:
            prompts: text, token ids, {"prompt": ...}, {"prompt_token_ids": ...}, or a list of these.
            sampling_params: one for all prompts or one for each; None takes the model's defaults.
            use_tqdm: show progress with token rates; or what makes the bar, called like tqdm.
            priority: one number a prompt, lower is sooner; needs scheduling_policy="priority".

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was generated then.
        """
        _refuse(lora_request=lora_request, **unsupported)
        listed = list_prompts(prompts)
        return self._run(self._prepare(listed, sampling_params, priority, True), use_tqdm)

    def chat(
        self,
        messages: Messages,
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: object = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or every one of a list; results come in their order.

        Args:
            messages: [{"role": ..., "content": ...}, ...], or a list of such lists.
            chat_template: Jinja text to use instead of the model's.
            add_generation_prompt: begin an assistant's turn.
            continue_final_message: continue the last message instead.
            chat_template_kwargs: more variables for the template.

        Raises:
            InvalidRequestError: a conversation, the template or a parameter is wrong.
        """
        del chat_template_content_format  # contents are given to the template in the form that it reads
        _refuse(lora_request=lora_request, **unsupported)
        render = self._template(chat_template).render if chat_template else self._offline.inputs.render
        variables: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        texts = [render(conversation, **variables) for conversation in list_conversations(messages)]
        # The template has written the special tokens itself.
        return self._run(self._prepare(texts, sampling_params, priority, False), use_tqdm)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: object = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of every prompt that a search of `params.beam_width` beams finds.

        Args:
            concurrency_limit: prompts that are searched for at a time (default: as many as the engine has room for).

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was generated then.
        """
        _refuse(lora_request=lora_request)
        offline = self._offline
        prepared: list[tuple[GenerationRequest, RequestCollector]] = []
        for prompt in list_prompts(prompts):
            request = offline.prepare_beams(prompt, params)
            prepared.append((request, offline.collector(request, prompt)))
        at_once = concurrency_limit or max(len(prepared), 1)
        found: list[RequestOutput] = []
        for start in range(0, len(prepared), at_once):
            found += self._run(prepared[start : start + at_once], use_tqdm)
        return [beam_search_output(one, offline.text_of_prompt(one)) for one in found]

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Keep prompts for `wait_for_completion`; returns their request ids."""
        prepared = self._prepare(list_prompts(prompts), sampling_params, priority, True)
        self._queued += prepared
        return [request.id for request, _ in prepared]

    def wait_for_completion(self, use_tqdm: bool | Callable[..., Any] = True) -> list[RequestOutput]:
        """Generate what was enqueued; results in that order."""
        queued, self._queued = self._queued, []
        return self._run(queued, use_tqdm)

    # --- pooling -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: object = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model makes of every prompt; results come in the order of the prompts.

        Args:
            pooling_params: one for all prompts or one for each; None: as the model says.
            truncate_prompt_tokens: longer prompts are cut to so many tokens; -1: to what the model takes.
            pooling_task: "embed", "token_embed", "classify", "token_classify" or "score" (None: the model's usual one).
            tokenization_kwargs: truncate_prompt_tokens, truncation_side, add_special_tokens.
            prompt_name: which of the model's prompts (config_sentence_transformers.json) goes before each text.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was computed then.
            UnsupportedError: the model generates.
        """
        _refuse(lora_request=lora_request)
        options = Tokenizing(truncate_prompt_tokens, tokenization_kwargs, prompt_name)
        task, answers = self._pooling.run(prompts, pooling_params, pooling_task, use_tqdm, options)
        return [answer.as_pooling(task in PER_TOKEN) for answer in answers]

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for every prompt; arguments as of `encode`.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong, or the model gives no vectors.
            UnsupportedError: the model generates.
        """
        _refuse(lora_request=lora_request)
        options = Tokenizing(truncate_prompt_tokens, tokenization_kwargs, prompt_name)
        _, answers = self._pooling.run(prompts, pooling_params, "embed", use_tqdm, options)
        return [answer.as_embedding() for answer in answers]

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """A number for every class of every prompt; arguments as of `encode`.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong, or the model has no classes.
            UnsupportedError: the model generates.
        """
        _refuse(lora_request=lora_request)
        options = Tokenizing(truncate_prompt_tokens, tokenization_kwargs, None)
        _, answers = self._pooling.run(prompts, pooling_params, "classify", use_tqdm, options)
        return [answer.as_classes() for answer in answers]

    def reward(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a reward model makes of every prompt; arguments as of `encode`, which this is under an older name."""
        return self.encode(
            prompts,
            pooling_params,
            truncate_prompt_tokens=truncate_prompt_tokens,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="reward",
            tokenization_kwargs=tokenization_kwargs,
        )

    def score(
        self,
        data_1: Any,
        data_2: Any,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: object = None,
        chat_template: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ScoringRequestOutput]:
        """How alike texts are: one against a list, or each of a list against its own.

        A cross-encoder reads both texts at once; of an embedding model it is the cosine of two vectors.

        Args:
            chat_template: Jinja text that writes a cross-encoder's pair out of messages with the roles "query" and
                "document"; None: --chat-template, else the two texts as the tokenizer joins them.

        Raises:
            InvalidRequestError: the numbers of texts do not fit together, or a text or parameter is wrong.
            UnsupportedError: the model generates, or has no scores.
        """
        _refuse(lora_request=lora_request)
        options = Tokenizing(truncate_prompt_tokens, tokenization_kwargs, None)
        template = None if chat_template is None else self._template(chat_template)
        return self._pooling.score((data_1, data_2), pooling_params, use_tqdm, options, template)

    # --- looking -----------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> ApiTokenizer:
        """The model's tokenizer.

        Raises:
            UnsupportedError: skip_tokenizer_init.
        """
        return tokenizer_of(self._offline.frontend)

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses without sampling_params: the model's generation_config, else vLLM's defaults."""
        return self._offline.inputs.default_params()

    def get_metrics(self) -> list[Reading]:
        """Counters, gauges and histograms since the start, under Octavo's names and vLLM's.

        Raises:
            UnsupportedError: enable_metrics=False.
        """
        if self._offline.metrics is None:
            raise UnsupportedError("metrics are off: construct LLM with enable_metrics=True")
        return self._offline.metrics.readings()

    @property
    def engine_info(self) -> EngineInfo:
        """Sizes of the engine: context length, cache blocks, batch limits."""
        return self._offline.engine.info

    @property
    def llm_engine(self) -> OfflineEngine:
        """What runs below; for looking at, its interface may change."""
        return self._offline

    def get_world_size(self) -> int:
        """Ranks the model is spread over."""
        return 1

    # --- managing ----------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        with self._offline.turn():
            return self._offline.engine.client.reset_prefix_cache()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release the KV cache's memory, and at level 2 the weights' as well; `wake_up` comes before the next prompt.

        Args:
            mode: as in vLLM; nothing can run while this is called, so it makes no difference.

        Raises:
            InvalidRequestError: there is no such level.
            UnsupportedError: construct LLM with enable_sleep_mode=True, on the native backend.
        """
        del mode
        with self._offline.turn():
            self._offline.engine.client.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring memory back: "weights", "kv_cache", or both without `tags`.

        Raises:
            InvalidRequestError: an unknown tag.
        """
        parts: list[Part] = [part for part in PARTS if tags is None or part in tags]
        if len(parts) < len(set(tags or parts)):
            raise InvalidRequestError(f"tags may be {', '.join(PARTS)}", "tags")
        with self._offline.turn():
            self._offline.engine.client.wake(parts)

    def is_sleeping(self) -> bool:
        """Something of it sleeps."""
        return self._offline.engine.client.stats().asleep > 0

    def close(self) -> None:
        """Release threads and memory; the object cannot be used any more. May be called twice."""
        self._offline.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name in _MISSING:
            raise UnsupportedError(f"LLM.{name} {_MISSING[name]}")
        raise AttributeError(f"'LLM' object has no attribute {name!r}")

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _pooling(self) -> OfflinePooling:
        """The pooled side.

        Raises:
            UnsupportedError: the model generates.
        """
        return OfflinePooling(self._offline)

    def _template(self, text: str) -> ChatTemplate:
        tokenizer = self._offline.frontend.tokenizer
        return ChatTemplate(text, tokenizer.special_tokens if tokenizer else {})

    def _prepare(
        self, prompts: Sequence[PromptType], params: Params, priority: object, add_special_tokens: bool
    ) -> list[tuple[GenerationRequest, RequestCollector]]:
        """All requests of a call, checked before the first is run."""
        offline = self._offline
        prepared: list[tuple[GenerationRequest, RequestCollector]] = []
        each_params = spread(params, len(prompts), "sampling_params")
        each_priority = spread(priority or 0, len(prompts), "priority")
        for index, (prompt, one, rank) in enumerate(zip(prompts, each_params, each_priority, strict=True)):
            try:
                request = offline.prepare(prompt, one, rank, add_special_tokens)
            except InvalidRequestError as error:
                if len(prompts) > 1:
                    error.args = (f"prompt {index}: {error}",)
                raise
            prepared.append((request, offline.collector(request, prompt)))
        return prepared

    def _run(
        self, prepared: Sequence[tuple[GenerationRequest, RequestCollector]], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        collectors = {request.id: collector for request, collector in prepared}
        with self._offline.turn(), open_progress(use_tqdm, len(prepared)) as progress:
            for deltas in self._offline.stream(request for request, _ in prepared):
                for delta in deltas:
                    collector = collectors[delta.request_id]
                    collector.push(delta)
                    if collector.output.finished:
                        progress.finished(len(collector.output.prompt_token_ids), collector.num_generated)
        return [collector.snapshot() for collector in collectors.values()]


# vLLM's methods that Octavo lacks.
_MISSING = {
    **dict.fromkeys(("release_kv_cache_memory",), "is not supported: use sleep(level=1)"),
    **dict.fromkeys(("collective_rpc", "apply_model"), "is not supported: there is no Python model to reach"),
    **dict.fromkeys(("start_profile", "stop_profile"), "is not supported yet: see `octavo bench`"),
}


def _refuse(**options: object) -> None:
    """Arguments of vLLM's methods that ask for something missing; None asks for nothing."""
    given: Iterable[str] = [name for name, value in options.items() if value is not None and value != {}]
    for name in given:
        raise UnsupportedError(f"{name} is not supported yet; leave it out")
