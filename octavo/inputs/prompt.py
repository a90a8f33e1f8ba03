"""What counts as a prompt: a text, token ids, or a dict of either, as in vLLM."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.request import CacheWish

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"

_WISHES = {"cache_retention": "retention", "prompt_cache_key": "key", "explain_cache": "explain"}
_KEYS = frozenset(["prompt", "prompt_token_ids", "cache_salt", *_WISHES])
_NO_WISH = CacheWish()
_LONGEST_RETENTION = 1e9  # seconds
LONGEST_CACHE_KEY = 1024  # characters
_NEEDS_MEDIA = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """Text, ids or both; ids win. `cache_salt` separates the cached prefixes of users who must not see each other's."""

    text: str | None = None
    ids: Sequence[int] | None = None
    cache_salt: str = ""
    cache: CacheWish = _NO_WISH


def read_prompt(prompt: Prompt) -> ReadPrompt:
    """Sort out which form a prompt has.

    Raises:
        InvalidRequestError: none of the forms.
        UnsupportedError: embeddings or media.
    """
    if isinstance(prompt, str):
        return ReadPrompt(text=prompt)
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt)
    return ReadPrompt(ids=_token_ids(prompt))


def _from_mapping(prompt: Mapping[str, Any]) -> ReadPrompt:
    if prompt.get("prompt_embeds") is not None:
        raise UnsupportedError("prompt_embeds is not supported; give the prompt as text or token ids", "prompt_embeds")
    for name in _NEEDS_MEDIA:
        if prompt.get(name):
            raise UnsupportedError(f"{name} is not supported: this model reads text only", name)
    unknown = [name for name, value in prompt.items() if name not in _KEYS and value is not None and value != {}]
    if unknown:
        raise InvalidRequestError(f"a prompt has no field {unknown[0]!r}; it has prompt or prompt_token_ids", "prompt")
    salt: object = prompt.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise InvalidRequestError("cache_salt must be a text that is not empty", "cache_salt")
    text: object = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError("prompt must be a text", "prompt")
    ids: object = prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise InvalidRequestError("a prompt needs prompt or prompt_token_ids", "prompt")
    return ReadPrompt(text, None if ids is None else _token_ids(ids), salt or "", _cache_wish(prompt))


def _cache_wish(prompt: Mapping[str, Any]) -> CacheWish:
    kinds: dict[str, type | tuple[type, ...]] = {"retention": (int, float), "key": str, "explain": bool}
    given: dict[str, Any] = {}
    for name, field in _WISHES.items():
        value: object = prompt.get(name)
        if value is None:
            continue
        wrong = not isinstance(value, kinds[field]) or (isinstance(value, bool) and field != "explain")
        if wrong or (isinstance(value, (int, float)) and not 0 <= value < _LONGEST_RETENTION):
            raise InvalidRequestError(f"{name} is not what it should be: {repr(value)[:80]}", name)
        if isinstance(value, str) and len(value) > LONGEST_CACHE_KEY:
            raise InvalidRequestError(f"{name} may have {LONGEST_CACHE_KEY} characters, got {len(value)}", name)
        given[field] = value
    return CacheWish(**given)


def _token_ids(value: object) -> Sequence[int]:
    """Token ids from a list, a tuple or an array."""
    to_list: Any = getattr(value, "tolist", None)
    listed: object = to_list() if callable(to_list) else value
    if isinstance(listed, (bytes, bytearray)) or not isinstance(listed, Sequence):
        raise InvalidRequestError("prompt must be a text or a list of token ids", "prompt")
    ids = cast("Sequence[Any]", listed)
    if all(type(item) is int for item in ids):
        return ids
    try:
        if any(isinstance(item, bool) for item in ids):
            raise TypeError
        return [operator.index(item) for item in ids]
    except TypeError:
        raise InvalidRequestError("prompt_token_ids must be a list of integers", "prompt") from None
