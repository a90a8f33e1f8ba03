"""Runs an engine client in a thread of this process, behind the same messages as an engine process."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from octavo.engine.client import EngineClient, EngineInfo
from octavo.engine.service import serve
from octavo.engine.transport import Shutdown, ToEngine, ToFrontend
from octavo.errors import EngineDeadError
from octavo.telemetry.log import logger


class ThreadedEngine:
    """An `EngineLink` to a client in this process. The client belongs to the thread from `ready` on.

    Args:
        client: the engine; closed by `close`.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._mailbox: _ThreadMailbox | None = None
        self._thread: threading.Thread | None = None
        self._failed = False  # before its thread has quite ended, whoever hears of the death sees it
        self._on_message: Callable[[ToFrontend], None] = lambda _message: None
        self._on_death: Callable[[str], None] = lambda _reason: None

    @property
    def info(self) -> EngineInfo:
        """What the engine is."""
        return self._client.info

    @property
    def alive(self) -> bool:
        """The engine takes requests."""
        return self._thread is not None and not self._failed and self._thread.is_alive()

    def attach(self, on_message: Callable[[ToFrontend], None], on_death: Callable[[str], None]) -> None:
        """Where messages and the news of an engine's death go; both are called on the event loop."""
        self._on_message = on_message
        self._on_death = on_death

    @property
    def lost(self) -> bool:
        """The engine has ended; a thread is not started again."""
        return self._thread is not None and not self.alive

    @property
    def returning(self) -> bool:
        """Never."""
        return False

    @property
    def hung(self) -> bool:
        """Not known: a thread cannot be ended."""
        return False

    @property
    def suspicion(self) -> str | None:
        """None: it is not watched."""
        return None

    async def ready(self) -> EngineInfo:
        """Start the thread."""
        if self._thread is None:
            self._mailbox = _ThreadMailbox(asyncio.get_running_loop(), self._on_message)
            self._thread = threading.Thread(target=self._run, args=(self._mailbox,), name="octavo-engine", daemon=True)
            self._thread.start()
        return self._client.info

    def send(self, message: ToEngine) -> None:
        """Pass a message on.

        Raises:
            EngineDeadError: the engine has ended.
        """
        if not self.alive or self._mailbox is None:
            raise EngineDeadError("the engine is not running")
        self._mailbox.put(message)

    async def close(self) -> None:
        """End the thread; returns when it is gone."""
        await asyncio.get_running_loop().run_in_executor(None, self.stop)

    def stop(self, timeout: float | None = None) -> None:
        """As `close`, for callers that cannot await; waits `timeout` seconds at most."""
        if self._thread is None or self._mailbox is None:
            self._client.close()
            return
        self._mailbox.put(Shutdown())
        self._thread.join(timeout)

    def _run(self, mailbox: "_ThreadMailbox") -> None:
        try:
            serve(mailbox, self._client)
            self._client.close()
        except Exception as error:
            self._failed = True
            logger("engine").error("the engine failed", exc_info=True)
            mailbox.call(self._on_death, f"{type(error).__name__}: {error}")


class _ThreadMailbox:
    """Messages to the engine thread in a queue; messages from it called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[ToFrontend], None]) -> None:
        self._loop = loop
        self._on_message = on_message
        self._messages: deque[ToEngine] = deque()
        self._arrived = threading.Event()

    def put(self, message: ToEngine) -> None:
        self._messages.append(message)
        self._arrived.set()

    def wait(self, timeout: float | None) -> bool:
        if not self._messages:
            # Cleared before the second look, so that a message put in between sets it again.
            self._arrived.clear()
            if not self._messages and timeout != 0.0:
                self._arrived.wait(timeout)
        return bool(self._messages)

    def receive(self) -> ToEngine | None:
        return self._messages.popleft() if self._messages else None

    def send(self, message: ToFrontend) -> None:
        self.call(self._on_message, message)

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
