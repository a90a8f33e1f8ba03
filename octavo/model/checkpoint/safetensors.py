"""Reads safetensors files, one or sharded: headers are checked against the file, tensors are views of the mapping.

Format: 8 bytes header length (little endian), the header in JSON, then the data (huggingface/safetensors, README).
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from octavo.errors import CheckpointError
from octavo.model.checkpoint.mapped import MappedFile
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS, stored_bytes
from octavo.telemetry.log import logger

_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library
_FORMAT_OF_TYPE = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "F8_E8M0": "f8_e8m0",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U64": "u64",
    "U32": "u32",
    "U16": "u16",
    "U8": "u8",
    "BOOL": "bool",
}


def read_safetensors(file: MappedFile) -> dict[str, StoredTensor]:
    """All tensors of a file.

    Raises:
        CheckpointError: the header is damaged, or a tensor lies outside the file, overlaps another, or has a length
            that its type and shape do not give; names the tensor.
    """
    header, data_start = _read_header(file)
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, begin, end = _read_entry(file, data_start, name, entry)
        tensors[name] = tensor
        spans.append((begin, end, name))
    spans.sort()
    for (_, end, name), (begin, _, following) in itertools.pairwise(spans):
        if begin < end:
            raise CheckpointError(f"{file.path}: tensors {name} and {following} overlap")
    return tensors


def find_shards(directory: Path) -> list[Path]:
    """The safetensors files of a model directory: those its index names, else its single file, else none.

    Raises:
        CheckpointError: the index is damaged or names a file that is not there.
    """
    index_path = directory / "model.safetensors.index.json"
    if index_path.is_file():
        names = sorted(set(_read_index(index_path).values()))
        paths = [directory / name for name in names]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise CheckpointError(f"{index_path} names files that are not there: {', '.join(missing[:10])}")
        others = sorted({path.name for path in directory.glob("*.safetensors")} - set(names))
        if others:
            logger("weights").warning("files that the index does not name are not read: %s", ", ".join(others[:10]))
        return paths
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    found = sorted(directory.glob("*.safetensors"))
    return found if len(found) == 1 else []


def merge(files: Iterable[tuple[MappedFile, Mapping[str, StoredTensor]]]) -> dict[str, StoredTensor]:
    """The tensors of all shards.

    Raises:
        CheckpointError: two shards hold a tensor of the same name.
    """
    merged: dict[str, StoredTensor] = {}
    for file, tensors in files:
        twice = next((name for name in tensors if name in merged), None)
        if twice is not None:
            raise CheckpointError(f"{file.path}: tensor {twice} is also in another shard")
        merged.update(tensors)
    return merged


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name; only plain names, so that an index cannot point outside its directory."""
    try:
        index = cast(object, json.loads(path.read_text("utf-8")))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    names = cast(dict[str, object], index).get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{path} has no weight_map")
    for tensor, name in cast(dict[str, object], names).items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{path}: weight_map gives {name!r} as the file of {tensor}")
    return cast(dict[str, str], names)


def _read_header(file: MappedFile) -> tuple[dict[str, object], int]:
    """The parsed header, and where the data starts."""
    if file.size < 8:
        raise CheckpointError(f"{file.path}: {file.size} bytes are too few for a safetensors file")
    length = int.from_bytes(file.bytes[:8].tobytes(), "little")
    if length > min(_MAX_HEADER, file.size - 8):
        raise CheckpointError(
            f"{file.path}: its header should take {length} bytes, but the file has {file.size - 8} left "
            "(truncated, or no safetensors file)"
        )
    try:
        header = cast(object, json.loads(file.bytes[8 : 8 + length].tobytes()))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.path}: its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file.path}: its header is no JSON object")
    return cast(dict[str, object], header), 8 + length


def _read_entry(file: MappedFile, data_start: int, name: str, entry: object) -> tuple[StoredTensor, int, int]:
    """One tensor, and the bytes it takes of the data."""
    where = f"{file.path}: tensor {name}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} is not described by an object")
    fields = cast(dict[str, object], entry)
    format = FORMATS.get(_FORMAT_OF_TYPE.get(str(fields.get("dtype")), ""))
    if format is None:
        raise CheckpointError(f"{where} has the unknown dtype {fields.get('dtype')!r}")
    shape = _naturals(fields.get("shape"))
    span = _naturals(fields.get("data_offsets"))
    if shape is None or len(shape) > 8:
        raise CheckpointError(f"{where} has the impossible shape {fields.get('shape')!r}")
    if span is None or len(span) != 2 or span[0] > span[1] or data_start + span[1] > file.size:
        raise CheckpointError(
            f"{where} should lie at {fields.get('data_offsets')!r}, but the data has {file.size - data_start} bytes "
            "(the file is truncated or damaged)"
        )
    expected = stored_bytes(format, shape)
    if span[1] - span[0] != expected:
        raise CheckpointError(
            f"{where}: {format.name} of shape {list(shape)} takes {expected} bytes, not {span[1] - span[0]}"
        )
    data = file.bytes[data_start + span[0] : data_start + span[1]]
    return StoredTensor(name, format.name, shape, np.asarray(data)), span[0], span[1]


def _naturals(value: object) -> tuple[int, ...] | None:
    """A JSON list of integers >= 0, or None."""
    if not isinstance(value, list):
        return None
    items = cast(list[object], value)
    if any(not isinstance(item, int) or isinstance(item, bool) or item < 0 for item in items):
        return None
    return tuple(cast(list[int], items))
