"""vLLM's `AsyncLLM`: an async iterator of outputs for each request; the engine runs in a thread of this process."""

import itertools
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

from octavo.api.engine_args import AsyncEngineArgs, read_options
from octavo.api.llm_engine import refuse_options
from octavo.api.outputs import RequestCollector, RequestOutput, delta_output
from octavo.api.pooled import Tokenizing, answer_of
from octavo.api.pooling_outputs import PoolingOutput, PoolingRequestOutput
from octavo.api.prompts import PromptType, text_of
from octavo.api.receipts import open_offline, with_seed
from octavo.api.tokenizer import ApiTokenizer, tokenizer_of
from octavo.api.views import MISSING, View, model_config, refuse, supported_tasks, vllm_config
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine, locate_model
from octavo.engine.client import Pause
from octavo.engine.frontend import build_frontend
from octavo.engine.profile import profile_directory
from octavo.engine.threaded import ThreadedEngine
from octavo.engine.transport import Cancel
from octavo.errors import EngineDeadError, UnsupportedError
from octavo.execution.sleep import Part
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams
from octavo.inputs.pooling import PER_TOKEN
from octavo.telemetry.metrics import MetricsStore, Reading

__all__ = ["AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine"]


class AsyncLLM:
    """A model in this process for one event loop. Owner: that loop's thread.

    Args:
        model, options: as `LLM`.

    Raises:
        UserError: an option, the model or the machine does not fit.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        config = read_options(model, options)
        source = locate_model(config)
        engine = self._built = build_engine(config, source)
        self._frontend = build_frontend(config, source)
        self._inputs = self._frontend.inputs(engine.info, shorten_output=True)
        self._metrics = MetricsStore(self._frontend.name) if config.telemetry.enable_metrics else None
        self._link = ThreadedEngine(engine.client)
        self._engine = AsyncEngine(self._link, self._frontend.outputs(), self._metrics, config.scheduling.max_waiting)
        self._ids = itertools.count()
        self._close_backend = engine.backend.close

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: object = None,
        **unsupported: Any,
    ) -> "AsyncLLM":
        """As the constructor; the engine starts at once, and nothing is reported to anybody."""
        del start_engine_loop, usage_context
        refuse_options(stat_loggers=stat_loggers, **unsupported)
        return cls(**engine_args.options)

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: object = None,
        data_parallel_rank: int | None = None,
        **unsupported: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one prompt as they grow, by `sampling_params.output_kind`. Leaving the loop early cancels it.

        Args:
            tokenization_kwargs: truncate_prompt_tokens, truncation_side, add_special_tokens.
            data_parallel_rank: there is one, 0.

        Raises:
            InvalidRequestError: the prompt, a parameter or the id is wrong.
            OverloadedError, EngineDeadError: the engine does not take it.
        """
        refuse_options(lora_request=lora_request, trace_headers=trace_headers, **unsupported)
        refuse_options(data_parallel_rank=data_parallel_rank or None)
        name = request_id if request_id is not None else f"octavo-{next(self._ids)}"
        info = await self._engine.ready()
        params, special = Tokenizing(None, tokenization_kwargs, None).of_sampling(with_seed(sampling_params))
        request = self._inputs.prepare(
            prompt, params, name, arrival=time.monotonic(), priority=priority, add_special_tokens=special
        )
        receipt = None
        if params is not None and params.deterministic:
            receipt = open_offline(request, params, self._frontend.answers_fingerprint(info), None)
        collector = RequestCollector(request, text_of(prompt), self._frontend.token_text, receipt)
        kind = params.output_kind if params is not None else RequestOutputKind.CUMULATIVE
        async with self._engine.open(request) as stream:
            async for deltas in stream:
                for delta in deltas:
                    collector.push(delta)
                    if kind is RequestOutputKind.DELTA:
                        yield delta_output(collector, delta)
                whole = kind is RequestOutputKind.CUMULATIVE
                if whole or (kind is RequestOutputKind.FINAL_ONLY and collector.output.finished):
                    yield collector.snapshot()

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        lora_request: object = None,
        trace_headers: object = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """What a pooled model makes of one prompt: one output. Leaving the loop early cancels it.

        Raises:
            InvalidRequestError: the prompt, a parameter or the id is wrong.
            UnsupportedError: the model generates.
            OverloadedError, EngineDeadError: the engine does not take it.
        """
        refuse_options(lora_request=lora_request, trace_headers=trace_headers, **unsupported)
        name = request_id if request_id is not None else f"octavo-{next(self._ids)}"
        info = await self._engine.ready()
        options = Tokenizing(None, tokenization_kwargs, None)
        processor = self._frontend.pooling(info)
        task = processor.task_of(pooling_params.task if pooling_params is not None else None)
        framing = replace(options.framing, priority=priority)
        request = processor.prepare(prompt, options.applied(pooling_params), name, task, framing)
        async with self._engine.open(request) as stream:
            async for deltas in stream:
                for delta in deltas:
                    answer = answer_of(delta, request.prompt_token_ids)
                    yield answer.as_pooling(task in PER_TOKEN)

    async def add_request(
        self, request_id: str, prompt: PromptType, params: SamplingParams | PoolingParams | None = None, **options: Any
    ) -> AsyncIterator[RequestOutput] | AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """The outputs of `generate` or `encode`, as an iterator; the request begins when its first one is awaited."""
        if isinstance(params, PoolingParams):
            return self.encode(prompt, params, request_id, **options)
        return self.generate(prompt, params, request_id, **options)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Cancel requests; their last output has finish_reason "abort". Unknown and finished ids do nothing."""
        names = (request_id,) if isinstance(request_id, str) else tuple(request_id)
        if self._link.alive:
            self._link.send(Cancel(names))

    async def get_tokenizer(self) -> ApiTokenizer:
        """The model's tokenizer.

        Raises:
            UnsupportedError: skip_tokenizer_init.
        """
        return tokenizer_of(self._frontend)

    @property
    def tokenizer(self) -> ApiTokenizer:
        """As `get_tokenizer`."""
        return tokenizer_of(self._frontend)

    @property
    def vllm_config(self) -> View:
        """What the engine is, under vLLM's names."""
        return vllm_config(self._frontend, self._built)

    @property
    def model_config(self) -> View:
        """The model, under vLLM's names."""
        return model_config(self._frontend, self._built)

    async def get_vllm_config(self) -> View:
        """As `vllm_config`."""
        return self.vllm_config

    async def get_model_config(self) -> View:
        """As `model_config`."""
        return self.model_config

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked: "generate", or tasks of pooling."""
        return supported_tasks(self._frontend, self._built.info)

    async def is_tracing_enabled(self) -> bool:
        """Nothing is traced."""
        return False

    @property
    def is_running(self) -> bool:
        """The engine has not ended."""
        return not self._link.lost

    @property
    def is_stopped(self) -> bool:
        """It has."""
        return self._link.lost

    @property
    def errored(self) -> bool:
        """As `is_stopped`."""
        return self._link.lost

    @property
    def dead_error(self) -> EngineDeadError:
        """What requests to an engine that has ended get."""
        return EngineDeadError("the engine is not running")

    async def check_health(self) -> None:
        """Raises:
        EngineDeadError: the engine does not run.
        """
        await self._engine.ready()

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes, those of tiers too; what runs goes on."""
        del reset_running_requests, reset_connector
        await self._engine.ready()
        return await self._engine.reset_prefix_cache()

    async def reset_mm_cache(self) -> None:
        """There are no media to forget."""

    async def pause_generation(
        self, *, mode: Pause = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Start no new requests until `resume_generation`; returns when nothing runs any more, or stops where it is.

        Args:
            mode: what becomes of requests: "abort" ends them, "wait" lets them end, "keep" stops them where they are.
            wait_for_inflight_requests: older name of mode="wait".
        """
        await self._engine.ready()
        how: Pause = "wait" if wait_for_inflight_requests else mode
        await self._engine.pause(how)
        if clear_cache and how != "keep":
            await self._engine.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Go on after a pause."""
        await self._engine.resume()

    async def is_paused(self) -> bool:
        """No new requests are started."""
        return self._engine.stats.paused

    async def wait_for_requests_to_drain(self, drain_timeout: int = 300) -> None:
        """Return when every request has ended; those that have not after `drain_timeout` seconds are ended."""
        await self._engine.drain(drain_timeout)

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what steps do until `stop_profile`, in `profiler_dir`; see docs/operations/server.md.

        Raises:
            InvalidRequestError: it records already.
            ConfigError: `profiler_dir` cannot be written to.
        """
        refuse_options(profile_prefix=profile_prefix)
        await self._engine.ready()
        await self._engine.start_profile(profile_directory(self._frontend.config))

    async def stop_profile(self) -> list[str]:
        """End that; the files that were written.

        Raises:
            InvalidRequestError: nothing is being recorded.
        """
        return list((await self._engine.stop_profile()).files)

    async def sleep(self, level: int = 1, mode: Literal["abort", "wait"] = "abort") -> None:
        """Release memory; see `AsyncEngine.sleep`."""
        await self._engine.ready()
        await self._engine.sleep(level, mode)

    async def wake_up(self, tags: Sequence[Part] | None = None) -> None:
        """Bring memory back: "weights", "kv_cache", or both without `tags`."""
        await self._engine.ready()
        await self._engine.wake(tags)

    async def is_sleeping(self) -> bool:
        """Something of it sleeps."""
        return self._engine.stats.asleep > 0

    def get_metrics(self) -> list[Reading]:
        """Counters, gauges and histograms since the start.

        Raises:
            UnsupportedError: enable_metrics=False.
        """
        if self._metrics is None:
            raise UnsupportedError("metrics are off: construct AsyncLLM with enable_metrics=True")
        return self._metrics.readings()

    async def close(self) -> None:
        """End the engine and its threads."""
        await self._engine.close()
        self._close_backend()

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`, without awaiting; the step under way may take `timeout` seconds to end (None: all it needs)."""
        self._link.stop(timeout)
        self._engine.fail_all("the engine was closed")
        if not self._link.alive:
            self._close_backend()

    def __getattr__(self, name: str) -> NoReturn:
        refuse(type(self).__name__, MISSING, name)


class AsyncLLMEngine(AsyncLLM):
    """The same under vLLM's older name."""
