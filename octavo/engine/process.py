"""The engine process: builds an engine, says that it is ready, then steps while there is work and sleeps otherwise.

Run as `python -m octavo.engine.process ADDRESS PARENT_PID`; the supervisor does. Ends when its parent does.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from octavo.config.engine import EngineConfig
from octavo.engine.client import EngineClient
from octavo.engine.service import serve
from octavo.engine.transport import (
    TO_ENGINE,
    Channel,
    Configure,
    Failed,
    Hello,
    Ready,
    ToEngine,
)
from octavo.errors import UserError
from octavo.telemetry.log import configure, logger

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A frontend that started us sends the configuration at once.
_CONFIGURE_SECONDS = 30.0


class BuiltEngine(Protocol):
    """What `build_engine` gives."""

    @property
    def client(self) -> EngineClient: ...


Build = Callable[[EngineConfig], BuiltEngine]


def main(arguments: list[str], build: Build) -> int:
    """Run one life of the engine. Returns the exit status: 0 after `Shutdown`, 1 when it failed."""
    address, parent = arguments[0], int(arguments[1])
    # The frontend decides when the engine ends: a Ctrl-C or a SIGTERM to the group must let it drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with(parent)
    channel = Channel(address, bind=False, receives=TO_ENGINE)
    try:
        channel.send(Hello())
        message = channel.receive() if channel.wait(_CONFIGURE_SECONDS) else None
        if not isinstance(message, Configure):
            return 1
        telemetry = message.config.telemetry
        configure(telemetry.log_level, file=telemetry.log_file)
        return _live(channel, message.config, build)
    finally:
        channel.close(linger=2.0)


def _live(channel: Channel[ToEngine], config: EngineConfig, build: Build) -> int:
    log = logger("engine")
    try:
        engine = build(config)
        channel.send(Ready(engine.client.info))
        serve(channel, engine.client)
    except UserError as error:
        channel.send(Failed(type(error).__name__, str(error)))
        return 1
    except Exception as error:
        log.error("the engine failed", exc_info=True)
        channel.send(Failed(type(error).__name__, str(error) or type(error).__name__))
        return 1
    engine.client.close()
    logging.shutdown()
    return 0


def _die_with(parent: int) -> None:
    """End this process when the frontend ends, however that happens and whatever this process is doing.

    Twice: the kernel's signal needs no Python, and the pipe at standard input works everywhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch_input, name="octavo-parent", daemon=True).start()


def _watch_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    from octavo.engine.build import build_engine

    sys.exit(main(sys.argv[1:], build_engine))
