"""What a request gets to see of log-probabilities: as many alternatives as it asked for, and token texts."""

from collections.abc import Sequence

from octavo.flow.result import TokenLogprobs
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


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """One token for itself; parts of characters show as U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")
