"""Makes token ids of a query or a document as late interaction reads them: marked, cut, and filled up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.errors import CheckpointError
from octavo.spec.pooling import SideSpec, SidesSpec
from octavo.text.tokenizer import Tokenizer

Side = Literal["query", "document"]
SIDES: tuple[Side, ...] = ("query", "document")


@dataclass(frozen=True, slots=True)
class SideTokens:
    """A side in ids. `mark`: stands behind the first token, or nothing does; `filler`: None: texts keep their length;
    `skipped`: tokens that are read, and have no vector."""

    length: int
    mark: tuple[int, ...] = ()
    filler: int | None = None
    skipped: tuple[int, ...] = ()

    def framed(self, ids: list[int], limit: int) -> list[int]:
        """The ids of a text, special tokens included, with what belongs to them; with filler `limit` of them."""
        marked = [*ids[:1], *self.mark, *ids[1:]]
        return marked if self.filler is None else marked + [self.filler] * (limit - len(marked))


def side_tokens(spec: SidesSpec | None, tokenizer: Tokenizer | None) -> Mapping[Side, SideTokens]:
    """Both sides; none without a spec or a tokenizer.

    Raises:
        CheckpointError: a mark is no token, or nothing can fill queries up.
    """
    if spec is None or tokenizer is None:
        return {}
    filler = _filler(tokenizer) if spec.query.filled else None
    unknown = tokenizer.id_of(tokenizer.special_tokens.get("unk_token", "[UNK]"))
    found = (tokenizer.id_of(word) for word in spec.skipped)
    # A word that is no token counts as the unknown token, as transformers' convert_tokens_to_ids has it.
    skipped = {unknown if word is None else word for word in found}
    return {
        "query": SideTokens(spec.query.length, _mark(spec.query, "query_prefix", tokenizer), filler),
        "document": SideTokens(
            spec.document.length,
            _mark(spec.document, "document_prefix", tokenizer),
            skipped=tuple(sorted(word for word in skipped if word is not None)),
        ),
    }


def _mark(side: SideSpec, name: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not side.mark:
        return ()
    token = tokenizer.id_of(side.mark)
    if token is None:
        raise CheckpointError(f"{name} {side.mark[:64]!r} is no token of the model's tokenizer")
    return (token,)


def _filler(tokenizer: Tokenizer) -> int:
    """The mask token; a decoder's end of text or padding token."""
    named = tokenizer.special_tokens
    for name in (named.get("mask_token", "[MASK]"), named.get("eos_token"), named.get("pad_token")):
        token = None if name is None else tokenizer.id_of(name)
        if token is not None:
            return token
    raise CheckpointError("the tokenizer has no mask, end-of-text or padding token to fill queries up with")
