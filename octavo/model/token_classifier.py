"""Makes a classifier out of the rows of a decoder's head that stand for its answers, such as "no" and "yes".

Rerankers that are asked a question answer with the probability of a token. The names of the settings are vLLM's:
`classifier_from_token` lists the tokens, and `method` says what becomes of their rows: "no_post_processing", a class
each, or "from_2_way_softmax", one class whose sigmoid is the softmax of the second against the first.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from octavo.errors import CheckpointError, ConfigError
from octavo.ops.weight import StoredTensor
from octavo.quantization.gguf_blocks import dequantize
from octavo.text.tokenizer import load_tokenizer_file

_DIFFERENCE, _PLAIN = "from_2_way_softmax", "no_post_processing"
CLASSIFIER = "octavo.classifier"  # what the tensor that is made is called


def answer_tokens(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The tokens that a classifier is made of; (): it has one of its own.

    Raises:
        ConfigError: they are no list of tokens.
    """
    given: object = config.get("classifier_from_token")
    if given is None:
        return ()
    listed = cast(list[object], given) if isinstance(given, list) else []
    if not listed or not all(isinstance(token, str) for token in listed):
        raise ConfigError('classifier_from_token must be a list of tokens, such as ["no", "yes"]')
    return tuple(str(token) for token in listed)


def differs(config: Mapping[str, Any]) -> bool:
    """Whether one class comes of two tokens.

    Raises:
        ConfigError: the method is unknown, or does not fit the tokens.
    """
    usual = _DIFFERENCE if config.get("is_original_qwen3_reranker") else _PLAIN
    method, tokens = config.get("method") or usual, answer_tokens(config)
    if method not in (_DIFFERENCE, _PLAIN):
        raise ConfigError(f"method must be {_DIFFERENCE} or {_PLAIN}, got {str(method)[:64]!r}")
    if method == _DIFFERENCE and len(tokens) != 2:
        raise ConfigError(f"method {_DIFFERENCE} needs two tokens in classifier_from_token, got {len(tokens)}")
    return method == _DIFFERENCE


def classifier_rows(config: Mapping[str, Any], head: StoredTensor, directory: Path) -> StoredTensor:
    """The classifier's matrix, [classes, hidden] in float32.

    Args:
        head: the matrix that predicts tokens, [vocab, hidden].

    Raises:
        CheckpointError: there is no tokenizer.
        ConfigError: it has no such token.
    """
    tokenizer = load_tokenizer_file(directory, config)
    ids: list[int] = []
    for token in answer_tokens(config):
        number = tokenizer.id_of(token)
        if number is None or number >= head.shape[0]:
            raise ConfigError(f"classifier_from_token: the vocabulary has no token {token[:64]!r}")
        ids.append(number)
    if len(head.shape) != 2:
        raise CheckpointError(f"{head.name} has the shape {list(head.shape)}; a matrix was expected")
    width = head.shape[1]
    rows = np.concatenate([dequantize(head.format, head.rows(one, 1).reshape(-1), (1, width)) for one in ids])
    if differs(config):
        rows = rows[1:] - rows[:1]
    name = f"{head.name} of tokens {', '.join(map(str, ids))}"
    data = np.ascontiguousarray(rows, np.float32)
    return StoredTensor(name, "f32", (len(data), width), data.view(np.uint8).reshape(-1))
