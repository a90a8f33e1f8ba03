"""What errors call fields: where a body became another API's, the client is told of the fields that it has sent."""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of one API for another's fields.

    params: field that an error names -> field of the body that was sent.
    words: what a message may have (a pattern), and what it says instead.
    """

    params: Mapping[str, str] = field(default_factory=dict[str, str])
    words: Sequence[tuple[str, str]] = ()

    @contextmanager
    def of_errors(self) -> Generator[None, None, None]:
        """Errors that leave this block name fields as this API does."""
        try:
            yield
        except (InvalidRequestError, UnsupportedError) as error:
            if error.param is not None:
                error.param = self.params.get(error.param, error.param)
            error.args = (self.message(str(error)),)
            raise

    def message(self, text: str) -> str:
        """A message with this API's names."""
        for pattern, said in self.words:
            text = re.sub(pattern, said, text)
        return text


def _named(**names: str) -> list[tuple[str, str]]:
    """Identifiers that mean a field wherever they stand in a message, unless they are quoted."""
    return [(rf"""(?<![\w.'"]){name}(?!\w)""", said) for name, said in names.items()]


def of_sides(first: str, second: str) -> Naming:
    """Of the two sides of a score."""
    return Naming({"text_1": first, "text_2": second}, _named(text_1=first, text_2=second))


# The conversation is what becomes a prompt.
CHAT = Naming({"prompt": "messages"})

RESPONSES = Naming(
    {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text",
        "reasoning_effort": "reasoning",
    },
    [
        # Items are no messages: one message may be of several.
        (r"\Amessages\[\d+\]\.tool_calls\[\d+\]\.function\.", "input: a function_call's "),
        (r"\Amessages(\[\d+\])?(?!\w)", "input"),
        (r"\A(tools\[\d+\])\.function(?=[.:])", r"\1"),
        (r"\Aresponse_format: json_schema\.", "text.format."),
        (re.escape('"function": {"name": ...}'), '"name": ...'),
        *_named(max_completion_tokens="max_output_tokens", max_tokens="max_output_tokens"),
        *_named(response_format="text.format", reasoning_effort="reasoning.effort"),
    ],
)

MESSAGES = Naming(
    words=[
        (r"\Amessages\[\d+\]", "messages"),
        (r"\Atools\[(\d+)\](\.function)?\.parameters", r"tools.\1.input_schema"),
        (r"\Atools\[(\d+)\](\.function)?", r"tools.\1"),
        (r"\Astop ", "stop_sequences "),
        *_named(response_format="output_config.format", reasoning_effort="output_config.effort"),
        *_named(thinking_token_budget="thinking.budget_tokens"),
        *_named(parallel_tool_calls="tool_choice.disable_parallel_tool_use"),
    ],
)
