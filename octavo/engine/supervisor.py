"""Starts the engine process, relays why it could not start, notices its death and starts it again a few times."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from octavo.config.engine import EngineConfig
from octavo.engine.client import EngineInfo
from octavo.engine.transport import (
    TO_FRONTEND,
    Channel,
    Configure,
    Failed,
    Hello,
    Ping,
    Pong,
    Ready,
    Shutdown,
    SocketDirectory,
    ToEngine,
    ToFrontend,
    error_of,
)
from octavo.engine.watch import Watch, activity_of
from octavo.errors import EngineDeadError, OctavoError
from octavo.flow.wire import WireError
from octavo.telemetry.log import logger

COMMAND = (sys.executable, "-m", "octavo.engine.process")
# An engine that dies again and again has a cause that a restart does not cure.
MAX_RESTARTS = 3
# One that ran for this long is not of that kind: it may be started as often as at first.
STEADY_SECONDS = 600.0
_SHUTDOWN_SECONDS = 12.0  # an engine may store its cache before it ends


class EngineSupervisor:
    """The frontend's hold on an engine process. Owner: the thread of the running event loop.

    Args:
        config: what the engine builds.
        command: how an engine process is started; address and own process id are appended.
        max_restarts: how often an engine that dies soon is started again.
        steady_seconds: what is soon.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = COMMAND,
        max_restarts: int = MAX_RESTARTS,
        steady_seconds: float = STEADY_SECONDS,
    ) -> None:
        self._config = config
        self._command = tuple(command)
        self._max_restarts = self._restarts_left = max_restarts
        self._steady_seconds = steady_seconds
        self._first_start: float | None = None  # seconds until an engine was ready for the first time
        self._ready_since: float | None = None  # of the engine that there is; None: it has not been ready yet
        self._sockets = SocketDirectory()
        self._life: _Life | None = None
        self._lives = 0
        self._info: EngineInfo | None = None
        self._closing = False
        self._returning = False
        self._on_message: Callable[[ToFrontend], None] = lambda _message: None
        self._on_death: Callable[[str], None] = lambda _reason: None
        self._log = logger("supervisor")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> EngineInfo:
        """What the engine told when it was ready.

        Raises:
            EngineDeadError: it never was.
        """
        if self._info is None:
            raise EngineDeadError("the engine is not ready")
        return self._info

    @property
    def alive(self) -> bool:
        """The engine takes requests."""
        return self._life is not None and self._life.ready.done() and not self._life.over

    @property
    def lost(self) -> bool:
        """The engine has ended, and is not being started again."""
        return self._info is not None and not self.alive and not self._tasks

    @property
    def returning(self) -> bool:
        """The engine has ended, and is being started again."""
        return self._returning and not self._closing

    @property
    def hung(self) -> bool:
        """The engine's end was that it hung."""
        return self._life is not None and self._life.hung

    @property
    def suspicion(self) -> str | None:
        """What there is to tell of an engine that seems to hang, and has not been ended yet."""
        return self._life.watch.suspicion if self._life is not None and not self._life.over else None

    @property
    def process_id(self) -> int | None:
        """Of the engine process; None when there is none."""
        return self._life.process.pid if self._life else None

    def attach(self, on_message: Callable[[ToFrontend], None], on_death: Callable[[str], None]) -> None:
        """Where messages and the news of an engine's death go; both are called on the event loop. Of an engine that
        was started again `Ready` is the first message; whether one comes, `returning` tells."""
        self._on_message = on_message
        self._on_death = on_death

    def launch(self) -> None:
        """Start the process now, without waiting: the frontend may load its own part meanwhile."""
        address = self._sockets.address(self._lives)
        self._lives += 1  # also where this fails: its socket may be there already
        watch = Watch(self._config.serving.engine_timeout, self._first_start)
        self._life = _Life(self._command, address, self._config, watch, self._handle, self._handle_death)

    async def ready(self) -> EngineInfo:
        """Wait until the engine can take requests.

        Raises:
            OctavoError: it could not start, for the reason which the engine gave.
        """
        if self._life is None:
            self.launch()
        assert self._life is not None
        self._info = await self._life.ready
        self._ready_since = time.monotonic()
        if self._first_start is None:
            self._first_start = self._ready_since - self._life.began
        return self._info

    def send(self, message: ToEngine) -> None:
        """Pass a message on.

        Raises:
            EngineDeadError: there is no engine at present.
        """
        if not self.alive or self._life is None:
            raise EngineDeadError("the engine is not running" + (" and is being restarted" if self._tasks else ""))
        self._life.send(message)

    async def close(self) -> None:
        """End the engine process, kindly at first; returns when it is gone."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        if self._life is not None:
            await self._life.end()
        self._sockets.close()

    def _handle(self, message: ToFrontend) -> None:
        self._on_message(message)

    def _handle_death(self, reason: str) -> None:
        if self._closing or self._info is None:
            return
        self._log.error("the engine process ended: %s", reason)
        if self._ready_since is not None and time.monotonic() - self._ready_since >= self._steady_seconds:
            self._restarts_left = self._max_restarts
        self._ready_since = None
        self._returning = self._restarts_left > 0
        self._on_death(reason)
        if self._returning:
            self._restarts_left -= 1
            task = asyncio.get_running_loop().create_task(self._restart())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._log.error("it is not started again: start the server anew once the cause is found")

    async def _restart(self) -> None:
        self._log.warning("starting the engine again (%d more times at most)", self._restarts_left)
        if self._life is not None:
            await self._life.end()
            self._life = None
        try:
            self.launch()
        except Exception as error:  # no processes, descriptors or memory left; it is bounded as deaths are
            self._handle_death(f"it could not be started: {error}")
            return
        try:
            info = await self.ready()
            if self.alive:  # one that has died meanwhile is being started once more, or is not
                self._returning = False
                self._log.info("the engine is back")
                self._on_message(Ready(info))
        except OctavoError as error:
            self._log.error("the engine could not be started again: %s", error)


class _Life:
    """One engine process from start to end, and its channel."""

    def __init__(
        self,
        command: Sequence[str],
        address: str,
        config: EngineConfig,
        watch: Watch,
        on_message: Callable[[ToFrontend], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._on_message = on_message
        self._on_death = on_death
        self._channel = Channel(address, bind=True, receives=TO_FRONTEND)
        self._failure: OctavoError | None = None
        self._log = logger("supervisor")
        self.ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        # A failure that nobody waits for any more is not worth a warning.
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.gone: asyncio.Future[int] = self._loop.create_future()
        self.over = self.hung = False
        self.watch = watch
        self.began = time.monotonic()
        # The pipe at its standard input tells the child when this process is gone. A session of its own: a Ctrl-C at
        # the terminal is for this process alone, also before the child is able to ignore it.
        self.process = subprocess.Popen(
            [*command, address, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True
        )
        self._loop.add_reader(self._channel.fileno(), self._read)
        self._asked = False  # and not answered yet
        self._next_look = self._loop.call_later(watch.period, self._look) if watch.limit else None
        threading.Thread(target=self._wait, name="octavo-engine-watch", daemon=True).start()

    def send(self, message: ToEngine) -> None:
        self._channel.send(message)
        # The socket's descriptor is edge-triggered: a send may have swallowed the edge of a message that came in.
        self._loop.call_soon(self._read)

    async def end(self) -> None:
        """Ask the process to end, and make it when it does not; then close the channel."""
        if not self.over:
            try:
                self._channel.send(Shutdown())
                await asyncio.wait_for(asyncio.shield(self.gone), _SHUTDOWN_SECONDS)
            except (asyncio.TimeoutError, EngineDeadError):
                self.process.kill()
                await self.gone
        self._close()

    def _read(self) -> None:
        try:
            while not self.over and (message := self._channel.receive()) is not None:
                self._take(message)
        except WireError as error:
            # Nothing after a message that cannot be read can be trusted.
            self._failure = error
            self.process.kill()

    def _take(self, message: ToFrontend) -> None:
        self._asked = False
        self.watch.heard(isinstance(message, Ready))
        if isinstance(message, Hello):
            self._channel.send(Configure(self._config))
        elif isinstance(message, Ready):
            if not self.ready.done():
                self.ready.set_result(message.info)
        elif isinstance(message, Failed):
            self._failure = error_of(message.kind, message.message)
        elif not isinstance(message, Pong):
            self._on_message(message)

    def _look(self) -> None:
        """See whether the engine answers or works; end it when it has done neither for too long."""
        self._read()
        if self.over:
            return
        process = self.process
        reason = self.watch.look(activity_of(process.pid))
        if reason is not None:
            self._log.error("the engine process %d hangs and is ended: %s", process.pid, reason)
            self._failure, self.hung = EngineDeadError(reason), True
            process.kill()
            return
        self._next_look = self._loop.call_later(self.watch.period, self._look)
        if self.ready.done() and not self._asked:
            self._asked = True
            with contextlib.suppress(EngineDeadError):
                self.send(Ping())

    def _wait(self) -> None:
        status = self.process.wait()
        # The loop may be closed when the whole frontend is on its way out.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle_exit, status)

    def _handle_exit(self, status: int) -> None:
        self._read()
        self.over = True
        if self._next_look is not None:
            self._next_look.cancel()
        reason = str(self._failure) if self._failure else _exit_reason(status)
        if not self.ready.done():
            self.ready.set_exception(self._failure or EngineDeadError(f"the engine process did not start: {reason}"))
        self.gone.set_result(status)
        self._on_death(reason)

    def _close(self) -> None:
        self.over = True
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        if self.process.stdin:
            self.process.stdin.close()


def _exit_reason(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status}" + (" (out of memory?)" if status == -9 else "")
    return f"exit status {status}"
