"""Receipts: what an answer came of, exactly enough to give it again; and whether another answer came of the same."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError

JsonObject = dict[str, Any]

# Fields that change how an answer is sent or kept, and none of its bits.
_BESIDE = ("deterministic", "receipt", "stream", "stream_options", "user", "request_id", "priority", "timeout")
_SHOWN = 16  # digits of a digest


class ReceiptFields(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt. fingerprint: of the model, kernels, settings and version that gave the answer, by name. request: the
    body, with its seed. tokens: SHA-256 of the answer's token ids, choice by choice."""

    path: str
    fingerprint: dict[str, str]
    request: JsonObject
    tokens: str
    replayed: bool | None = None


@dataclass(slots=True)
class Receipt:
    """One answer's receipt, on the way. before: that of the answer that is to be given again."""

    path: str
    fingerprint: Mapping[str, str]
    request: JsonObject
    before: ReceiptFields | None

    def written(self, choices: Sequence[Sequence[int]]) -> ReceiptFields:
        """The receipt of these choices' token ids."""
        tokens = hashlib.sha256(msgspec.json.encode([list(ids) for ids in choices])).hexdigest()
        return ReceiptFields(
            path=self.path,
            fingerprint=dict(self.fingerprint),
            request=self.request,
            tokens=tokens,
            replayed=None if self.before is None else self.before.tokens == tokens,
        )


def open_receipt(body: Any, path: str, fingerprint: Mapping[str, str]) -> Receipt | None:
    """The receipt that a body asks for, if it does. Gives the body a seed where it has none.

    Raises:
        InvalidRequestError: its receipt is none, is of another request, or cannot be kept here: names what differs.
    """
    before = None
    if body.receipt is not None:
        before = read_receipt(body.receipt)
        check_fingerprint(before.fingerprint, fingerprint)
        if before.path != path:
            raise InvalidRequestError(f"receipt: it is of a request to {before.path[:64]}", "receipt")
        if body.seed is None:
            body.seed = before.request.get("seed")
    elif not body.deterministic:
        return None
    if body.seed is None or body.seed == -1:
        body.seed = secrets.randbelow(1 << 53)  # whole in every reader of JSON
    request = {name: value for name, value in msgspec.to_builtins(body).items() if value is not None}
    request = {name: value for name, value in request.items() if name not in _BESIDE}
    if before is not None and before.request != request:
        names = sorted(name for name in {*request, *before.request} if request.get(name) != before.request.get(name))
        raise InvalidRequestError(f"receipt: it is of a request with another {', '.join(names)[:200]}", "receipt")
    return Receipt(path, fingerprint, request, before)


def read_receipt(given: object) -> ReceiptFields:
    """Raises:
    InvalidRequestError: it is none.
    """
    try:
        return msgspec.convert(given, ReceiptFields)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"receipt: this is none ({error})"[:300], "receipt") from None


def check_fingerprint(before: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raises:
    InvalidRequestError: something that decides bits differs; names it.
    """
    told = [
        f"{name} ({before.get(name, 'none')[:_SHOWN]} then, {here.get(name, 'none')[:_SHOWN]} here)"
        for name in sorted({*before, *here})
        if before.get(name) != here.get(name)
    ]
    if told:
        hint = ""
        if before.get("settings") != here.get("settings"):
            hint = (
                "; settings are types of weights and cache, --linear-compute and --max-model-len: give the same flags"
            )
        raise InvalidRequestError(
            f"receipt: the same bits cannot be promised, as this differs: {', '.join(told)}{hint}", "receipt"
        )
