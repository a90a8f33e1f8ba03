"""Gives each request its own stream of text, over an engine in a thread or in another process."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar, cast

from octavo.engine.client import EngineInfo, EngineStats, Pause
from octavo.engine.journal import Journal
from octavo.engine.meter import EngineMeter
from octavo.engine.request_stream import RequestStream
from octavo.engine.transport import (
    CacheWasReset,
    Cancel,
    ChangeProfile,
    Outputs,
    PauseEngine,
    ProfileChanged,
    Ready,
    Refused,
    ResetPrefixCache,
    ResumeEngine,
    SleepChanged,
    SleepEngine,
    Submit,
    ToEngine,
    ToFrontend,
    WakeEngine,
    error_of,
)
from octavo.errors import (
    EngineAsleepError,
    EngineDeadError,
    EngineReturningError,
    InternalError,
    OctavoError,
    OverloadedError,
)
from octavo.execution.sleep import Part
from octavo.flow.delta import TextDelta
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput
from octavo.telemetry.log import logger
from octavo.telemetry.metrics import MetricsSink, NoMetrics

T = TypeVar("T")


class EngineLink(Protocol):
    """A way to an engine; `EngineSupervisor` and `ThreadedEngine` are the two there are."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def alive(self) -> bool: ...

    @property
    def lost(self) -> bool: ...

    @property
    def returning(self) -> bool: ...

    @property
    def hung(self) -> bool: ...

    @property
    def suspicion(self) -> str | None: ...

    def attach(self, on_message: Callable[[ToFrontend], None], on_death: Callable[[str], None]) -> None: ...

    async def ready(self) -> EngineInfo: ...

    def send(self, message: ToEngine) -> None: ...

    async def close(self) -> None: ...


class TextOutputs(Protocol):
    """Turns tokens into text; `outputs.processor.OutputProcessor` does."""

    def add(self, request: GenerationRequest) -> None: ...

    def push(self, outputs: Sequence[SequenceOutput]) -> list[TextDelta]: ...

    def take_cancels(self) -> list[str]: ...

    def take_ends(self) -> list[tuple[str, int]]: ...

    def drop(self, request_id: str) -> None: ...


class AsyncEngine:
    """Submit requests and iterate over their text. Owner: the thread of the running event loop.

    Args:
        link: the engine; closed by `close`.
        outputs: turns tokens into text.
        sink: where metrics go.
        max_waiting: requests that may be live beyond those that run before new ones are refused.
    """

    def __init__(
        self,
        link: EngineLink,
        outputs: TextOutputs,
        sink: MetricsSink | None = None,
        max_waiting: int = 4096,
    ) -> None:
        self._link = link
        self._outputs = outputs
        self.meter = EngineMeter(sink or NoMetrics())
        self._max_waiting = max_waiting
        self._streams: dict[str, RequestStream] = {}
        self._journal = Journal()
        self._resets: deque[asyncio.Future[bool]] = deque()
        self._sleeps: deque[asyncio.Future[None]] = deque()  # answers to come, to sleep and wake
        self._profiles: deque[asyncio.Future[ProfileChanged]] = deque()
        self._pause: Pause | None = None  # that holds
        self._drowsy = False  # it will sleep when nothing runs any more
        self._watchers: list[tuple[Callable[[EngineStats], bool], asyncio.Future[None]]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self.stats = EngineStats()
        link.attach(self._handle, self._handle_death)

    @property
    def info(self) -> EngineInfo:
        """What the engine is."""
        return self._link.info

    @property
    def healthy(self) -> bool:
        """The engine takes requests."""
        return self._link.alive

    @property
    def lost(self) -> bool:
        """The engine has ended, and is not being started again."""
        return self._link.lost

    @property
    def trouble(self) -> str | None:
        """Why nothing comes of requests, where the engine itself is the reason."""
        if self._link.returning:
            return "the engine has ended and is being started again"
        return self._link.suspicion if self._link.alive else "the engine is not running"

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    async def ready(self) -> EngineInfo:
        """Wait until the engine takes requests.

        Raises:
            OctavoError: it cannot start.
        """
        return await self._link.ready()

    def open(self, *requests: GenerationRequest) -> RequestStream:
        """Submit requests; their one stream must be closed.

        Raises:
            OverloadedError: too much waits already.
            EngineAsleepError: it sleeps, or is about to.
            EngineDeadError: there is no engine; `EngineReturningError`: at present.
        """
        if self._drowsy or self.stats.asleep:
            self.meter.rejected("503")
            raise EngineAsleepError("the engine sleeps and takes no requests until it is woken (POST /wake_up)")
        if len(self._streams) + len(requests) - self.stats.running > self._max_waiting:
            self.meter.rejected("429")
            raise OverloadedError(
                f"{self._max_waiting} requests are waiting already; try again later", self.stats.retry_after or 1.0
            )
        if not self._link.alive:
            self.meter.rejected("503")
            if self._link.returning:
                raise EngineReturningError("the engine is being started again; try again in a few seconds")
            raise EngineDeadError("the engine is not running")
        stream = RequestStream(requests, self._close_stream)
        self._idle.clear()
        try:
            for request in requests:
                self._submit(request, stream)
        except BaseException:
            # Those before it would have no consumer: nobody would ever close them.
            self._close_stream(stream)
            raise
        return stream

    def _submit(self, request: GenerationRequest, stream: RequestStream) -> None:
        if request.id in self._streams:
            raise InternalError(f"request id {request.id!r} is in use")
        self._link.send(Submit(request))
        self._streams[request.id] = stream
        self._journal.add(request)
        self._outputs.add(request)
        self.meter.admitted(request)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TextDelta]:
        """The deltas of a request, one by one. Closing the generator early cancels the request."""
        async with self.open(request) as stream:
            async for deltas in stream:
                for delta in deltas:
                    yield delta

    async def reset_prefix_cache(self) -> bool:
        """Forget cached blocks that no sequence uses; False when some are in use."""
        self._link.send(ResetPrefixCache())
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append(done)
        return await done

    async def pause(self, how: Pause = "wait") -> None:
        """Start no new requests until `resume`; see `engine.client.Pause`. Returns when nothing runs any more.

        Raises:
            EngineDeadError: the engine ended meanwhile.
        """
        self._link.send(PauseEngine(how))
        await self._until(lambda stats: stats.paused and (how == "keep" or not stats.under_way))
        # What comes from now on waits in every mode, also in an engine that this one's death brings.
        self._pause = "keep" if how == "keep" else "wait"

    async def resume(self) -> None:
        """Go on after a pause."""
        self._link.send(ResumeEngine())
        self._pause = None
        await self._until(lambda stats: not stats.paused)

    async def sleep(self, level: int = 1, how: Literal["abort", "wait"] = "abort") -> None:
        """Let the engine release memory; see `EngineLoop.sleep`. Requests are refused from now on, until `wake`.

        Args:
            how: "abort" ends what is unfinished; "wait" lets it end.

        Raises:
            InvalidRequestError, UnsupportedError: there is no such level, or the engine cannot sleep.
        """
        self._drowsy = True
        try:
            for stream in set(self._streams.values()) if how == "abort" else ():
                self._close_stream(stream)
                stream.fail(EngineAsleepError("the engine is going to sleep; the request was ended"))
            await self._idle.wait()
            await self._change_sleep(SleepEngine(level))
        finally:
            self._drowsy = False

    async def wake(self, parts: Sequence[Part] | None = None) -> None:
        """Bring parts back; all of them without `parts`.

        Raises:
            UserError: weights that have to be loaded again are not there any more.
        """
        await self._change_sleep(WakeEngine(None if parts is None else tuple(parts)))

    async def start_profile(self, directory: str) -> None:
        """Record what the engine's steps do; see `EngineProfile`.

        Raises:
            InvalidRequestError: it does already.
            ConfigError: nothing can be written in `directory`.
        """
        await self._change_profile(directory)

    async def stop_profile(self) -> ProfileChanged:
        """End that: which files were written.

        Raises:
            InvalidRequestError: nothing was being recorded.
        """
        return await self._change_profile(None)

    async def _change_profile(self, directory: str | None) -> ProfileChanged:
        self._link.send(ChangeProfile(directory))
        done: asyncio.Future[ProfileChanged] = asyncio.get_running_loop().create_future()
        self._profiles.append(done)
        return await done

    async def _change_sleep(self, message: SleepEngine | WakeEngine) -> None:
        self._link.send(message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps.append(done)
        await done

    async def drain(self, timeout: float) -> bool:
        """Wait until every request has ended, at most `timeout` seconds; False when some had to be ended."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            for stream in set(self._streams.values()):
                self._close_stream(stream)
                stream.fail(EngineDeadError("the server is shutting down"))
            return False
        return True

    async def close(self) -> None:
        """End the engine."""
        await self._link.close()
        self.fail_all("the engine was closed")

    async def _until(self, condition: Callable[[EngineStats], bool]) -> None:
        """Wait for a reading of the engine that is such."""
        if condition(self.stats):
            return
        watcher = (condition, asyncio.get_running_loop().create_future())
        self._watchers.append(watcher)
        try:
            await watcher[1]
        finally:
            self._watchers.remove(watcher)

    def _handle(self, message: ToFrontend) -> None:
        match message:
            case Outputs(outputs, stats):
                self._handle_outputs(outputs, stats)
            case Refused(request_id, kind, text, retry_after):
                self._handle_refusal(request_id, error_of(kind, text, retry_after))
            case CacheWasReset(done):
                _answer(self._resets, done)
            case SleepChanged(level, kind, text):
                self._handle_sleep(level, error_of(kind, text) if kind else None)
            case Ready():
                self._go_on()
            case ProfileChanged():
                error = error_of(message.kind, message.message) if message.kind else None
                _answer(self._profiles, message, error)
            case _:
                pass

    def _handle_outputs(self, outputs: Sequence[SequenceOutput], stats: EngineStats) -> None:
        self.stats = stats
        outputs, wrong = self._journal.news(outputs)
        self.meter.stepped(outputs, stats)
        for condition, waiter in self._watchers:
            if condition(stats) and not waiter.done():
                waiter.set_result(None)
        streams = self._streams
        for delta in self._outputs.push(outputs):
            stream = streams.get(delta.request_id)
            if stream is None:
                continue
            stream.push(delta)
            if delta.finish_reason is not None:
                self.meter.delivered(delta)
                self._journal.end(delta.request_id, delta.index)
                if delta.request_id not in stream.unfinished:
                    self._forget(delta.request_id)
        if cancels := self._outputs.take_cancels():
            self._cancel(tuple(cancels))
        if ends := self._outputs.take_ends():
            self._cancel((), tuple(ends))
        for request_id, error in wrong.items():
            self._fail(request_id, error)

    def _handle_refusal(self, request_id: str, error: OctavoError) -> None:
        if request_id in self._streams:
            self.meter.rejected(str(error.status))
            self._fail(request_id, error)

    def _fail(self, request_id: str, error: OctavoError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._close_stream(stream)
            stream.fail(error)

    def _handle_sleep(self, level: int, error: OctavoError | None) -> None:
        self.stats = replace(self.stats, asleep=level)
        _answer(self._sleeps, None, error)

    def _handle_death(self, reason: str) -> None:
        self.stats = EngineStats(paused=self._pause is not None, asleep=self.stats.asleep)
        self.meter.lost(self._link.hung)
        reason = f"the engine stopped: {reason}"
        if not self._link.returning:
            self.fail_all(reason)
            return
        for request_id in self._journal.death():
            self._fail(request_id, EngineDeadError(f"{reason}; twice with this request, so it is not tried again"))
        self._fail_orders(EngineDeadError(reason))

    def _go_on(self) -> None:
        """Bring an engine that was started again to where the one before it was; see `Journal`."""
        if self.stats.asleep:
            self._link.send(SleepEngine(self.stats.asleep))
            nobody: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # waits for the answer
            nobody.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            self._sleeps.append(nobody)
        if self._pause is not None:
            self._link.send(PauseEngine(self._pause))
        waiting = self._journal.unsent()
        if waiting:
            logger("engine").warning("%d requests go on in the engine that was started again", len(waiting))
        for request, ended in waiting:
            self._link.send(Submit(request))
            if ended:
                self._cancel((), tuple((request.id, index) for index in ended))

    def fail_all(self, reason: str) -> None:
        """Everybody who waits for the engine is told that it has ended."""
        for stream in set(self._streams.values()):
            self._close_stream(stream)
            stream.fail(EngineDeadError(reason))
        self._fail_orders(EngineDeadError(reason))

    def _fail_orders(self, gone: EngineDeadError) -> None:
        watchers = deque(waiter for _, waiter in self._watchers)
        for waiters in (self._resets, self._sleeps, self._profiles, watchers):
            while waiters:
                _answer(cast("deque[asyncio.Future[Any]]", waiters), None, gone)

    def _close_stream(self, stream: RequestStream) -> None:
        gone = tuple(request_id for request_id in stream.unfinished if request_id in self._streams)
        for request_id in gone:
            self.meter.dropped(request_id)
            self._forget(request_id)
        if gone:
            self._cancel(gone)

    def _cancel(self, request_ids: tuple[str, ...], streams: tuple[tuple[str, int], ...] = ()) -> None:
        # An engine that is gone has cancelled everything.
        with contextlib.suppress(EngineDeadError):
            self._link.send(Cancel(request_ids, streams))

    def _forget(self, request_id: str) -> None:
        del self._streams[request_id]
        self._journal.drop(request_id)
        self._outputs.drop(request_id)
        if not self._streams:
            self._idle.set()


def _answer(waiters: "deque[asyncio.Future[T]]", result: T, error: OctavoError | None = None) -> None:
    """Tell whoever waited longest for the engine's answer; one who has left meanwhile gets none."""
    waiter = waiters.popleft() if waiters else None
    if waiter is None or waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)
