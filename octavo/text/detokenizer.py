"""Tokens to text as they come: no character is ever split, and what was given out never changes."""

import codecs
from collections.abc import Callable, Iterable

from octavo.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """One stream of text, the continuation of a prompt: its first space stays.

    For every way to cut the ids into calls, the texts joined are the same.

    Bytes that may still become a character wait; bytes that cannot are U+FFFD. Work per token does not depend on how
    many came before.

    Args:
        tokenizer: gives the bytes of each token.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: false: neighbouring added tokens are written as they are, without the space
            that some decoders put before every token.
        shown: special tokens that are not left out.
    """

    __slots__ = ("_after_added", "_bytes", "_decode", "_joined", "_skipped", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode: Callable[[bytes, bool], str] = decoder.decode
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset[int]()
        self._joined = spaces_between_special_tokens
        self._after_added = False

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens complete; often empty in the middle of a character."""
        skipped, of = self._skipped, self._bytes
        if self._joined:
            data = b"".join([of(token_id) for token_id in ids if token_id not in skipped])
        else:
            data = b"".join([self._bare(token_id) for token_id in ids if token_id not in skipped])
        return self._decode(data, False) if data else ""

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed, else nothing."""
        return self._decode(b"", True)

    def _bare(self, token_id: int) -> bytes:
        """Bytes of a token; of an added one after another, without a joining space."""
        is_added = token_id in self._tokenizer.added_ids
        follows, self._after_added = self._after_added, is_added
        if is_added and follows:
            return (self._tokenizer.token(token_id) or "").encode("utf-8", "replace")
        return self._bytes(token_id)
