"""What a request gets to see of log-probabilities: as many alternatives as it asked for, and texts that join."""

from collections.abc import Iterable, Sequence

from octavo.flow.result import TokenLogprobs
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer


def limited(entries: Sequence[TokenLogprobs], count: int | None) -> tuple[TokenLogprobs, ...]:
    """Entries with the drawn token and at most `count` likeliest; None: no entries, -1: all there are."""
    if count is None or not entries:
        return ()
    if count < 0:
        return tuple(entries)
    kept = count + 1
    return tuple(
        entry
        if len(entry.token_ids) <= kept
        else TokenLogprobs(entry.token_ids[:kept], entry.logprobs[:kept], entry.rank)
        for entry in entries
    )


def token_texts(tokenizer: Tokenizer, ids: Iterable[int], at_start: bool = False) -> list[str]:
    """Each token's share of the text: joined they are the whole text, special tokens included.

    A character that several tokens spell counts for the last of them; one that is never completed, for the last token.
    """
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False, at_start=at_start)
    texts = [detokenizer.push((token_id,)) for token_id in ids]
    rest = detokenizer.finish()
    if rest and texts:
        texts[-1] += rest
    return texts


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """One token for itself; parts of characters show as U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")
