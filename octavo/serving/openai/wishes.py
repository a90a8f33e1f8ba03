"""What a body asks beyond sampling: beam search instead of drawing, and treatment by the prefix cache."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.beam_search_params import BeamSearchParams
from octavo.flow.request import Beam, CacheWish, GenerationRequest
from octavo.inputs.prompt import LONGEST_CACHE_KEY
from octavo.serving.openai.schema import GenerationFields

_TIMES_TO_LIVE = {"5m": 300.0, "1h": 3600.0}  # Anthropic API reference, cache_control
_RETENTIONS = {"in_memory": 0.0, "in-memory": 0.0, "24h": 86_400.0}  # OpenAI API reference, prompt_cache_retention

# What would change probabilities or needs the text while it grows; values that ask for nothing pass.
_NOT_WITH_BEAMS: dict[str, object] = {
    "stop": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "dry_multiplier": 0.0,
    "logits_rules": None,
    "mirostat": 0,
    "samplers": None,
}


def read_beam(body: GenerationFields) -> Beam | None:
    """The search that a body asks for: as many beams as answers, or `best_of`.

    Raises:
        InvalidRequestError: a value out of range, or without a search.
        UnsupportedError: a field that does not go with a search.
    """
    given = {"length_penalty": body.length_penalty, "early_stopping": body.early_stopping}
    if not body.use_beam_search:
        for name, value in given.items():
            if value not in (None, False, 1.0):
                raise InvalidRequestError(f"{name} can only be given with use_beam_search=true", name)
        return None
    for name, neutral in _NOT_WITH_BEAMS.items():
        if getattr(body, name) not in (None, neutral, [], {}, ""):
            raise UnsupportedError(
                f"{name} does not go with use_beam_search: beams are chosen by the model alone", name
            )
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return BeamSearchParams(beam_width=body.best_of or body.n or 1, max_tokens=1, **options).beam


def read_cache_wish(body: GenerationFields) -> CacheWish:
    """How a body wants its prompt to be cached.

    Raises:
        InvalidRequestError: a value that is none of those there are.
    """
    controls = [body.cache_control, *_controls_in(getattr(body, "messages", None))]
    seconds = [_seconds(control) for control in controls if control is not None]
    retention = body.prompt_cache_retention
    if retention is not None:
        if retention not in _RETENTIONS:
            raise InvalidRequestError(
                f"prompt_cache_retention must be 'in_memory' or '24h', got {retention[:32]!r}", "prompt_cache_retention"
            )
        seconds.append(_RETENTIONS[retention])
    key = body.prompt_cache_key or ""
    if len(key) > LONGEST_CACHE_KEY:
        raise InvalidRequestError(
            f"prompt_cache_key may have {LONGEST_CACHE_KEY} characters, got {len(key)}", "prompt_cache_key"
        )
    return CacheWish(max(seconds, default=0.0), key, bool(body.explain_cache))


def with_wishes(
    request: GenerationRequest, beam: Beam | None, wish: CacheWish, most: int, field: str = "cache_control"
) -> tuple[GenerationRequest, list[str]]:
    """The request with what was asked for, and what of it cannot be had.

    Args:
        most: tokens of one prompt that may be pinned.
        field: where that was asked for.
    """
    warnings: list[str] = []
    prompt = len(request.prompt_token_ids)
    if wish.retention and prompt > most:
        kept = f"only the first {most} of {prompt} prompt tokens" if most else "nothing"
        warnings.append(f"{field}: {kept} can be kept in the cache for the time asked for: --cache-pin-budget")
    return replace(request, beam=beam, cache=wish), warnings


def _seconds(control: object) -> float:
    """The time to live of a cache_control."""
    fields: Mapping[str, object] = {}
    if isinstance(control, Mapping):
        fields = cast("Mapping[str, object]", control)
    if fields.get("type") != "ephemeral":
        raise InvalidRequestError("cache_control must be an object of type 'ephemeral'", "cache_control")
    ttl = fields.get("ttl", "5m")
    if not isinstance(ttl, str) or ttl not in _TIMES_TO_LIVE:
        raise InvalidRequestError(f"cache_control.ttl must be '5m' or '1h', got {str(ttl)[:32]!r}", "cache_control")
    return _TIMES_TO_LIVE[ttl]


def _controls_in(messages: object) -> Iterator[object]:
    """The cache_control marks of a conversation, on messages and on the parts of their contents."""
    for message in cast("list[Mapping[str, object]]", messages or []):
        yield message.get("cache_control")
        parts = message.get("content")
        for part in cast("list[object]", parts) if isinstance(parts, list) else ():
            if isinstance(part, Mapping):
                yield cast("Mapping[str, object]", part).get("cache_control")
