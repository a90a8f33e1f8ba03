"""The safetensors reader reads what the library writes; a damaged file gives an error that names the part."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from octavo.errors import CheckpointError, OctavoError
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.checkpoint.safetensors import find_shards, merge, read_safetensors
from tests.model.files import safetensors_bytes, with_header

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)


def read(path):
    return read_safetensors(MappedFile(path))


def test_tensors_are_what_the_library_wrote(tmp_path):
    save_file({"a": A, "b": B, "ids": np.arange(3)}, tmp_path / "m", metadata={"format": "pt"})
    tensors = read(tmp_path / "m")
    assert {name: (t.format, t.shape) for name, t in tensors.items()} == {
        "a": ("f32", (2, 3)),
        "b": ("f16", (4,)),
        "ids": ("i64", (3,)),
    }
    np.testing.assert_array_equal(tensors["a"].data.view(np.float32).reshape(2, 3), A)
    np.testing.assert_array_equal(tensors["b"].data.view(np.float16), B)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD = {
    "short": (b"\1\2", "too few"),
    "header length": (struct.pack("<Q", 1 << 60) + b"{}", "should take 1152921504606846976 bytes"),
    "not json": (with_header(b"{nope"), "not valid JSON"),
    "deep json": (with_header(b"[" * 100_000), "not valid JSON"),
    "not an object": (with_header(b"[1]"), "no JSON object"),
    "entry": (with_header(b'{"t": 3}'), "tensor t is not described"),
    "dtype": (with_header(json.dumps({"t": entry(dtype="F13")}).encode(), bytes(8)), "t has the unknown dtype 'F13'"),
    "shape": (with_header(json.dumps({"t": entry(shape=(-1,))}).encode(), bytes(8)), "t has the impossible shape"),
    "bool shape": (with_header(b'{"t":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(8)), "impossible"),
    "huge shape": (with_header(json.dumps({"t": entry(shape=(1 << 40,) * 3)}).encode(), bytes(8)), "t: f32 of shape"),
    "size": (with_header(json.dumps({"t": entry(shape=(3,))}).encode(), bytes(8)), "takes 12 bytes, not 8"),
    "end": (with_header(json.dumps({"t": entry()}).encode(), bytes(7)), "tensor t should lie at"),
    "backwards": (with_header(json.dumps({"t": entry(offsets=(8, 0))}).encode(), bytes(8)), "tensor t should lie at"),
    "overlap": (
        with_header(json.dumps({"t": entry(), "u": entry(offsets=(4, 12))}).encode(), bytes(12)),
        "t and u overlap",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_lying_file_is_refused_by_name(name, tmp_path):
    data, message = BAD[name]
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "m")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_random_damage_gives_an_error_or_a_sound_file(tmp_path_factory, data):
    damaged = bytearray(safetensors_bytes({"a": A, "b": B}))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(1, len(damaged)))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged[:length] if data.draw(st.booleans()) else damaged)
    try:
        tensors = read(path)
    except OctavoError:
        return
    for tensor in tensors.values():
        assert tensor.data.nbytes <= len(damaged)
        tensor.data.sum()


def test_shards_are_found_by_their_index(tmp_path):
    assert find_shards(tmp_path) == []
    (tmp_path / "one.safetensors").write_bytes(safetensors_bytes({"a": A}))
    assert find_shards(tmp_path) == [tmp_path / "one.safetensors"]
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes({"a": A}))
    assert find_shards(tmp_path) == []  # which of them is the model?
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    shards = find_shards(tmp_path)
    assert [path.name for path in shards] == ["one.safetensors", "two.safetensors"]
    with pytest.raises(CheckpointError, match="a is also in another shard"):
        merge((MappedFile(path), read(path)) for path in shards)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not valid JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../../secret"}}', "as the file of a"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "not there: gone.safetensors"),
    ],
)
def test_a_bad_index_is_refused(index, message, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        find_shards(tmp_path)
