"""Messages to one prompt text: a model's Jinja template, run in a sandbox and within limits.

What a template may use follows Hugging Face's convention for chat templates: block trimming, break and continue,
`raise_exception`, `strftime_now`, `tojson` without escapes, and `{% generation %}` sections.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import InvalidRequestError
from octavo.text.messages import Message, as_parts, as_text, normalized, with_marker

_TICK = "octavo_tick"
_JOIN = "octavo_join"
_PARAM = "messages"
_PROBE = "probe-a8"
_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """How much one rendering may take. Characters, and seconds of the thread's own time: what else the machine does
    decides nothing."""

    source: int = 1 << 20
    output: int = 32 << 20
    seconds: float = 3.0
    probe_seconds: float = 0.5
    value: int = 64 << 20  # size of one value that the template computes


class ChatTemplate:
    """A template, compiled once. Safe to share between threads.

    Args:
        source: the template; or several by name, as {name: template} or [{"name": ..., "template": ...}], of which
            "tool_use" serves requests with tools and "default" all others.
        special_tokens: what the template may call `bos_token`, `eos_token` and so on.

    Raises:
        InvalidRequestError: the template is too long or not Jinja.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | Sequence[Mapping[str, str]],
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits | None = None,
    ) -> None:
        self._limits = limits or TemplateLimits()
        self._special_tokens = dict(special_tokens or {})
        self._sources = _by_name(source)
        self._templates = {name: self._compile(text) for name, text in self._sources.items()}
        if not self._templates:
            raise InvalidRequestError("the model has no chat template; give one with --chat-template", "chat_template")
        self._accepts: dict[str, tuple[bool, bool]] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text.

        Args:
            messages: {"role", "content", ...}; content a text, a list of text parts, or None. Not altered.
            add_generation_prompt: end with the header of an assistant turn.
            continue_final_message: leave the last message, the assistant's, open instead.
            tools: function descriptions for the template.
            kwargs: more variables for the template; they win over special tokens.

        Raises:
            InvalidRequestError: no messages, contradictory flags, a fault in the template or its own refusal.
            UnsupportedError: content that is not text.
        """
        conversation = normalized(messages)
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        marker = ""
        if continue_final_message:
            marker = _check_continuation(conversation, add_generation_prompt)
            conversation = with_marker(conversation, marker)
        variables = {**self._special_tokens, "tools": tools, "documents": None, **kwargs}
        variables["add_generation_prompt"] = add_generation_prompt
        variables["messages"] = self._shaped(name, template, conversation)
        text = self._run(template, variables, self._limits.seconds)
        return _open_ended(text, marker) if marker else text

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Names and texts."""
        return tuple(self._sources.items())

    def mentions(self, name: str) -> bool:
        """The template may read a variable or field of this name."""
        return any(name in text for text in self._sources.values())

    def _compile(self, text: str) -> jinja2.Template:
        if len(text) > self._limits.source:
            raise InvalidRequestError(
                f"the chat template has {len(text)} characters, {self._limits.source} are allowed", "chat_template"
            )
        environment = _Environment(self._limits)
        try:
            tree = environment.parse(text)
            _add_checks(tree)
            tree.set_environment(environment)
            return environment.from_string(tree)
        except (*_FAULTS, SyntaxError) as error:
            raise InvalidRequestError(f"the chat template is not valid: {error}", "chat_template") from None

    def _run(self, template: jinja2.Template, variables: Mapping[str, Any], seconds: float) -> str:
        deadline = time.thread_time() + seconds

        def tick() -> None:
            if time.thread_time() > deadline:
                raise SecurityError(f"it ran longer than {seconds:g} s")

        pieces: list[str] = []
        size = 0
        try:
            for piece in template.generate({**variables, _TICK: tick}):
                pieces.append(piece)
                size += len(piece)
                if size > self._limits.output:
                    raise SecurityError(f"its output is longer than {self._limits.output} characters")
                tick()
        except (*_FAULTS, MemoryError) as error:
            raise InvalidRequestError(f"chat template: {error}", _PARAM) from None
        return "".join(pieces)

    def _shaped(self, name: str, template: jinja2.Template, conversation: list[Message]) -> list[Message]:
        """Contents in the form this template reads: text, parts, or either."""
        if name not in self._accepts:
            parts = [{"type": "text", "text": _PROBE}]
            self._accepts[name] = (self._probe(template, _PROBE), self._probe(template, parts))
        takes_text, takes_parts = self._accepts[name]
        if not takes_parts:
            return [as_text(message) for message in conversation]
        return conversation if takes_text else [as_parts(message) for message in conversation]

    def _probe(self, template: jinja2.Template, content: Any) -> bool:
        """Whether a content of this form comes out as its plain text."""
        variables = {**self._special_tokens, "tools": None, "documents": None, "add_generation_prompt": False}
        try:
            messages = [{"role": "user", "content": content}]
            text = self._run(template, {**variables, "messages": messages}, self._limits.probe_seconds)
        except InvalidRequestError:
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text


class _Environment(ImmutableSandboxedEnvironment):
    """No access to Python's insides, no change of the caller's values, no value beyond the limits."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self, limits: TemplateLimits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loop_controls, _GenerationSection])
        self._largest = limits.value
        filters = cast("dict[str, Callable[..., Any]]", self.filters)  # pyright: ignore[reportUnknownMemberType]
        filters["tojson"] = _to_json
        for name in ("center", "format", "indent", "wordwrap"):
            filters[name] = _narrow(filters[name])
        functions = {"raise_exception": _raise_exception, "strftime_now": _strftime_now, _JOIN: self._join}
        cast("dict[str, Any]", self.globals).update(functions)  # pyright: ignore[reportUnknownMemberType]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**`, `%` and `+`, unless the result would be too large."""
        if operator == "**":
            self._require(_size(left) < 1 << 32 and _size(right) <= 64)
        elif operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            self._require(_size(left) * _size(right) <= self._largest)
        elif operator == "%" and isinstance(left, str):
            self._require(not _has_wide_field(left))
        elif operator == "+":
            self._require(isinstance(left, (int, float)) or _size(left) + _size(right) <= self._largest)
        return super().call_binop(context, operator, left, right)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call an object; methods of texts only where the product of their operands' sizes stays small."""
        function = args[1]
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            operands = [_size(value) for value in (*args[2:], *kwargs.values())]
            self._require((len(owner) + 1) * (max(operands, default=0) + 1) <= self._largest)
        return super().call(*args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """The sandbox's own `str.format`, unless a field is very wide."""
        wrapped = super().wrap_str_format(value)
        self._require(wrapped is None or not _has_wide_field(value.__self__))
        return wrapped

    def _join(self, *values: Any) -> str:
        """What `~` computes."""
        texts = [str(value) for value in values]
        self._require(sum(map(len, texts)) <= self._largest)
        return "".join(texts)

    def _require(self, fits: bool) -> None:
        if not fits:
            raise SecurityError(f"a value would be larger than {self._largest} characters")


class _GenerationSection(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (the type that Jinja declares)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _add_checks(tree: nodes.Template) -> None:
    """Let loops and macros look at the clock, and `~` at the length of its result."""
    for loop in tree.find_all((nodes.For, nodes.Macro)):
        tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
        loop.body.insert(0, tick.set_lineno(loop.lineno))
    for concat in tree.find_all(nodes.Concat):
        concat.nodes = [nodes.Call(nodes.Name(_JOIN, "load"), concat.nodes, [], None, None)]


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses widths of more than five digits."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        if any(isinstance(value, int) and value > 99_999 for value in values[1:]) or _has_wide_field(str(args[0])):
            raise SecurityError("a width is larger than 99999")
        return function(*args, **kwargs)

    return checked


def _by_name(source: str | Mapping[str, str] | Sequence[Mapping[str, str]]) -> dict[str, str]:
    if isinstance(source, str):
        return {"default": source} if source else {}
    if isinstance(source, Mapping):
        return dict(source)
    return {entry["name"]: entry["template"] for entry in source}


def _check_continuation(conversation: Sequence[Message], add_generation_prompt: bool) -> str:
    """A text that no message holds, to find the end of the last one by."""
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other: set add_generation_prompt to false",
            "continue_final_message",
        )
    if conversation[-1].get("role") != "assistant":
        raise InvalidRequestError(
            "continue_final_message needs a last message whose role is 'assistant'", "continue_final_message"
        )
    whole = json.dumps(conversation, default=str)
    return next(mark for mark in _marks() if mark.strip() not in whole)


def _marks() -> Iterator[str]:
    number = 0
    while True:
        yield f"octavo-end-of-message-{number} "
        number += 1


def _open_ended(text: str, marker: str) -> str:
    """The text up to the marker. A template that trims contents took the marker's own last space away: trim as well."""
    at = text.rfind(marker.rstrip())
    if at < 0:
        raise InvalidRequestError(
            "the chat template does not show the last message's content, so it cannot be continued",
            "continue_final_message",
        )
    return text[:at] if text.startswith(marker, at) else text[:at].rstrip()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as people write it, without Jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _size(value: Any) -> int:
    if isinstance(value, (int, float)):
        return abs(int(value)) if value == value and abs(value) < 1e30 else 1 << 62
    return len(cast("Sequence[Any]", value)) if hasattr(value, "__len__") else 1


def _has_wide_field(form: str) -> bool:
    """Whether a format text asks for a width or precision of more than five digits."""
    digits = 0
    for character in form:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 5:
            return True
    return False
