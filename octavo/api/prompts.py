"""Names for the forms of a prompt, and which calls of the offline API hold one prompt and which several."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from octavo.errors import InvalidRequestError


class _PromptExtras(TypedDict, total=False):
    cache_salt: str  # only prompts of the same salt share cached blocks
    cache_retention: float  # seconds for which the prompt stays cached after its last use, within a budget
    prompt_cache_key: str  # names prompts that begin alike and come again
    explain_cache: bool  # tell what was found, and why not more


class TextPrompt(_PromptExtras):
    """A prompt as text."""

    prompt: str


class TokensPrompt(_PromptExtras):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]


def list_prompts(prompts: object) -> list[PromptType]:
    """A call's prompts: it may hold one, or a sequence of them.

    Raises:
        InvalidRequestError: neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return [cast(PromptType, prompts)]
    if hasattr(prompts, "tolist"):  # an array of token ids
        prompts = cast(Any, prompts).tolist()
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(
            f"prompts must be a prompt or a list of them, got {type(prompts).__name__}", "prompts"
        )
    listed = cast(Sequence[object], prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [cast(PromptType, prompts)]
    return [cast(PromptType, prompt) for prompt in listed]


def list_conversations(messages: object) -> list[Sequence[Mapping[str, Any]]]:
    """A call's conversations: it may hold one (a list of messages), or a list of them.

    Raises:
        InvalidRequestError: neither.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError("messages must be a list of {role, content} objects, or a list of lists", "messages")
    listed = cast(Sequence[object], messages)
    if listed and isinstance(listed[0], Mapping):
        return [cast(Sequence[Mapping[str, Any]], listed)]
    return [cast(Sequence[Mapping[str, Any]], conversation) for conversation in listed]


def text_of(prompt: PromptType) -> str | None:
    """The text of a prompt, when it was given as one."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        text: object = cast(Mapping[str, Any], prompt).get("prompt")
        return text if isinstance(text, str) else None
    return None


def spread(value: object, count: int, name: str) -> list[Any]:
    """One value for each of `count` prompts: the same for all, or a list of as many.

    Raises:
        InvalidRequestError: a list of another length.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * count
    listed = list(cast(Sequence[Any], value))
    if len(listed) != count:
        raise InvalidRequestError(f"{name} has {len(listed)} entries for {count} prompts", name)
    return listed
