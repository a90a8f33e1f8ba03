"""The GGUF reader reads what the gguf package writes, and answers a damaged file with an error that names the part."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.mapped import MappedFile
from octavo.quantization.gguf_blocks import dequantize
from tests.model.files import gguf_bytes, string

VALUES = np.arange(96, dtype=np.float32).reshape(3, 32) / 7


def read(path):
    return read_gguf(MappedFile(path))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with every metadata type and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"x.{kind}", 7 if kind[0] == "u" else -7)
    writer.add_float32("x.float32", 0.5)
    writer.add_float64("x.float64", 1e-300)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "naïve ▁")
    writer.add_array("x.strings", ["a", "", "ü" * 50])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.bools", [True, False])
    writer.add_tensor("a.weight", VALUES)
    q8 = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("b.weight", gguf.quants.quantize(VALUES, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_what_was_written(written):
    contents = read(written)
    metadata = contents.metadata
    assert contents.version == 3
    assert metadata["general.architecture"] == "llama"
    assert all(metadata[f"x.uint{bits}"] == 7 and metadata[f"x.int{bits}"] == -7 for bits in (8, 16, 32, 64))
    assert (metadata["x.float32"], metadata["x.float64"], metadata["x.bool"]) == (0.5, 1e-300, True)
    assert metadata["x.string"] == "naïve ▁"
    assert metadata["x.strings"] == ["a", "", "ü" * 50]
    assert metadata["x.ints"] == [1, -2, 3]
    assert metadata["x.floats"] == [0.5, 1.5]
    assert metadata["x.bools"] == [True, False]
    plain, packed = contents.tensors["a.weight"], contents.tensors["b.weight"]
    assert (plain.format, plain.shape, packed.format, packed.shape) == ("f32", (3, 32), "q8_0", (3, 32))
    np.testing.assert_array_equal(dequantize(plain.format, plain.data, plain.shape), VALUES)
    np.testing.assert_allclose(dequantize(packed.format, packed.data, packed.shape), VALUES, atol=0.06)


def test_version_2_and_nested_arrays(tmp_path):
    nested = struct.pack("<IQ", 9, 2) + 2 * (struct.pack("<IQ", 4, 2) + struct.pack("<II", 5, 6))
    (tmp_path / "m").write_bytes(gguf_bytes([("n", 9, nested)], [("t", (4,), 0, bytes(16))], version=2))
    contents = read(tmp_path / "m")
    assert contents.metadata["n"] == [[5, 6], [5, 6]]
    assert contents.tensors["t"].shape == (4,)


DEEP = struct.pack("<IQ", 9, 1) * 8 + struct.pack("<IQ", 4, 0)
HUGE = 1 << 60
BAD = {
    "magic": (b"GGML" + bytes(40), CheckpointError, "no GGUF"),
    "empty": (b"", CheckpointError, "empty"),
    "version 1": (gguf_bytes(version=1), UnsupportedError, "version 1"),
    "big endian": (gguf_bytes(version=3 << 24), UnsupportedError, "big endian"),
    "tensor count": (gguf_bytes(counts=(HUGE, 0)), CheckpointError, "the tensor count"),
    "metadata count": (gguf_bytes(counts=(0, HUGE)), CheckpointError, "the metadata count"),
    "key length": (gguf_bytes([("k", 4, bytes(4))])[:24] + struct.pack("<Q", HUGE) + bytes(40), CheckpointError, "key"),
    "string length": (gguf_bytes([("key", 8, struct.pack("<Q", HUGE))]), CheckpointError, "metadata key"),
    "array length": (gguf_bytes([("key", 9, struct.pack("<IQ", 4, HUGE))]), CheckpointError, "length of metadata key"),
    "string array": (
        gguf_bytes([("key", 9, struct.pack("<IQ", 8, 2) + string(b"a") + struct.pack("<Q", HUGE))]),
        CheckpointError,
        r"key\[1\]",
    ),
    "nesting": (gguf_bytes([("key", 9, DEEP)]), CheckpointError, "nests"),
    "value type": (gguf_bytes([("key", 99, bytes(8))]), CheckpointError, "type number 99"),
    "element type": (gguf_bytes([("key", 9, struct.pack("<IQ", 77, 1))]), CheckpointError, "type number 77"),
    "key twice": (gguf_bytes([("key", 4, bytes(4))] * 2), CheckpointError, "key is there twice"),
    "alignment": (gguf_bytes([("general.alignment", 4, struct.pack("<I", 3))]), CheckpointError, "alignment"),
    "tensor type": (gguf_bytes(tensors=[("t", (32,), 999, bytes(32))]), UnsupportedError, "t has the unknown type"),
    "dimensions": (gguf_bytes(tensors=[("t", (2,) * 9, 0, bytes(64))]), CheckpointError, "t has 9 dimensions"),
    "empty shape": (gguf_bytes(tensors=[("t", (0, 4), 0, b"")]), CheckpointError, "t has the empty shape"),
    "overflow": (gguf_bytes(tensors=[("t", (1 << 40, 1 << 40), 0, bytes(64))]), CheckpointError, "tensor t should end"),
    "block": (gguf_bytes(tensors=[("t", (33,), 2, bytes(64))]), CheckpointError, "tensor t, q4_0"),
    "2^63 tensors": (gguf_bytes(counts=(1 << 63, 0)), CheckpointError, "the tensor count"),
    "2^40 keys": (gguf_bytes(counts=(0, 1 << 40)), CheckpointError, "the metadata count"),
    "2^62 characters": (gguf_bytes([("key", 8, struct.pack("<Q", 1 << 62))]), CheckpointError, "metadata key"),
    "product beyond 2^64": (gguf_bytes(tensors=[("t", (1 << 33,) * 2, 0, bytes(64))]), CheckpointError, "tensor t"),
    "alignment 0": (gguf_bytes([("general.alignment", 4, struct.pack("<I", 0))]), CheckpointError, "alignment"),
    "tensor twice": (gguf_bytes(tensors=[("t", (4,), 0, bytes(16))] * 2), CheckpointError, "t is there twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_lying_file_is_refused_by_name(name, tmp_path):
    data, error, message = BAD[name]
    (tmp_path / "m").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(error, match=message):
        read(tmp_path / "m")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 50e6


def test_overlapping_and_unaligned_tensors_are_refused(tmp_path):
    good = gguf_bytes(tensors=[("first", (16,), 0, bytes(64)), ("second", (16,), 0, bytes(64))])
    at = good.index(b"second") + len("second") + 4 + 8 + 4
    cases = [(32, "first and second overlap"), (8, "second at 8 is not aligned"), (1 << 62, "second should end")]
    for offset, message in [*cases, ((1 << 64) - 32, "second should end")]:
        (tmp_path / "m").write_bytes(good[:at] + struct.pack("<Q", offset) + good[at + 8 :])
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path / "m")


def test_every_truncation_is_noticed(written, tmp_path):
    whole = written.read_bytes()
    for length in range(1, len(whole) - 32, 5):  # the last bytes are padding
        (tmp_path / "m").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read(tmp_path / "m")


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.data())
def test_random_damage_gives_an_error_or_a_sound_file(written, tmp_path_factory, data):
    damaged = bytearray(written.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 9))
        kind = data.draw(st.sampled_from(["byte", "word", "huge"]))
        if kind == "byte":
            damaged[at] = data.draw(st.integers(0, 255))
        elif kind == "word":
            damaged[at : at + 4] = struct.pack("<I", data.draw(st.integers(0, 2**32 - 1)))
        else:
            damaged[at : at + 8] = struct.pack(
                "<Q", data.draw(st.sampled_from([2**63, 2**64 - 1, 2**32, len(damaged)]))
            )
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        contents = read(path)
    except OctavoError:
        return
    for tensor in contents.tensors.values():
        assert tensor.data.nbytes <= len(damaged)
        tensor.data.sum()  # every byte can be read
