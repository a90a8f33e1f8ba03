"""How a JSON object of a model's directory is read: bounded in size, and every fault of it a damaged checkpoint."""

import json
from pathlib import Path
from typing import Any, cast

from octavo.errors import CheckpointError

_MAX_BYTES = 256 << 20  # the largest tokenizer.json known is below 40 MB


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        CheckpointError: not there or not to be read, absurdly large, not JSON, or no object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path} is larger than {_MAX_BYTES} bytes")
        value = cast(object, json.loads(path.read_text("utf-8")))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return cast(dict[str, Any], value)


def read_json_if_present(path: Path) -> dict[str, Any]:
    """As `read_json`; empty when there is no such file."""
    return read_json(path) if path.is_file() else {}
