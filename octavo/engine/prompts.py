"""The forms in which callers of the offline API write prompts, brought into one: a text or a list of token ids each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from octavo.errors import InvalidRequestError, UnsupportedError


class _PromptExtras(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_PromptExtras):
    """A prompt as text."""

    prompt: str


class TokensPrompt(_PromptExtras):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt
Prompts = PromptType | Sequence[PromptType]

_NOT_TEXT = ("multi_modal_data", "mm_processor_kwargs", "multi_modal_uuids", "prompt_embeds", "encoder_prompt")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `text` None: it was given as token ids."""

    text: str | None
    token_ids: tuple[int, ...] | None = None
    cache_salt: str = ""


def read_prompts(prompts: object) -> list[Prompt]:
    """Every prompt of a call: one, or a sequence of them.

    Raises:
        InvalidRequestError: something else was given; says which.
        UnsupportedError: images, audio or embeddings.
    """
    if isinstance(prompts, (str, Mapping)) or _are_token_ids(prompts):
        return [read_prompt(cast(object, prompts))]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts are texts, token ids or a list of them, not {_kind(prompts)}", "prompts")
    return [read_prompt(prompt, index) for index, prompt in enumerate(cast(Sequence[object], prompts))]


def read_prompt(prompt: object, index: int = 0) -> Prompt:
    """One prompt in any form; `index` is for messages."""
    if isinstance(prompt, str):
        return Prompt(prompt)
    if isinstance(prompt, Mapping):
        return _from_mapping(cast(Mapping[str, Any], prompt), index)
    if _are_token_ids(prompt):
        return Prompt(None, tuple(cast(Sequence[int], prompt)))
    raise InvalidRequestError(f"prompts[{index}] is neither text nor token ids but {_kind(prompt)}", "prompts")


def _from_mapping(prompt: Mapping[str, Any], index: int) -> Prompt:
    for key in _NOT_TEXT:
        if prompt.get(key):
            raise UnsupportedError(f"prompts[{index}]: {key} is not supported, only text and token ids are")
    salt = prompt.get("cache_salt") or ""
    ids = prompt.get("prompt_token_ids")
    text = prompt.get("prompt")
    if ids is not None:
        if not _are_token_ids(ids):
            raise InvalidRequestError(f"prompts[{index}]: prompt_token_ids is no list of token ids", "prompts")
        return Prompt(text if isinstance(text, str) else None, tuple(ids), salt)
    if not isinstance(text, str):
        raise InvalidRequestError(f"prompts[{index}] has neither 'prompt' (text) nor 'prompt_token_ids'", "prompts")
    return Prompt(text, None, salt)


def _are_token_ids(value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    items = cast(Sequence[object], value)
    return len(items) > 0 and all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
