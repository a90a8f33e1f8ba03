"""`octavo chat`: a conversation in the terminal, with a model in this process."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from octavo.cli.options import add_sampling_flags, command_parser, read_config, sampling_values
from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    from octavo.api.offline import OfflineEngine

_HELP = "/help  this text   /reset  forget all   /system TEXT  system message   /exit  leave"
_TEMPERATURE = 0.3  # where neither the command line nor the model says one: at 1, the API's, small models ramble


def run(arguments: Sequence[str]) -> int:
    """Read lines and answer them until /exit or the end of input."""
    parser = command_parser("chat", "Talk to a model in the terminal; at temperature 0.3 if nobody says another.")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_flags(parser)
    parsed = parser.parse_args(arguments)
    config = read_config(parsed)

    from octavo.api.offline import OfflineEngine  # after the flags are known to be right

    interactive = sys.stdin.isatty()
    if interactive:
        print("loading ...", end="", flush=True)
    engine = OfflineEngine(config)
    try:
        if engine.frontend.chat_template is None:
            raise InvalidRequestError("this model has no chat template: use `octavo generate`, or give --chat-template")
        if interactive:
            print(f"\r{engine.frontend.name}, {engine.engine.info.max_model_len} tokens of context\n{_HELP}")
        sampling = {"temperature": _TEMPERATURE, **engine.frontend.sampling_defaults(), **sampling_values(parsed)}
        conversation = Conversation(engine, sampling, parsed.system)
        return converse(conversation, interactive)
    finally:
        engine.close()


class Conversation:
    """Messages so far, and how to get the next one. Owner: the command."""

    def __init__(self, engine: "OfflineEngine", sampling: dict[str, object], system: str | None) -> None:
        self._engine = engine
        self._sampling = sampling
        self._messages: list[dict[str, str]] = []
        self.reset(system)

    def reset(self, system: str | None) -> None:
        """Start again."""
        self._messages = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> Iterator[str]:
        """The pieces of the answer. An answer that is broken off is kept as far as it came.

        Raises:
            OctavoError: the conversation is too long, or the template refuses; the question is not kept then.
        """
        engine = self._engine
        messages = [*self._messages, {"role": "user", "content": text}]
        params = engine.inputs.default_params(**{"max_tokens": self._room(), **self._sampling})
        request = engine.prepare(engine.inputs.render(messages), params, add_special_tokens=False)
        pieces: list[str] = []
        try:
            for deltas in engine.stream([request]):
                for delta in deltas:
                    pieces.append(delta.text)
                    yield delta.text
        finally:
            self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def _room(self) -> int:
        return self._engine.engine.info.max_model_len  # shortened to what the context has left


def converse(conversation: Conversation, interactive: bool) -> int:
    """The loop. Ctrl-C breaks an answer off, and leaves at the prompt."""
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            if interactive:
                print()
            return 0
        if line in ("/exit", "/quit"):
            return 0
        if line.startswith("/"):
            _command(conversation, line)
        elif line:
            _answer(conversation, line, interactive)


def _command(conversation: Conversation, line: str) -> None:
    name, _, rest = line.partition(" ")
    if name in ("/reset", "/system"):
        conversation.reset(rest.strip() or None)
        print("(new conversation)")
    else:
        print(_HELP)


def _answer(conversation: Conversation, line: str, interactive: bool) -> None:
    began, first, pieces = time.perf_counter(), 0.0, 0
    try:
        for text in conversation.ask(line):
            first = first or time.perf_counter()
            pieces += 1
            print(text, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print(" (broken off)")
    except OctavoError as error:
        print(f"error: {error}\n  hint: /reset starts a new conversation", file=sys.stderr)
    if interactive and first and pieces > 1:
        rate = (pieces - 1) / max(time.perf_counter() - first, 1e-9)
        print(f"\x1b[2m{first - began:.2f} s to the first token, {rate:.0f} tokens/s\x1b[0m")
