"""An engine in the caller's process and thread: `receive` runs the steps."""

import time
from collections.abc import Callable, Sequence

from octavo.engine.client import EngineInfo, EngineStats, Pause
from octavo.engine.loop import EngineLoop
from octavo.execution.sleep import Part
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput


class LocalClient:
    """An `EngineClient` around a loop. Not thread-safe: one owner.

    Args:
        info: what the engine is.
        loop: closed by `close`.
        clock: monotonic seconds.
    """

    def __init__(self, info: EngineInfo, loop: EngineLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self.info = info
        self._loop = loop
        self._clock = clock

    def submit(self, request: GenerationRequest) -> None:
        """Take a request on.

        Raises:
            InvalidRequestError, PromptTooLongError, OverloadedError: it is refused.
        """
        self._loop.submit(request)

    def cancel(self, request_ids: Sequence[str]) -> None:
        """End requests; their streams' last outputs come with the next `receive`."""
        self._loop.cancel(request_ids)

    def cancel_streams(self, streams: Sequence[tuple[str, int]]) -> None:
        """End single streams of requests; the others go on."""
        self._loop.cancel_streams(streams)

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]:
        """Run steps until one has outputs, nothing can be done, or `timeout` seconds passed (at least one step)."""
        deadline = None if timeout is None else self._clock() + timeout
        while self._loop.has_work:
            outputs = self._loop.step()
            resting = self._loop.paused and self._loop.stalled
            if outputs or resting or (deadline is not None and self._clock() >= deadline):
                return outputs
        return []

    def pause(self, how: Pause = "wait") -> None:
        """Start no new requests until `resume`."""
        self._loop.pause(how)

    def resume(self) -> None:
        """Go on after a pause."""
        self._loop.resume()

    def drain(self, timeout: float | None = None) -> list[SequenceOutput]:
        """Pause, and run what has been started to its end, at most `timeout` seconds; all outputs on the way."""
        deadline = None if timeout is None else self._clock() + timeout
        self._loop.pause("wait")
        outputs: list[SequenceOutput] = []
        while self._loop.stats().under_way and (deadline is None or self._clock() < deadline):
            outputs += self._loop.step()
        return outputs

    def stats(self) -> EngineStats:
        """A reading of the engine."""
        return self._loop.stats()

    def sleep(self, level: int = 1) -> None:
        """Let go of memory; see `EngineLoop.sleep`."""
        self._loop.sleep(level)

    def wake(self, parts: Sequence[Part] | None = None) -> None:
        """Bring parts back; all of them without `parts`."""
        self._loop.wake(parts)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self._loop.reset_prefix_cache()

    def close(self) -> None:
        """Release the engine."""
        self._loop.close()
