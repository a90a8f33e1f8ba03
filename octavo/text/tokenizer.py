"""Text to token ids and back: the protocol, and its implementation over the `tokenizers` library."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryBackend
from tokenizers.processors import TemplateProcessing

from octavo.errors import CheckpointError, InvalidRequestError
from octavo.text.json_files import read_json_if_present
from octavo.text.pieces import Spelling, add_tokens, library_reads, spelling_of
from octavo.text.vocabulary_files import SpecialTokens, build_backend, tokenizer_json, usual_settings

_LONG_TEXT = 8192  # characters; the library holds Python's lock for as long as a text takes, unless it comes in a batch
_MOST_IDS = 1 << 31
_REPLACEMENT_MARGIN = 4  # normalization to composed characters shrinks a text by less than this


class Tokenizer(Protocol):
    """What the rest of Octavo knows of a tokenizer. Safe to share between threads: no call changes its meaning."""

    vocab_size: int  # largest id + 1
    eos_token_ids: tuple[int, ...]  # first the model's own, then end-of-turn tokens
    bos_token_id: int | None
    special_ids: frozenset[int]  # dropped by skip_special_tokens
    added_ids: frozenset[int]  # special and other added tokens
    special_tokens: Mapping[str, str]  # "bos_token" -> "<s>": what chat templates may name

    strips_first_space: bool  # a whole sequence that decodes to " a" is shown as "a"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def encode_parts(
        self, texts: Sequence[str], add_special_tokens: bool = True, limit: int | None = None, side: str = "right"
    ) -> "EncodedParts": ...

    def beginning(self, text: str, tokens: int) -> str: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token(self, token_id: int) -> str | None: ...

    def id_of(self, token: str) -> int | None: ...

    def longest_token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EncodedParts:
    """One text or two as a model that pools them reads them. `second_at`: where the second one begins; 0: nowhere."""

    ids: list[int]
    second_at: int = 0


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a tokenizer's files say beside the vocabulary."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    # Pieces by id where the file numbers them itself; ids that share a spelling are then told apart.
    pieces: Sequence[str] | None = None


class LibraryTokenizer:
    """A `tokenizers` backend, with bytes of single tokens read once and kept: at most one entry a vocabulary id."""

    def __init__(self, backend: LibraryBackend, spelling: Spelling, facts: TokenizerFacts) -> None:
        # A tokenizer.json may carry the padding and truncation of its training.
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._spelling = spelling
        self._pieces = facts.pieces
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._bytes: dict[int, bytes] = {}
        self._longest: int | None = None
        self.vocab_size = max(backend.get_vocab_size(), max(added, default=-1) + 1, len(facts.pieces or ()))
        self.eos_token_ids = facts.eos_token_ids
        self.bos_token_id = facts.bos_token_id
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.added_ids = frozenset(added)
        self.special_tokens = facts.special_tokens
        self.strips_first_space = spelling.strips_first_space

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with `add_special_tokens`, what the model expects around it (often a BOS).

        Raises:
            InvalidRequestError: the text is not valid Unicode (a lone surrogate).
        """
        try:
            if len(text) > _LONG_TEXT:
                return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):  # the library reports a lone surrogate as a wrong type
            raise InvalidRequestError("the text is not valid Unicode: it has a lone surrogate", "prompt") from None

    def encode_parts(
        self, texts: Sequence[str], add_special_tokens: bool = True, limit: int | None = None, side: str = "right"
    ) -> EncodedParts:
        """One text, or a pair of them, with the tokens that belong around them.

        Args:
            limit: most tokens, these included; what is too long is cut at its `side` ("left" or "right"), of a pair the
                longer one first.

        Raises:
            InvalidRequestError: a text is not valid Unicode, or `limit` leaves no room for it.
        """
        try:
            if sum(map(len, texts)) > _LONG_TEXT:
                parts = self._backend.encode_batch(list(texts), add_special_tokens=False)
            else:
                parts = [self._backend.encode(text, add_special_tokens=False) for text in texts]
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequestError("the text is not valid Unicode: it has a lone surrogate", "prompt") from None
        first, second = parts[0], parts[1] if len(parts) > 1 else None
        if limit is not None:
            around = self._backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
            room = limit - around
            if room < 1:
                raise InvalidRequestError(
                    f"truncate_prompt_tokens {limit} leaves no room for text: {around} special tokens are added",
                    "truncate_prompt_tokens",
                )
            lengths = _shared(room, len(first.ids), 0 if second is None else len(second.ids))
            for part, length in zip(parts, lengths, strict=False):
                part.truncate(length, direction=side)
        whole = self._backend.post_process(first, second, add_special_tokens)
        begins = next((at for at, kind in enumerate(whole.type_ids) if kind), 0)
        return EncodedParts(whole.ids, begins if second is not None else 0)

    def beginning(self, text: str, tokens: int) -> str:
        """As much of a text as its first tokens stand for, not counting those that belong around it.

        Raises:
            InvalidRequestError: the text is not valid Unicode.
        """
        try:
            (encoded,) = self._backend.encode_batch([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequestError("the text is not valid Unicode: it has a lone surrogate", "prompt") from None
        if len(encoded.ids) <= tokens:
            return text
        # Tokens of one character's bytes all end behind it, so the character may be more than its share: leave it out.
        end = encoded.offsets[tokens - 1][1]
        if encoded.offsets[tokens][0] < end:
            end = encoded.offsets[tokens][0]
        return text[:end]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence. Bytes that are no UTF-8 become U+FFFD; ids without a token are passed over."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in skipped])
        text = data.decode("utf-8", "replace")
        return text[1:] if self.strips_first_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds to the text; empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self.token(token_id)
            if piece is None:
                return b""
            known = self._bytes[token_id] = self._spelling.to_bytes(piece)
        return known

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None for an id without one."""
        if token_id in self._added:
            return self._added[token_id]
        if self._pieces is not None:
            return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None
        return self._backend.id_to_token(token_id) if 0 <= token_id < _MOST_IDS else None

    def id_of(self, token: str) -> int | None:
        """Id of a token in the vocabulary's spelling."""
        return self._backend.token_to_id(token)

    def serialized(self) -> dict[str, Any]:
        """The whole tokenizer as a tokenizer.json holds it."""
        return cast(dict[str, Any], json.loads(self._backend.to_str()))

    def longest_token(self) -> int:
        """No token stands for more characters of text than this. Reads the whole vocabulary, once."""
        if self._longest is None:
            vocabulary = self._backend.get_vocab(with_added_tokens=True)
            self._longest = _REPLACEMENT_MARGIN * max(map(len, vocabulary), default=1)
        return self._longest


def known_tokens(tokenizer: Tokenizer, vocab: int, ends: Iterable[int] = ()) -> int:
    """Ids from here on, up to a model's `vocab`, stand for nothing: its vocabulary is padded. 0: it is not.

    ends: ids that end an answer, whether or not the tokenizer has tokens for them.
    """
    known = vocab  # a vocabulary with gaps has tokens beyond the number of them
    least = max((tokenizer.vocab_size, *(end + 1 for end in ends)))
    while known > least and tokenizer.token(known - 1) is None:
        known -= 1
    return known if known < vocab else 0


def _shared(room: int, first: int, second: int) -> tuple[int, int]:
    """Tokens that two texts may have together: the longer one gives way, then both equally."""
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = max(room - short, short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (short, long) if first <= second else (long, short)


def load_tokenizer_file(path: Path, config: Mapping[str, Any] | None = None) -> LibraryTokenizer:
    """The tokenizer of a directory in Hugging Face layout (or of a tokenizer.json in one).

    Reads tokenizer.json, or vocab.json + merges.txt, vocab.txt (WordPiece) or tokenizer.model (SentencePiece), with
    tokenizer_config.json, special_tokens_map.json and added_tokens.json beside it. `config` is the model's config.json:
    its eos and bos ids hold where the tokenizer's files name none.

    Raises:
        CheckpointError: no tokenizer there, or a damaged one.
        UnsupportedError: a kind of tokenizer that Octavo does not have.
    """
    directory = path if path.is_dir() else path.parent
    settings = {
        **read_json_if_present(directory / "special_tokens_map.json"),
        **read_json_if_present(directory / "tokenizer_config.json"),
    }
    fast = tokenizer_json(directory, path)
    backend = build_backend(directory, fast, settings)
    if fast is None:
        settings = {**usual_settings(directory, settings), **settings}
    special = SpecialTokens.read(settings)
    _add_listed_tokens(backend, settings, special, read_json_if_present(directory / "added_tokens.json"))
    if fast is None and backend.post_processor is None:
        # As in transformers 5: a tokenizer.json decides alone, whatever tokenizer_config.json says.
        _set_affixes(backend, settings, special)
    model = config or {}
    eos = _ids(backend, special.tokens.get("eos_token"), model.get("eos_token_id"))
    bos = _ids(backend, special.tokens.get("bos_token"), model.get("bos_token_id"))
    return LibraryTokenizer(
        backend, spelling_of(backend), TokenizerFacts(eos, bos[0] if bos else None, dict(special.tokens))
    )


def frame(backend: LibraryBackend, before: Sequence[str], after: Sequence[str]) -> None:
    """Make `encode(add_special_tokens=True)` put these tokens around the text, and no others.

    Raises:
        CheckpointError: one of them is not in the vocabulary.
    """
    ids = {token: backend.token_to_id(token) for token in (*before, *after)}
    missing = [token for token, token_id in ids.items() if token_id is None]
    if missing:
        raise CheckpointError(f"the tokenizer adds {missing[0]!r} to every text, but its vocabulary has no such token")
    # Token text may hold characters that the template's own syntax uses, so it goes in as a list of parts.
    template = [*before, "$A", *after]
    backend.post_processor = TemplateProcessing(
        single=template, pair=[*template, "$B:1"], special_tokens=[(t, i) for t, i in ids.items() if i is not None]
    )


def _add_listed_tokens(
    backend: LibraryBackend, settings: Mapping[str, Any], special: SpecialTokens, added: Mapping[str, Any]
) -> None:
    """Add what the side files list and the vocabulary file lacks, in the order of their ids."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        listed: dict[str, Any] = settings.get("added_tokens_decoder") or {}
        by_id = {int(token_id): _added_token(value) for token_id, value in listed.items()}
        for content, token_id in added.items():
            by_id.setdefault(int(token_id), AddedToken(content, normalized=False, special=content in special.contents))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"the tokenizer's added tokens are damaged ({type(error).__name__}: {error}); "
            "tokenizer_config.json and added_tokens.json list them"
        ) from None
    tokens = [token for _, token in sorted(by_id.items(), key=lambda pair: pair[0])]
    tokens += [AddedToken(content, normalized=False, special=True) for content in special.contents]
    new = {token.content: token for token in reversed(tokens) if token.content not in known}
    with library_reads("the tokenizer's added tokens are damaged"):
        add_tokens(backend, reversed(new.values()))


def _added_token(value: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(str(value["content"]), **{name: bool(value.get(name, False)) for name in flags})


def _set_affixes(backend: LibraryBackend, settings: Mapping[str, Any], special: SpecialTokens) -> None:
    """BOS and EOS rules of tokenizer_config.json, for vocabularies that bring no post-processor of their own."""
    bos, eos = special.tokens.get("bos_token"), special.tokens.get("eos_token")
    before = [bos] if settings.get("add_bos_token") and bos is not None else []
    after = [eos] if settings.get("add_eos_token") and eos is not None else []
    frame(backend, before, after)


def _ids(backend: LibraryBackend, token: str | None, listed: object) -> tuple[int, ...]:
    """The id of `token`, then what config.json lists."""
    named = None if token is None else backend.token_to_id(token)
    values: list[object] = [named]
    if isinstance(listed, (list, tuple)):
        values += cast("Sequence[object]", listed)
    else:
        values.append(listed)
    return tuple(dict.fromkeys(value for value in values if isinstance(value, int)))
