"""vLLM's offline API: `LLM(model).generate(prompts, params)` and what belongs to it, in the caller's process."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from octavo.api.engine_args import read_options
from octavo.api.llm_engine import LLMEngine, refuse_options
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
from octavo.api.prompts import PromptType, TokensPrompt, list_conversations, list_prompts, spread
from octavo.api.receipts import replayed, with_seed
from octavo.api.tokenizer import ApiTokenizer, tokenizer_of
from octavo.api.views import MISSING, View, refuse
from octavo.engine.client import EngineInfo
from octavo.errors import InvalidRequestError
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
        self.llm_engine = LLMEngine.over(self._offline)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> "LLM":
        """As the constructor, from an `EngineArgs`."""
        return cls(**engine_args.options)

    # --- generating --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Continue every prompt; results come in the order of the prompts.

        Args:
            prompts: text, token ids, {"prompt": ...}, {"prompt_token_ids": ...}, or a list of these.
            sampling_params: one for all prompts or one for each; None takes the model's defaults.
            use_tqdm: show progress with token rates; or what makes the bar, called like tqdm.
            priority: one number a prompt, lower is sooner; needs scheduling_policy="priority".
            tokenization_kwargs: truncate_prompt_tokens, truncation_side, add_special_tokens.
            prompt_token_ids: older scripts' name for prompts of token ids; instead of `prompts`.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was generated then.
        """
        refuse_options(lora_request=lora_request, **unsupported)
        if prompts is not None and prompt_token_ids is not None:
            raise InvalidRequestError("give either prompts or prompt_token_ids", "prompt_token_ids")
        listed = list_prompts(prompts if prompts is not None else prompt_token_ids)
        return self._run(self._prepare(listed, sampling_params, priority, True, tokenization_kwargs), use_tqdm)

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
        tokenization_kwargs: Mapping[str, Any] | None = None,
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
        refuse_options(lora_request=lora_request, **unsupported)
        del chat_template_content_format  # contents are given to the template in the form that it reads
        how = (add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        texts = self._rendered(messages, chat_template, *how)
        # The template has written the special tokens itself.
        return self._run(self._prepare(texts, sampling_params, priority, False, tokenization_kwargs), use_tqdm)

    def preprocess_chat(
        self,
        messages: Messages,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[TokensPrompt]:
        """The prompts of conversations, as token ids for `generate`; arguments as of `chat`."""
        refuse_options(**unsupported)
        del chat_template_content_format  # contents are given to the template in the form that it reads
        how = (add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        texts = self._rendered(messages, chat_template, *how)
        return [TokensPrompt(prompt_token_ids=self._offline.inputs.tokenize(text, False)) for text in texts]

    def replay(self, receipt: Mapping[str, Any] | RequestOutput, use_tqdm: bool = False) -> RequestOutput:
        """Give an answer again from its receipt (`RequestOutput.receipt`); the new one's `replayed` tells whether every
        token is the same.

        Raises:
            InvalidRequestError: it is no receipt of this API, or the same bits cannot be promised: names what differs.
        """
        given = receipt.receipt if isinstance(receipt, RequestOutput) else receipt
        before, ids, params = replayed(given, self._offline.fingerprint())
        prompt = TokensPrompt(prompt_token_ids=ids)
        request = self._offline.prepare(prompt, params)
        return self._run([(request, self._offline.collector(request, prompt, params, before))], use_tqdm)[0]

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
        refuse_options(lora_request=lora_request)
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
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> list[str]:
        """Keep prompts for `wait_for_completion`; returns their request ids."""
        refuse_options(**{name: value for name, value in unsupported.items() if name != "use_tqdm"})
        prepared = self._prepare(list_prompts(prompts), sampling_params, priority, True, tokenization_kwargs)
        self._queued += prepared
        return [request.id for request, _ in prepared]

    def enqueue_chat(self, messages: Messages, sampling_params: Params = None, **options: Any) -> list[str]:
        """Keep conversations for `wait_for_completion`; returns their request ids.

        Args:
            options: `priority`, and what `preprocess_chat` takes.
        """
        priority = options.pop("priority", None)
        options.pop("use_tqdm", None)
        return self.enqueue(self.preprocess_chat(messages, **options), sampling_params, priority)

    def wait_for_completion(
        self, output_type: object = None, *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[RequestOutput]:
        """Generate what was enqueued; results in that order. `output_type` may say RequestOutput."""
        del output_type
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
        refuse_options(lora_request=lora_request)
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
        refuse_options(lora_request=lora_request)
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
        refuse_options(lora_request=lora_request)
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
        refuse_options(lora_request=lora_request)
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
        """As `LLMEngine.get_metrics`."""
        return self.llm_engine.get_metrics()

    @property
    def model_config(self) -> View:
        """The model, under vLLM's names."""
        return self.llm_engine.model_config

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked: "generate", or tasks of pooling."""
        return self.llm_engine.get_supported_tasks()

    @property
    def engine_info(self) -> EngineInfo:
        """Sizes of the engine: context length, cache blocks, batch limits."""
        return self._offline.engine.info

    def get_world_size(self, include_dp: bool = True) -> int:
        """Ranks the model is spread over."""
        del include_dp
        return 1

    # --- managing, as of `LLMEngine` ---------------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """There are no media to forget."""

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release the cache's memory, and at level 2 the weights' as well; `wake_up` comes before the next prompt."""
        self.llm_engine.sleep(level, mode)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring memory back: "weights", "kv_cache", or both without `tags`."""
        self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Something of it sleeps."""
        return self.llm_engine.is_sleeping()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what steps do until `stop_profile`, in `profiler_dir`; see docs/operations/server.md."""
        self.llm_engine.start_profile(profile_prefix)

    def stop_profile(self) -> list[str]:
        """End that; the files that were written."""
        return self.llm_engine.stop_profile()

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
        refuse("LLM", MISSING, name)

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

    def _rendered(
        self,
        messages: Messages,
        chat_template: str | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any] | None,
    ) -> list[str]:
        """The texts of conversations."""
        render = self._template(chat_template).render if chat_template else self._offline.inputs.render
        variables: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(more or {}),
        }
        return [render(conversation, **variables) for conversation in list_conversations(messages)]

    def _prepare(
        self,
        prompts: Sequence[PromptType],
        params: Params,
        priority: object,
        add_special_tokens: bool,
        tokenization_kwargs: Mapping[str, Any] | None,
    ) -> list[tuple[GenerationRequest, RequestCollector]]:
        """All requests of a call, checked before the first is run."""
        offline, options = self._offline, Tokenizing(None, tokenization_kwargs, None)
        prepared: list[tuple[GenerationRequest, RequestCollector]] = []
        each_params = spread(params, len(prompts), "sampling_params")
        each_priority = spread(priority or 0, len(prompts), "priority")
        for index, (prompt, one, rank) in enumerate(zip(prompts, each_params, each_priority, strict=True)):
            try:
                chosen, special = options.of_sampling(with_seed(one))
                request = offline.prepare(prompt, chosen, rank, special and add_special_tokens)
            except InvalidRequestError as error:
                if len(prompts) > 1:
                    error.args = (f"prompt {index}: {error}",)
                raise
            prepared.append((request, offline.collector(request, prompt, chosen)))
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
