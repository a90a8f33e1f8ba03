"""Which formats a model's answers are in: what the user says, or what its chat template shows; with the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.errors import ConfigError
from octavo.outputs.answer.formats import ALIASES as TOOL_ALIASES
from octavo.outputs.answer.formats import FORMATS, ToolFormat
from octavo.outputs.answer.reasoning import ALIASES as REASONING_ALIASES
from octavo.outputs.answer.reasoning import REASONING, ReasoningFormat

T = TypeVar("T")

AUTO, NONE = "auto", "none"

# What a template writes, and the format that this means; the first that is there counts.
_TOOL_SIGNS = (
    ("<|channel|>", "openai"),
    ("<function=", "qwen3_coder"),
    ("<start_function_call>", "gemma"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),  # noqa: RUF001 (the model's own bars)
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
)
_REASONING_SIGNS = (
    ("<|channel|>", "openai_gptoss"),
    ("[THINK]", "mistral"),
    ("Here is my thought process", "granite"),
    ("</think>", "qwen3"),
)


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """How a model's tool calls and reasoning are read; None: not at all. The reasons are for people."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    tools_reason: str = ""
    reasoning_reason: str = ""
    shows_tools: bool = False  # the template has a place for them
    shows_effort: bool = False

    def told(self) -> str:
        """One line about both; empty where there is neither."""
        parts: list[str] = []
        if self.tools is not None:
            parts.append(f"tool calls as {self.tools.name} ({self.tools_reason})")
        if self.reasoning is not None:
            parts.append(f"reasoning as {self.reasoning.name} ({self.reasoning_reason})")
        return ", ".join(parts)


def choose_formats(template: str, tools: str = AUTO, reasoning: str = AUTO) -> AnswerFormats:
    """The formats of a model.

    Args:
        template: its chat template's text; empty where it has none.
        tools, reasoning: a format's name, "auto" or "none".

    Raises:
        ConfigError: there is no such format; lists those there are.
    """
    form, why = _chosen(tools, FORMATS, TOOL_ALIASES, template, _TOOL_SIGNS, "tool_call_parser")
    thought, because = _chosen(reasoning, REASONING, REASONING_ALIASES, template, _REASONING_SIGNS, "reasoning_parser")
    return AnswerFormats(form, thought, why, because, "tools" in template, "reasoning_effort" in template)


def _chosen(
    wanted: str,
    known: Mapping[str, T],
    aliases: Mapping[str, str],
    template: str,
    signs: Sequence[tuple[str, str]],
    option: str,
) -> tuple[T | None, str]:
    if wanted == AUTO:
        for sign, name in signs:
            if sign in template:
                return known[name], f"the chat template has {sign}"
        return None, "the chat template has no format that is known"
    if wanted in (NONE, ""):
        return None, "as configured"
    name = aliases.get(wanted, wanted)
    if name not in known:
        raise ConfigError(f"{option}: {wanted!r} is not one of auto, none, {', '.join(sorted({*known, *aliases}))}")
    return known[name], "as configured"
