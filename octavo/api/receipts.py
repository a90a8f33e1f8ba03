"""Receipts of the offline API: those of text completions, so that a server or `octavo replay` gives the answer, too."""

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from octavo.errors import InvalidRequestError
from octavo.flow.receipt import Receipt, ReceiptFields, check_fingerprint, read_receipt
from octavo.flow.request import GenerationRequest
from octavo.flow.sampling_params import SamplingParams

PATH = "/v1/completions"
_WHOLE = 1 << 53  # integers that every reader of JSON keeps

# What decides an answer's tokens, under the names that a text completion has for it, too.
_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop", "stop_token_ids", "ignore_eos", "min_tokens", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "allowed_token_ids", "bad_words", "logits_rules", "typical_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "samplers"),
)


def with_seed(params: SamplingParams | None) -> SamplingParams | None:
    """The parameters with a seed that can be told, where they ask for a receipt and have none."""
    if params is None or not params.deterministic or params.seed is not None:
        return params
    return replace(params, seed=secrets.randbelow(_WHOLE))


def open_offline(
    request: GenerationRequest, params: SamplingParams, fingerprint: Mapping[str, str], before: ReceiptFields | None
) -> Receipt:
    """The receipt of a request, on the way.

    Args:
        params: the request's, with a seed.
        before: of the answer that is to be given again.
    """
    body: dict[str, Any] = {name: _plain(getattr(params, name)) for name in _FIELDS}
    body |= {
        "prompt": list(request.prompt_token_ids),
        "seed": params.seed,
        "max_tokens": request.stopping.max_tokens,
        "logit_bias": {str(token): value for token, value in (params.logit_bias or {}).items()},
        "cache_salt": request.cache_salt,
        "repetition_detection": _plain(params.repetition_detection),
        "structured_outputs": _plain(params.structured_outputs),
    }
    body = {name: value for name, value in body.items() if value not in (None, [], {}, "")}
    return Receipt(PATH, fingerprint, body, before)


def replayed(receipt: object, fingerprint: Mapping[str, str]) -> tuple[ReceiptFields, list[int], SamplingParams]:
    """What a receipt is about: itself, checked against this engine, its prompt and its parameters.

    Raises:
        InvalidRequestError: it is none, is not of a prompt of token ids, or the same cannot be promised here.
    """
    before = read_receipt(receipt)
    check_fingerprint(before.fingerprint, fingerprint)
    body: dict[str, Any] = {**before.request}
    prompt: object = body.pop("prompt", None)
    body.pop("cache_salt", None)
    ids = cast("list[Any]", prompt) if isinstance(prompt, list) else []
    if before.path != PATH or not ids or not all(type(item) is int for item in ids):
        raise InvalidRequestError(
            f"receipt: this one is of a request to {before.path[:64]}; `octavo replay -r FILE MODEL` gives it again",
            "receipt",
        )
    body["deterministic"] = True
    return before, ids, SamplingParams(**body)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: item for name, item in dataclasses.asdict(value).items() if item is not None}
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
