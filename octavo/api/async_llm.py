"""vLLM's `AsyncLLM`: an async iterator of outputs for each request; the engine runs in a thread of this process."""

import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal

from octavo.api.engine_args import AsyncEngineArgs, read_options
from octavo.api.outputs import RequestCollector, RequestOutput, delta_output
from octavo.api.pooled import answer_of
from octavo.api.pooling_outputs import PoolingOutput, PoolingRequestOutput
from octavo.api.prompts import PromptType, text_of
from octavo.api.tokenizer import ApiTokenizer, tokenizer_of
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine, locate_model
from octavo.engine.frontend import build_frontend
from octavo.engine.threaded import ThreadedEngine
from octavo.engine.transport import Cancel
from octavo.errors import UnsupportedError
from octavo.execution.sleep import Part
from octavo.flow.pooling_params import PoolingParams
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams
from octavo.inputs.pooling import PER_TOKEN, Framing
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
        engine = build_engine(config, source)
        self._frontend = build_frontend(config, source)
        self._inputs = self._frontend.inputs(engine.info, shorten_output=True)
        self._metrics = MetricsStore(self._frontend.name) if config.telemetry.enable_metrics else None
        self._link = ThreadedEngine(engine.client)
        self._engine = AsyncEngine(self._link, self._frontend.outputs(), self._metrics, config.scheduling.max_waiting)
        self._ids = itertools.count()
        self._close_backend = engine.backend.close

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> "AsyncLLM":
        """As the constructor."""
        return cls(**engine_args.options)

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: object = None,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one prompt as they grow, by `sampling_params.output_kind`. Leaving the loop early cancels it.

        Raises:
            InvalidRequestError: the prompt, a parameter or the id is wrong.
            OverloadedError, EngineDeadError: the engine does not take it.
        """
        if lora_request is not None:
            raise UnsupportedError("lora_request is not supported yet; leave it out")
        name = request_id if request_id is not None else f"octavo-{next(self._ids)}"
        await self._engine.ready()
        request = self._inputs.prepare(prompt, sampling_params, name, arrival=time.monotonic(), priority=priority)
        collector = RequestCollector(request, text_of(prompt), self._frontend.token_text)
        kind = sampling_params.output_kind if sampling_params is not None else RequestOutputKind.CUMULATIVE
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
        *,
        priority: int = 0,
        lora_request: object = None,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """What a pooled model makes of one prompt: one output. Leaving the loop early cancels it.

        Raises:
            InvalidRequestError: the prompt, a parameter or the id is wrong.
            UnsupportedError: the model generates.
            OverloadedError, EngineDeadError: the engine does not take it.
        """
        if lora_request is not None:
            raise UnsupportedError("lora_request is not supported yet; leave it out")
        name = request_id if request_id is not None else f"octavo-{next(self._ids)}"
        info = await self._engine.ready()
        processor = self._frontend.pooling(info)
        task = processor.task_of(pooling_params.task if pooling_params is not None else None)
        framing = Framing(arrival=time.monotonic(), priority=priority)
        request = processor.prepare(prompt, pooling_params, name, task, framing)
        async with self._engine.open(request) as stream:
            async for deltas in stream:
                for delta in deltas:
                    answer = answer_of(delta, request.prompt_token_ids)
                    yield answer.as_pooling(task in PER_TOKEN)

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

    async def check_health(self) -> None:
        """Raises:
        EngineDeadError: the engine does not run.
        """
        await self._engine.ready()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        await self._engine.ready()
        return await self._engine.reset_prefix_cache()

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


class AsyncLLMEngine(AsyncLLM):
    """The same under vLLM's older name."""
