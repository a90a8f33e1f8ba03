"""Carries messages between frontend and engine process: which there are, and the private socket they go over."""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import zmq

from octavo import errors
from octavo.config.engine import EngineConfig
from octavo.engine.client import EngineInfo, EngineStats, Pause
from octavo.errors import EngineDeadError, InternalError, OctavoError, OverloadedError
from octavo.execution.sleep import Part
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput
from octavo.flow.wire import MAX_BYTES, WireDecoder, WireEncoder

# A unix socket's path is limited to 107 bytes; a longer temporary directory cannot hold one.
_MAX_SOCKET_PATH = 100


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Frontend to engine, after `Hello`: what to build. Goes over the socket: no secret is in the process list."""

    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Frontend to engine: a request."""

    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Frontend to engine: these requests are no longer wanted, or only these of their streams."""

    request_ids: tuple[str, ...]
    streams: tuple[tuple[str, int], ...] = ()


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset"):
    """Frontend to engine: forget every cached block that no sequence uses."""


class PauseEngine(msgspec.Struct, frozen=True, tag="pause"):
    """Frontend to engine: start no new requests; see `engine.client.Pause`. The next reading says that it is so."""

    how: Pause


class ResumeEngine(msgspec.Struct, frozen=True, tag="resume"):
    """Frontend to engine: go on."""


class SleepEngine(msgspec.Struct, frozen=True, tag="sleep"):
    """Frontend to engine: let go of memory; see `EngineLoop.sleep`. Answered by `SleepChanged`."""

    level: int


class WakeEngine(msgspec.Struct, frozen=True, tag="wake"):
    """Frontend to engine: bring parts back; all of them without `parts`. Answered by `SleepChanged`."""

    parts: tuple[Part, ...] | None = None


class ChangeProfile(msgspec.Struct, frozen=True, tag="profile"):
    """Frontend to engine: begin to record what its steps do, for files in `directory`; None: write them, and end.

    Answered by `ProfileChanged`.
    """

    directory: str | None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Frontend to engine: is anybody there? Answered by `Pong` between two steps."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Frontend to engine: end now."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Engine to frontend, first: it is there and waits for `Configure`."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Engine to frontend: built; requests may come."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Engine to frontend: it cannot be built or cannot go on. `kind` is the error's class name in octavo/errors.py."""

    kind: str
    message: str


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Engine to frontend: what one step gave, and a reading of the engine after it."""

    outputs: Sequence[SequenceOutput]
    stats: EngineStats


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Engine to frontend: a request was not taken. `kind` as in `Failed`; `retry_after` in seconds, for an overload."""

    request_id: str
    kind: str
    message: str
    retry_after: float = 0.0


class CacheWasReset(msgspec.Struct, frozen=True, tag="was_reset"):
    """Engine to frontend: answer to `ResetPrefixCache`."""

    done: bool


class SleepChanged(msgspec.Struct, frozen=True, tag="slept"):
    """Engine to frontend: answer to `SleepEngine` and `WakeEngine`; with an error as in `Failed`, if there was one."""

    level: int
    kind: str = ""
    message: str = ""


class ProfileChanged(msgspec.Struct, frozen=True, tag="profiled"):
    """Engine to frontend: answer to `ChangeProfile`; with an error as in `Failed`, if there was one."""

    files: tuple[str, ...] = ()  # that were written
    steps: int = 0  # in them
    kind: str = ""
    message: str = ""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Engine to frontend: answer to `Ping`."""


ToEngine = (
    Configure
    | Submit
    | Cancel
    | ResetPrefixCache
    | PauseEngine
    | ResumeEngine
    | SleepEngine
    | WakeEngine
    | ChangeProfile
    | Ping
    | Shutdown
)
ToFrontend = Hello | Ready | Failed | Outputs | Refused | CacheWasReset | SleepChanged | ProfileChanged | Pong

TO_ENGINE: tuple[type[ToEngine], ...] = (
    *(Configure, Submit, Cancel, ResetPrefixCache, PauseEngine, ResumeEngine, SleepEngine, WakeEngine, ChangeProfile),
    *(Ping, Shutdown),
)
TO_FRONTEND: tuple[type[ToFrontend], ...] = (
    *(Hello, Ready, Failed, Outputs, Refused, CacheWasReset, SleepChanged, ProfileChanged, Pong),
)

Received = TypeVar("Received")


class Mailbox(Protocol):
    """The engine's end of a connection, to another process or to another thread."""

    def wait(self, timeout: float | None) -> bool: ...

    def receive(self) -> ToEngine | None: ...

    def send(self, message: ToFrontend) -> None: ...


def error_of(kind: str, message: str, retry_after: float = 0.0) -> OctavoError:
    """The error that a message tells of; an unknown kind is an `InternalError`."""
    if kind == OverloadedError.__name__:
        return OverloadedError(message, retry_after or 1.0)
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, OctavoError):
        return known(message)
    return InternalError(f"{kind}: {message}")


class SocketDirectory:
    """A private directory (mode 0700) for the sockets of one frontend; `close` removes it."""

    def __init__(self) -> None:
        path = tempfile.mkdtemp(prefix="octavo-")
        if len(path) > _MAX_SOCKET_PATH - len("/engine-00.sock"):
            shutil.rmtree(path, ignore_errors=True)
            path = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")
        self._path = Path(path)

    def address(self, number: int) -> str:
        """The socket of the engine's `number`-th life; each life has its own, so that no old message arrives."""
        return f"ipc://{self._path}/engine-{number}.sock"

    def close(self) -> None:
        """Remove the directory and what is in it."""
        shutil.rmtree(self._path, ignore_errors=True)


class Channel(Generic[Received]):
    """One end of the connection between a frontend and one life of its engine. Owner: one thread.

    Args:
        address: of `SocketDirectory.address`.
        bind: true on the frontend's side.
        receives: the message types that may arrive here.
    """

    def __init__(self, address: str, *, bind: bool, receives: Sequence[type[Received]]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        # A channel that an exception left open must not keep the process from ending.
        weakref.finalize(self, self._context.destroy, 0)
        # What is on the way is bounded by the requests admitted, so neither side ever blocks in a send.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        if bind:
            self._socket.bind(address)
        else:
            self._socket.connect(address)
        self._encoder = WireEncoder()
        self._decoder = WireDecoder(receives)

    def fileno(self) -> int:
        """Readable (edge-triggered) when a message may have arrived: then call `receive` until it gives None."""
        return int(self._socket.getsockopt(zmq.FD))

    def send(self, message: object) -> None:
        """Put a message on its way; never blocks.

        Raises:
            EngineDeadError: nobody is at the other end.
        """
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDeadError("the engine process is not there") from None

    def receive(self) -> Received | None:
        """The next message; None when there is none yet."""
        try:
            data = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._decoder.decode(data)

    def wait(self, timeout: float | None) -> bool:
        """True when a message is there, within `timeout` seconds (None: for ever). Sleeps; never spins."""
        return bool(self._socket.poll(None if timeout is None else max(0, int(timeout * 1000))))

    def close(self, linger: float = 0.0) -> None:
        """Close; up to `linger` seconds are given to what was sent last."""
        self._socket.close(linger=int(linger * 1000))
        self._context.term()
