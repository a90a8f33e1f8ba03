"""Reads how queries and documents of late interaction are marked, cut and filled up: PyLate's files, or ColBERT's own.

Source: PyLate's documentation of models.ColBERT, the config_sentence_transformers.json that it writes, and the
artifact.metadata of colbert-ir/colbertv2.0.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError
from octavo.model.families.reader import ConfigReader
from octavo.spec.pooling import SideSpec, SidesSpec
from octavo.telemetry.log import logger
from octavo.text.json_files import read_json_if_present

# ColBERT's names of what PyLate's file has.
_METADATA = {
    "query_prefix": "query_token_id",
    "document_prefix": "doc_token_id",
    "query_length": "query_maxlen",
    "document_length": "doc_maxlen",
    "attend_to_expansion_tokens": "attend_to_mask_tokens",
}
_SETTINGS = (*_METADATA, "do_query_expansion", "skiplist_words")
_LEAST_LENGTH = 4  # three tokens that belong around a text, and one of the text
_MOST_LENGTH = 1 << 20


def read_sides(directory: Path, own: bool) -> SidesSpec | None:
    """What the files say; None: nothing, so texts are taken as they are. A missing setting has PyLate's default.

    Args:
        own: the checkpoint has ColBERT's own layout, so that artifact.metadata counts.

    Raises:
        CheckpointError: a file is damaged, or a length leaves no room for a text.
    """
    given = read_json_if_present(directory / "config_sentence_transformers.json")
    settings: dict[str, Any] = {name: given[name] for name in _SETTINGS if given.get(name) is not None}
    marks = "[Q] ", "[D] "
    path = directory / "artifact.metadata"
    if own and path.is_file():
        settings = _of_metadata(read_json_if_present(path)) | settings
        marks = "[unused0]", "[unused1]"
    if not settings:
        return None
    read = ConfigReader(settings)
    expands, attends = read.flag("do_query_expansion", True), read.flag("attend_to_expansion_tokens", False)
    if expands and not attends:
        logger("model").warning(
            "queries are not filled up to query_length: the model wants tokens there that no other token attends to "
            "(attend_to_expansion_tokens is false), which is not supported; scores lack what these would add"
        )
    words = read.texts("skiplist_words")
    return SidesSpec(
        SideSpec(read.text("query_prefix", marks[0]), _length(read, "query_length", 32), expands and attends),
        SideSpec(read.text("document_prefix", marks[1]), _length(read, "document_length", 180)),
        tuple(string.punctuation) if words is None else words,
    )


def _of_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata[key] for name, key in _METADATA.items() if metadata.get(key) is not None}


def _length(read: ConfigReader, name: str, default: int) -> int:
    length = read.size(name, default, most=_MOST_LENGTH)
    if length < _LEAST_LENGTH:
        raise CheckpointError(f"config: {name} is {length}, which leaves no room for a text")
    return length
