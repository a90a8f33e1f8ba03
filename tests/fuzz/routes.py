"""The application around a scripted engine, asked without a network: one body, one answer."""

import asyncio
from functools import cache
from typing import Any

from starlette.applications import Starlette

from octavo.config.engine import ServingConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.threaded import ThreadedEngine
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.outputs.processor import OutputProcessor
from octavo.serving.app import ROUTES, build_app
from octavo.serving.keys import KeyRing
from octavo.serving.state import ServerState
from octavo.telemetry.metrics import MetricsStore
from octavo.text.chat_template import ChatTemplate
from octavo.text.grammar import GrammarCompiler
from tests.serving.scripted import TEMPLATE
from tests.serving.scripted_engine import CONTEXT, VOCAB, ByteTokenizer, ScriptedClient

# Every route that takes JSON.
PATHS = tuple(
    route.path
    for route in ROUTES
    if "POST" in (route.methods or ()) and "{" not in route.path and route.path not in ("/v1/files", "/ping")
)
_SECONDS = 120.0


class _Asked:
    """One exchange, as an ASGI server has it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = b""

    async def receive(self) -> dict[str, Any]:
        """The body; then nothing more comes: the client stays."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        """What the application says."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.answer += message.get("body", b"")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@cache
def _app() -> Starlette:
    return _loop().run_until_complete(_started())


async def _started() -> Starlette:
    store, tokenizer = MetricsStore("tiny"), ByteTokenizer()
    engine = AsyncEngine(ThreadedEngine(ScriptedClient(tokens_per_step=8)), OutputProcessor(tokenizer), store, 200)
    await engine.ready()
    state = ServerState(
        engine=engine,
        inputs=InputProcessor(
            tokenizer,
            ChatTemplate(TEMPLATE),
            InputLimits(CONTEXT, VOCAB, 20),
            grammars=GrammarCompiler(lambda: tokenizer, VOCAB),
        ),
        config=ServingConfig(disable_access_log=True, file_store="none"),
        models=("tiny",),
        model_path="tiny",
        version="0",
        max_body_bytes=1 << 20,
        started=0,
    )
    return build_app(state, store, KeyRing(())).app


def ask(path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to POST `path`. Fails when none comes in time."""
    asked = _Asked(body)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"x"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    app = _app()
    _loop().run_until_complete(asyncio.wait_for(app(scope, asked.receive, asked.send), _SECONDS))  # type: ignore[arg-type]
    return asked.status, asked.answer
