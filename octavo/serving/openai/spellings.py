"""llama.cpp's names of fields that vLLM has under others: what a body with them asks for."""

from collections.abc import Iterator

from octavo.errors import InvalidRequestError
from octavo.serving.openai.schema import GenerationFields

NO_LIMIT = -1  # as max_tokens: all that the context has room for
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def respell(body: GenerationFields) -> list[str]:
    """Change a body to the usual names, where it does not have these as well; what of it has no effect.

    Raises:
        InvalidRequestError: repeat_last_n is less than -1.
    """
    return [
        *_renamed(body, "repeat_penalty", "repetition_penalty"),
        *_renamed(body, "n_predict", "max_tokens"),
        *_window(body),
    ]


def _renamed(body: GenerationFields, name: str, usual: str) -> Iterator[str]:
    value = getattr(body, name)
    if value is None:
        return
    setattr(body, name, None)
    if getattr(body, usual) is None:
        setattr(body, usual, value)
    elif getattr(body, usual) != value:
        yield f"{name} has no effect: {usual} wins"


def _window(body: GenerationFields) -> Iterator[str]:
    """How far back penalties look: everything (-1), nothing (0), or so many tokens, which there is no telling them."""
    window, body.repeat_last_n = body.repeat_last_n, None
    if window is None or window == -1:
        return
    if window < 0:
        raise InvalidRequestError(f"repeat_last_n must be -1 or more, got {window}", "repeat_last_n")
    if window == 0:
        for name, neutral in _PENALTIES.items():
            setattr(body, name, neutral)
    elif any(getattr(body, name) not in (None, neutral) for name, neutral in _PENALTIES.items()):
        yield (
            "repeat_last_n has no effect: repetition_penalty looks at the whole text, presence_penalty and "
            "frequency_penalty at the whole answer"
        )
