"""vLLM's `LLMEngine`: add requests, call `step` until nothing is unfinished."""

from collections.abc import Sequence
from typing import Any

from octavo.api.engine_args import EngineArgs, read_options
from octavo.api.offline import OfflineEngine
from octavo.api.outputs import RequestCollector, RequestOutput, delta_output
from octavo.api.prompts import PromptType
from octavo.errors import InvalidRequestError
from octavo.flow.sampling_params import RequestOutputKind, SamplingParams

__all__ = ["EngineArgs", "LLMEngine"]


class LLMEngine:
    """An engine in this process, stepped by its owner. One owner.

    Raises:
        UserError: an option, the model or the machine does not fit.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._offline = OfflineEngine(read_options(model, options))
        self._collectors: dict[str, tuple[RequestCollector, RequestOutputKind]] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLMEngine":
        """As the constructor."""
        return cls(**engine_args.options)

    def add_request(
        self, request_id: str, prompt: PromptType, params: SamplingParams | None = None, priority: int = 0
    ) -> None:
        """Queue a prompt.

        Raises:
            InvalidRequestError: the prompt or a parameter is wrong, or the id is in use.
        """
        if request_id in self._collectors:
            raise InvalidRequestError(f"request id {request_id!r} is in use", "request_id")
        request = self._offline.prepare(prompt, params, priority, request_id=request_id)
        self._offline.submit(request)
        kind = params.output_kind if params is not None else RequestOutputKind.CUMULATIVE
        self._collectors[request_id] = self._offline.collector(request, prompt), kind

    def abort_request(self, request_id: str | Sequence[str]) -> None:
        """End requests; nothing comes for them any more. Unknown ids do nothing."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._offline.cancel([name for name in ids if self._collectors.pop(name, None)])

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._collectors)

    def get_num_unfinished_requests(self) -> int:
        """Requests without an end."""
        return len(self._collectors)

    def step(self) -> list[RequestOutput]:
        """Run one step; an output of every request that it added to."""
        touched: dict[str, RequestOutput] = {}
        for delta in self._offline.step():
            collector, kind = self._collectors[delta.request_id]
            collector.push(delta)
            if kind is RequestOutputKind.DELTA:
                touched[f"{delta.request_id} {delta.index}"] = delta_output(collector, delta)
            elif kind is RequestOutputKind.CUMULATIVE or collector.output.finished:
                touched[delta.request_id] = collector.snapshot()
            if collector.output.finished:
                del self._collectors[delta.request_id]
        return list(touched.values())

    def close(self) -> None:
        """Release threads and memory."""
        self._offline.close()
