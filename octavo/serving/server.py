"""Starts and stops the HTTP server: socket first, engine beside the text side, at most ten quiet lines.

Imports little, so that the engine process starts at once; the rest is loaded meanwhile.
"""

import asyncio
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from octavo.config.engine import EngineConfig, ModelConfig, ServingConfig
from octavo.engine.supervisor import EngineSupervisor
from octavo.errors import ConfigError
from octavo.telemetry.log import configure, logger

if TYPE_CHECKING:
    from octavo.engine.frontend import Frontend
    from octavo.serving.state import ServerState

Say = Callable[[str], None]

BACKLOG = 2048  # connections that may wait to be accepted
_OTHER_FILES = 256  # besides connections
_ONE_PRESS = 0.5  # seconds in which signals count as one


def run_server(config: EngineConfig, say: Say = print) -> int:
    """Serve until SIGTERM or SIGINT, then finish what runs; another signal ends that, too. Returns the exit status 0.

    Args:
        config: what to serve and where.
        say: gets the lines that tell a person what is there; at most ten.

    Raises:
        UserError: the model, an option or the address is wrong; the message is one line.
    """
    try:
        configure(config.telemetry.log_level, file=config.telemetry.log_file)
    except OSError as error:
        raise ConfigError(f"log_file: {config.telemetry.log_file}: {error.strerror or error}") from None
    # First, so that an address in use is told before the model is loaded.
    listener = bind(config.serving)
    _allow_connections(config.serving.max_connections)
    try:
        return uvloop.run(_run(config, listener, say))
    finally:
        listener.close()
        if config.serving.uds:
            Path(config.serving.uds).unlink(missing_ok=True)


async def _run(config: EngineConfig, listener: socket.socket, say: Say) -> int:
    stop, started = Stop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    if not sys.stdin or not sys.stdin.isatty():  # at a terminal it tells that the terminal is gone
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.reload.set)
    serving = asyncio.ensure_future(_serve(config, listener, started, stop, say))
    stopping = asyncio.ensure_future(stop.asked.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done() and not started.is_set():
        serving.cancel()  # stopped while still starting: there is nothing to drain
        await asyncio.wait((serving,))
    if not serving.cancelled():
        await serving
    return 0


async def _serve(config: EngineConfig, listener: socket.socket, started: asyncio.Event, stop: "Stop", say: Say) -> None:
    began = time.monotonic()
    supervisor = EngineSupervisor(_without_keys(await _located(config)))
    try:
        supervisor.launch()
        from octavo.serving.edge import Edge

        edge = Edge(config.serving)
        frontend = await asyncio.to_thread(_load, config)
        from octavo.serving.runtime import assemble, serve

        state, store = await assemble(config, frontend, supervisor)
        listener.listen(BACKLOG)  # whoever reads that the server is up may connect at once
        for line in greeting(config, state, address_of(listener, config.serving), time.monotonic() - began):
            say(line)
        started.set()
        await serve(state, store, listener, stop, config, edge)
    finally:
        await supervisor.close()


def _without_keys(config: EngineConfig) -> EngineConfig:
    """What the engine process is told: it has no use for API keys."""
    return replace(config, serving=replace(config.serving, api_key=()))


def _allow_connections(count: int) -> None:
    """Let this process open as many files as connections may come, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < wanted:
        logger("serving").warning("%d open files are allowed: fewer than --max-connections %d", possible, count)


class Stop:
    """What signals ask for: to end, with what runs finished or at once; to read files again. Owner: the event loop."""

    def __init__(self) -> None:
        self.reload = asyncio.Event()
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self._first = 0.0

    def ask(self) -> None:
        """Ask once to end, twice to end at once. One Ctrl-C may come twice: from the terminal, and from a parent that
        passes it on."""
        now = time.monotonic()
        if not self.asked.is_set():
            self._first = now
            self.asked.set()
        elif now - self._first > _ONE_PRESS:
            self.at_once.set()


async def _located(config: EngineConfig) -> EngineConfig:
    """The configuration with a hub name replaced by its local copy, so that only one process downloads it."""
    model = config.model
    if model.model is None or os.path.exists(os.path.expanduser(model.model)):
        return config
    path = await asyncio.to_thread(_find, model)
    return replace(config, model=replace(model, model=str(path)))


def _find(model: ModelConfig) -> Path:
    from octavo.model.source import find_model

    return find_model(model.model, model.revision, model.download_dir, model.hf_token)


def _load(config: EngineConfig) -> "Frontend":
    from octavo.serving.runtime import load

    return load(config)


def bind(config: ServingConfig) -> socket.socket:
    """The socket to listen at; it refuses connections until the server listens.

    Raises:
        ConfigError: the address is in use or not of this machine.
    """
    try:
        return _bind_unix(config.uds) if config.uds else _bind_tcp(config.host, config.port)
    except (OSError, OverflowError) as error:
        place = config.uds or f"{config.host}:{config.port}"
        flags = "--uds" if config.uds else "--port or --host"
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen at {place}: {reason}; choose another {flags}") from None


def _bind_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file = Path(path)
    if file.exists() and stat.S_ISSOCK(file.stat().st_mode) and not _answers(path):
        file.unlink()  # left behind by a server that was killed
    listener.bind(path)
    return listener


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def address_of(listener: socket.socket, config: ServingConfig) -> str:
    """The URL to reach the server by; the port that was really taken."""
    if config.uds:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://{shown}:{port}{config.root_path.rstrip('/')}"


def _example(tasks: Sequence[str]) -> tuple[str, str]:
    """A route of a pooled model, and a body for it."""
    if tasks[0] == "embed":
        return "/v1/embeddings", '{"input": "Hello!"}'
    if "score" in tasks:
        return "/score", '{"text_1": "Is it cold?", "text_2": ["It freezes.", "It is late."]}'
    return ("/classify" if tasks[0] == "classify" else "/pooling"), '{"input": "Hello!"}'


def greeting(config: EngineConfig, state: "ServerState", address: str, seconds: float) -> Iterator[str]:
    """What a person wants to know when the server is up; at most ten lines."""
    info = state.engine.info
    model = state.models[0]
    yield f"Octavo {state.version} serves {model}"
    if state.model_path != model:
        yield f"model    {state.model_path}"
    if told := state.formats.told():
        yield f"answers  {told}"
    many = f"{info.max_num_seqs} sequence{'s' if info.max_num_seqs > 1 else ''}"
    if state.pooling is None:
        kept = f"{info.num_blocks * info.block_size} tokens in the cache"
    else:
        kept = f"{info.max_num_batched_tokens} tokens in a step; {', '.join(state.pooling.tasks)}"
    yield f"context  {info.max_model_len} tokens; {many} at once, {kept}"
    if state.sampling_defaults and state.pooling is None:
        values = ", ".join(f"{name} {value}" for name, value in sorted(state.sampling_defaults.items()))
        yield f"sampling {values}, the model's own (--generation-config vllm: without)"
    yield f"ready    in {seconds:.1f} s (engine {info.start_seconds:.1f} s)"
    keys = bool(config.serving.api_key or config.serving.api_key_file)
    yield f"address  {address}" + (" (API key needed)" if keys else "")
    yield "Application startup complete."
    route, body = "/v1/completions", '{"prompt": "Once upon a time"}'
    if state.inputs.chat_template is not None:
        route, body = "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}'
    if state.pooling is not None:
        route, body = _example(state.pooling.tasks)
    scheme = address.partition(":")[0] if config.serving.ssl_certfile else "http"
    target = f"--unix-socket {config.serving.uds} {scheme}://localhost" if config.serving.uds else address
    key = "-H 'Authorization: Bearer KEY' " if keys else ""
    yield f"try      curl {target}{route} {key}-H 'Content-Type: application/json' -d '{body}'"
    yield "stop     Ctrl-C"
