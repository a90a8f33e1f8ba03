"""What the handlers share: the engine, the text side of the model, names and limits; and whether it is admitting."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from octavo.config.engine import ServingConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.errors import EngineDeadError, InvalidRequestError, OverloadedError, UnknownModelError
from octavo.inputs.pooling import PoolingProcessor, refuse_pooling
from octavo.inputs.processor import InputProcessor
from octavo.outputs.answer.choose import AnswerFormats
from octavo.serving.admission import Admission
from octavo.serving.batches.lane import Batches
from octavo.serving.files.kept import Files
from octavo.serving.responses.kept import Responses
from octavo.telemetry.prometheus import PrometheusExporter
from octavo.text.tokenizer import Tokenizer

T = TypeVar("T")

_MOST_COMPILING = 64
# The field of the body that a warning begins with, if it does.
_FIELD = re.compile(
    r"""unknown[ ]field[ ]['"](?P<unknown>[^.\['"]+)"""
    r"""|(?P<known>[a-z]\w*)(?=[.\[:]|[ ](?:has[ ]no[ ]effect|is[ ]an[ ]old[ ]name|is[ ]not[ ]kept|of[ ]token[ ]))""",
    re.VERBOSE,
)


@dataclass(slots=True)
class ServerState:
    """Owner: the event loop. `max_body_bytes` is `config.max_body_size` in bytes.

    `models`: the names that requests may use; the first is the one that answers carry.
    `dev_mode`: operators' routes are served, too. `policy`: order of waiting requests.
    `settings`: the configuration as operators may see it, without secrets.
    `fingerprint`: what decides the bits of answers; see `flow/receipt.py`.
    `sampling_defaults`: what requests get where they say nothing, from the model's generation_config.
    `formats`: how the model writes tool calls and reasoning.
    """

    engine: AsyncEngine
    inputs: InputProcessor
    config: ServingConfig
    models: tuple[str, ...]
    model_path: str
    version: str
    max_body_bytes: int
    started: int  # seconds since the epoch
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: AnswerFormats = field(default_factory=AnswerFormats)
    exporter: PrometheusExporter | None = None
    admission: Admission = field(default_factory=Admission)
    responses: Responses = field(default_factory=Responses)
    files: Files = field(default_factory=Files)
    batches: Batches = field(default_factory=lambda: Batches(Files()))
    fingerprint: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dev_mode: bool = False
    profile_dir: str = "profiles"  # of the engine's steps
    policy: str = "fcfs"
    pooling: PoolingProcessor | None = None  # None: the model generates
    template_variables: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of requests that set none
    document: dict[str, Any] | None = None  # of the API; made when it is first asked for
    compiling: int = 0  # requests whose grammar is compiled, or waits for that
    _compiler: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="octavo-compile")
    )

    @property
    def draining(self) -> bool:
        """The server is stopping."""
        return self.admission.draining

    @property
    def healthy(self) -> bool:
        """The engine is up and new requests are taken."""
        return self.engine.healthy and not self.draining

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's.

        Raises:
            InvalidRequestError: only token ids are served.
        """
        if self.inputs.tokenizer is None:
            raise InvalidRequestError("this server has no tokenizer (--skip-tokenizer-init): it serves token ids only")
        return self.inputs.tokenizer

    def pooling_processor(self) -> PoolingProcessor:
        """The way of texts into an engine that pools them.

        Raises:
            UnsupportedError: it generates.
        """
        if self.pooling is None:
            raise refuse_pooling(self.models[0])
        return self.pooling

    async def compile(self, work: Callable[[], T]) -> T:
        """The result of work that compiles a grammar: one at a time, in a thread of its own.

        Raises:
            OverloadedError: too many wait for that already.
        """
        if self.compiling >= _MOST_COMPILING:
            raise OverloadedError(f"{self.compiling} requests with structured output wait to be compiled; try again")
        self.compiling += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compiler, work)
        finally:
            self.compiling -= 1

    def check_admission(self) -> None:
        """Refuse new work while the server drains.

        Raises:
            EngineDeadError: it does.
        """
        if self.draining:
            raise EngineDeadError("the server is shutting down and takes no new requests")

    def check_strict(self, warnings: Sequence[str]) -> None:
        """Refuse a request of which something has no effect, where the server is strict.

        Raises:
            InvalidRequestError: the first of these warnings.
        """
        if warnings and self.config.strict_requests:
            raise InvalidRequestError(
                f"{warnings[0]} (the server is strict: --strict-requests)", warned_field(warnings[0])
            )

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no name means the one there is.

        Raises:
            UnknownModelError: names the models that are.
        """
        if name and name not in self.models:
            raise UnknownModelError(f"The model `{name[:128]}` does not exist; served: {', '.join(self.models)}")


def warned_field(warning: str) -> str | None:
    """The field of a body that a warning speaks of; None: of none."""
    found = _FIELD.match(warning)
    return None if found is None else found["unknown"] or found["known"]


def state_of(request: Request) -> ServerState:
    """The state of the application that a request came to."""
    return request.app.state.server
