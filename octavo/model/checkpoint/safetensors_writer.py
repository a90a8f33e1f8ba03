"""Writes safetensors files tensor by tensor, in shards of a bounded size, without holding any of them in memory.

The header stands before the data and is known only at the end: room is left for it and what it does not need is filled
with spaces, which the format allows (huggingface/safetensors, README).
"""

import json
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

_ENTRY_BYTES = 160  # of a header entry beside the tensor's name: dtype, shape, two offsets
_TYPE_OF_FORMAT = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "f8_e4m3": "F8_E4M3",
    "f8_e5m2": "F8_E5M2",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u64": "U64",
    "u32": "U32",
    "u16": "U16",
    "u8": "U8",
    "bool": "BOOL",
}
INDEX = "model.safetensors.index.json"


class SafetensorsWriter:
    """Writes `model.safetensors`, or shards and their index, into a directory.

    Args:
        shard_bytes: data after which a new shard begins; a tensor is never divided.
        names: at least the names that will come, for the room of a header.
    """

    def __init__(self, directory: Path, shard_bytes: int, names: list[str]) -> None:
        self._directory = directory
        self._shard_bytes = shard_bytes
        self._room = -(-sum(len(name.encode()) + _ENTRY_BYTES for name in names) // 8) * 8 + 64
        self._file: IO[bytes] | None = None
        self._entries: dict[str, dict[str, object]] = {}
        self._shards: list[tuple[Path, dict[str, dict[str, object]]]] = []
        self._offset = 0
        self.data_bytes = 0

    def add(self, name: str, format: str, shape: tuple[int, ...], data: NDArray[np.generic]) -> None:
        """Append one tensor. `format` as in `StoredTensor`; data in the file's byte order."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if self._file is not None and self._offset + raw.nbytes > self._shard_bytes and self._entries:
            self._close_shard()
        if self._file is None:
            self._open_shard()
        assert self._file is not None
        self._entries[name] = {
            "dtype": _TYPE_OF_FORMAT[format],
            "shape": list(shape),
            "data_offsets": [self._offset, self._offset + raw.nbytes],
        }
        self._file.write(raw.data)
        self._offset += raw.nbytes
        self.data_bytes += raw.nbytes

    def finish(self) -> list[Path]:
        """Close the last shard, give all their final names, write the index; the files."""
        if self._file is not None:
            self._close_shard()
        count = len(self._shards)
        if count == 1:
            return [self._shards[0][0].rename(self._directory / "model.safetensors")]
        places: dict[str, str] = {}
        files: list[Path] = []
        for number, (path, entries) in enumerate(self._shards, 1):
            files.append(path.rename(self._directory / f"model-{number:05}-of-{count:05}.safetensors"))
            places.update(dict.fromkeys(entries, files[-1].name))
        index = {"metadata": {"total_size": self.data_bytes}, "weight_map": dict(sorted(places.items()))}
        (self._directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        return files

    def close(self) -> None:
        """Give up: the files stay as they are."""
        if self._file is not None:
            self._file.close()

    def _open_shard(self) -> None:
        path = self._directory / f"shard-{len(self._shards):05}.partial"
        self._file = path.open("xb")
        self._file.write(bytes(8 + self._room))
        self._entries, self._offset = {}, 0
        self._shards.append((path, self._entries))

    def _close_shard(self) -> None:
        assert self._file is not None
        head = json.dumps({"__metadata__": {"format": "pt"}, **self._entries}, separators=(",", ":")).encode()
        if len(head) > self._room:
            raise ValueError(f"a header of {len(head)} bytes has room for {self._room}")
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + head.ljust(self._room))
        self._file.close()
        self._file = None
