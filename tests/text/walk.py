"""Whether a grammar lets a text through, token by token, as a worker would see it."""

import numpy as np

from octavo.text.grammar import GrammarCompiler
from octavo.text.tokenizer import Tokenizer


def first_wrong(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: str, text: str) -> int | None:
    """Position of the first token of `text`, then its end, that the masks forbid; None when there is none."""
    matcher = compiler.open(grammar)
    words = np.zeros(compiler.words, np.uint32)
    end = tokenizer.eos_token_ids[0]
    for position, token in enumerate([*tokenizer.encode(text, add_special_tokens=False), end]):
        matcher.fill(words.ctypes.data)
        assert not matcher.error
        if not words[token // 32] >> (token % 32) & 1:
            return position
        matcher.advance(token, token == end)
    return None
