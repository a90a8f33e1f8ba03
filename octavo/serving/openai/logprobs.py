"""Log-probabilities as the API tells them: token texts, their bytes, alternatives, offsets."""

import codecs
from collections.abc import Sequence
from typing import Any

from octavo.flow.result import TokenLogprobs
from octavo.serving.openai.answers import ChatLogprobs, CompletionLogprobs, ContentLogprob, TopLogprob
from octavo.text.tokenizer import Tokenizer

# JSON has no infinity; vLLM's floor.
_FLOOR = -9999.0
NOTHING: frozenset[int] = frozenset()


class TokenNames:
    """How tokens are written in log-probabilities.

    Args:
        tokenizer: where the bytes come from; without one, tokens are written as ids.
        as_ids: write "token_id:N" instead of text, as `return_tokens_as_token_ids` asks.
    """

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids or tokenizer is None

    def text(self, token_id: int) -> str:
        """The token's text; parts of characters show as U+FFFD."""
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to the text."""
        return b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)

    def read(self, token_id: int) -> tuple[str, list[int]]:
        """The token's text, and its bytes, exact even where they are part of a character."""
        if self._tokenizer is None:
            return self.text(token_id), []
        data = self._tokenizer.token_bytes(token_id)
        return self.text(token_id) if self._as_ids else data.decode("utf-8", "replace"), list(data)


def chat_logprobs(entries: Sequence[TokenLogprobs], top: int, names: TokenNames) -> ChatLogprobs:
    """Entries of drawn tokens, each with its `top` likeliest."""
    return ChatLogprobs([_content(entry, top, names) for entry in entries])


def _content(entry: TokenLogprobs, top: int, names: TokenNames) -> ContentLogprob:
    read = names.read
    alternatives: list[TopLogprob] = []
    for token_id, value in _likeliest(entry, top):
        text, data = read(token_id)
        alternatives.append(TopLogprob(text, value if value > _FLOOR else _FLOOR, data))
    text, data = read(entry.token_ids[0])
    return ContentLogprob(text, max(entry.logprobs[0], _FLOOR), data, alternatives)


def _likeliest(entry: TokenLogprobs, top: int) -> list[tuple[int, float]]:
    stop = None if top < 0 else top + 1
    return list(zip(entry.token_ids[1:stop], entry.logprobs[1:stop], strict=True))


class CompletionLogprobsBuilder:
    """Grows a completion's parallel lists; the offset goes on over calls.

    An offset is where in the text a token begins; of a token in the middle of a character, where that begins.

    Args:
        top: alternatives asked for.
        names: how tokens are written.
        hidden: tokens that the answer's text leaves out.
    """

    def __init__(self, top: int, names: TokenNames, hidden: frozenset[int] = NOTHING) -> None:
        self._top = top
        self._names = names
        self._hidden = hidden
        self._prompt: str | None = None  # while what comes is of it
        self._offset = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def begin_prompt(self, text: str, ids: Sequence[int]) -> CompletionLogprobs:
        """The lists of an echoed prompt's first token, which nothing predicts.

        Args:
            text: as it is echoed; tokens that were put before it are at its beginning.
            ids: all of the prompt.
        """
        whole = b"".join(map(self._names.bytes_of, ids)).decode("utf-8", "replace")
        self._prompt = text
        self._offset = len(text) - len(whole) if whole.endswith(text) else 0
        return CompletionLogprobs([self._begin(ids[0])], [None], [self._names.text(ids[0])], [None])

    def end_prompt(self) -> None:
        """What comes from now on is of the answer."""
        if self._prompt is not None:
            self._offset, self._prompt = len(self._prompt), None
            self._decode(b"", True)

    def build(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The lists of these positions."""
        lists = CompletionLogprobs([], [], [], [])
        for entry in entries:
            text = self._names.text(entry.token_ids[0])
            lists.text_offset.append(self._begin(entry.token_ids[0]))
            lists.token_logprobs.append(max(entry.logprobs[0], _FLOOR))
            lists.tokens.append(text)
            # The drawn token is always among them, also with 0 alternatives.
            named = {text: max(entry.logprobs[0], _FLOOR)}
            for other, value in _likeliest(entry, self._top):
                named.setdefault(self._names.text(other), max(value, _FLOOR))
            lists.top_logprobs.append(named)
        return lists

    def _begin(self, token_id: int) -> int:
        """Where this token begins; the next one begins behind it."""
        hidden = self._prompt is None and token_id in self._hidden
        data = b"" if hidden else self._names.bytes_of(token_id)
        if data and data[0] & 0xC0 != 0x80:  # no continuation of what was begun, which is U+FFFD then
            self._offset += len(self._decode(b"", True))
        begins = self._offset
        self._offset += len(self._decode(data, False))
        return max(begins, 0)


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Lists one behind the other."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        whole.text_offset.extend(part.text_offset)
        whole.token_logprobs.extend(part.token_logprobs)
        whole.tokens.extend(part.tokens)
        whole.top_logprobs.extend(part.top_logprobs)
    return whole


def prompt_logprobs(entries: Sequence[TokenLogprobs], names: TokenNames, top: int = -1) -> list[Any]:
    """vLLM's form: null for the first token, then {token id: {logprob, rank, decoded_token}} a position."""
    return [None, *(_named(entry, names, top) for entry in entries)]


def _named(entry: TokenLogprobs, names: TokenNames, top: int) -> dict[str, dict[str, Any]]:
    named = {entry.token_ids[0]: (entry.logprobs[0], entry.rank)}
    for rank, (token_id, value) in enumerate(_likeliest(entry, top), 1):
        named.setdefault(token_id, (value, rank))
    return {
        str(token_id): {"logprob": max(value, _FLOOR), "rank": rank, "decoded_token": names.text(token_id)}
        for token_id, (value, rank) in named.items()
    }
