"""The bodies of OpenAI's API, with vLLM's additions: what may be asked. Answers are in `answers.py`.

Fields that are not here are ignored and named in the answer's `warnings`; fields here with a wrong type are a 400.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.serving.nested import Shape, unknown_fields

JsonObject = dict[str, Any]

MOST_WARNINGS = 16  # about unknown fields, in one answer


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream tells besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common. None always means "not given"."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: list[str] | str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    # llama.cpp's names; see `spellings.py`.
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    n_predict: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    repetition_detection: JsonObject | None = None
    logits_rules: list[JsonObject] | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    user: str | None = None
    timeout: float | None = None
    ttft_deadline: float | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    cache_control: JsonObject | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    explain_cache: bool | None = None
    deterministic: bool | None = None
    receipt: JsonObject | None = None
    # What form the answer has; see `forms.py`.
    response_format: JsonObject | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    guided_decoding_backend: Any = None
    # Asked for elsewhere; refused unless neutral (see `refuse_unsupported`).
    best_of: int | None = None
    logits_processors: Any = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    logprob_token_ids: Any = None
    kv_transfer_params: Any = None
    vllm_xargs: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
    prompt_embeds: Any = None


class ChatRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[JsonObject]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    chat_template: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    functions: Any = None
    function_call: Any = None
    documents: list[JsonObject] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions. `logprobs` is a number here."""

    prompt: str | list[Any] | None = None
    logprobs: int | None = None
    suffix: str | None = None


class GenerateRequest(GenerationFields, kw_only=True):
    """POST /generate."""

    prompt: str


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[JsonObject] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    chat_template: str | None = None
    tools: list[JsonObject] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


# Field -> what it asks for. None, false and empty values ask for nothing.
_UNSUPPORTED: dict[str, str] = {
    "logits_processors": "logits processors",
    "logprob_token_ids": "log-probabilities of chosen tokens",
    "kv_transfer_params": "KV cache transfer",
    "vllm_xargs": "extra arguments",
    "mm_processor_kwargs": "images, audio and video",
    "media_io_kwargs": "images, audio and video",
    "prompt_embeds": "prompt embeddings",
    "functions": "the old form of tools (use tools and tool_choice)",
    "audio": "audio",
    "chat_template": "a chat template in the request (start the server with --chat-template)",
}


def refuse_unsupported(body: GenerationFields) -> None:
    """Refuse what this version does not do; values that ask for nothing pass.

    Raises:
        UnsupportedError: names the field and what it asks for.
    """
    refuse_fields(body)
    _check_best_of(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options can only be given with stream=true", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequestError(
            "prompt_logprobs are not told in a stream; leave out stream, or use echo and logprobs in a text completion",
            "prompt_logprobs",
        )


def _check_best_of(body: GenerationFields) -> None:
    """The best of several answers: only where they come whole."""
    best, n = body.best_of, body.n or 1
    if best is None or best == n:
        return
    if best < n:
        raise InvalidRequestError(f"best_of must be at least n, got best_of={best} and n={n}", "best_of")
    if body.stream and not body.use_beam_search:
        raise InvalidRequestError(
            f"best_of={best} with n={n} does not go with stream: which answers are best is known at the end; "
            "leave out best_of (and set n), or stream",
            "best_of",
        )


def refuse_fields(body: msgspec.Struct) -> None:
    """Refuse the fields of any body that ask for something missing.

    Raises:
        UnsupportedError: names the field and what it asks for.
    """
    for name, what in _UNSUPPORTED.items():
        if getattr(body, name, None) not in (None, False, "", [], {}):
            raise UnsupportedError(f"{name}: {what} is not supported", name)


def refuse_modalities(body: ChatRequest) -> None:
    """Answers are text.

    Raises:
        UnsupportedError: something else is wanted.
    """
    if any(modality != "text" for modality in body.modalities or ()):
        raise UnsupportedError("modalities: only 'text' is supported", "modalities")


Body = TypeVar("Body", bound=msgspec.Struct)


class BodyReader:
    """Reads JSON bodies of one type, and tells which fields it did not know.

    Args:
        inside: what is known inside of fields.
    """

    def __init__(self, kind: type[msgspec.Struct], inside: Mapping[str, Shape] | None = None) -> None:
        self._inside = inside or {}
        self._decoder = msgspec.json.Decoder(kind)
        self._keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def read(self, data: bytes) -> tuple[Any, list[str]]:
        """The body and a warning for each unknown field.

        Raises:
            InvalidRequestError: not JSON, not an object, a field of a wrong type, a required one missing.
        """
        try:
            found = self._keys.decode(data)
            body = self._decoder.decode(data)
        except RecursionError:
            raise InvalidRequestError("the body is nested too deeply") from None
        except msgspec.ValidationError as error:
            raise _readable(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # The decoder tells a place, never the bytes.
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise InvalidRequestError(f"the body is not valid JSON: {reason}") from None
        # A hostile body may have any number of fields, of any length.
        return body, list(islice(self._unknown(found), MOST_WARNINGS))

    def _unknown(self, found: Mapping[str, msgspec.Raw]) -> Iterator[str]:
        for name in sorted(found.keys() - self._known):
            yield f"unknown field {name[:64]!r} was ignored"
        for name, shape in self._inside.items():
            if name in found:
                yield from unknown_fields(msgspec.json.decode(found[name]), shape, name)


def _readable(message: str) -> InvalidRequestError:
    """'Expected `int`, got `str` - at `$.n`' -> 'n: expected int, got str'."""
    text, _, place = message.partition(" - at `$")
    field = place.rstrip("`").removeprefix(".")
    plain = text.replace("`", "").replace("Expected", "expected").replace(" | null", "")
    if "missing required field" in text:
        field = plain.rsplit(" ", 1)[-1]
        return InvalidRequestError(f"{field}: this field is required", field)
    if not field:
        return InvalidRequestError(f"the body must be a JSON object: {plain}")
    return InvalidRequestError(f"{field}: {plain}", field.partition("[")[0].partition(".")[0])
