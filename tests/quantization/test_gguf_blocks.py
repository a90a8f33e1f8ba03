"""Every block format means what the gguf package says it means."""

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError, UnsupportedError
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMAT_OF_NUMBER, FORMATS, stored_bytes
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize, first_invalid_row

COMPUTABLE = [name for name, format in FORMATS.items() if format.role != "other" and format.spans is None]


def random_tensor(name: str, rows: int = 3, columns: int = 512) -> StoredTensor:
    """Random bytes, with scales that are finite and of a sane size."""
    format = FORMATS[name]
    random = np.random.default_rng(7)
    blocks = random.integers(0, 256, (rows * columns // format.elements, format.block_bytes), dtype=np.uint8)
    for offset in format.scales:
        halves = random.normal(0, 0.1, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8)
    if format.role == "float":
        values = random.normal(0, 1, (rows, columns)).astype(np.float32)
        stored = {"f32": values, "f16": values.astype(np.float16), "bf16": bf16_from_f32(values)}[name]
        blocks = np.ascontiguousarray(stored).view(np.uint8)
    if name == "mxfp4":
        blocks[:, 0] = random.integers(100, 140, len(blocks))
    return StoredTensor("t", name, (rows, columns), blocks.reshape(-1))


@pytest.mark.parametrize("name", COMPUTABLE)
def test_values_are_those_of_the_gguf_package(name):
    tensor = random_tensor(name)
    kind = gguf.GGMLQuantizationType(FORMATS[name].number)
    expected = gguf.quants.dequantize(tensor.data.reshape(3, -1), kind)
    np.testing.assert_allclose(dequantize(tensor.format, tensor.data, tensor.shape), expected, rtol=1e-6, atol=1e-7)


def test_the_table_has_the_sizes_of_the_gguf_package():
    for kind, (elements, block_bytes) in gguf.constants.GGML_QUANT_SIZES.items():
        format = FORMAT_OF_NUMBER.get(int(kind))
        if format is not None:
            assert (format.elements, format.block_bytes) == (elements, block_bytes), kind.name
            assert format.name == kind.name.lower()
    assert FORMATS["q4_1"].bits_per_weight == 5.0


@pytest.mark.parametrize("name", COMPUTABLE)
def test_a_bad_value_or_scale_is_found_in_its_row(name):
    tensor = random_tensor(name)
    assert first_invalid_row(tensor) is None
    format = FORMATS[name]
    data = tensor.data.copy()
    block = data.reshape(3, -1, format.block_bytes)[1, 1]  # row 1
    if format.role == "block" and format.scales:
        block[format.scales[-1] : format.scales[-1] + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    elif name == "mxfp4":
        block[0] = 255
    else:
        block[:] = np.frombuffer({"f32": b"\0\0\x80\xff", "f16": b"\1\x7c", "bf16": b"\xc0\x7f"}[name], np.uint8)
    assert first_invalid_row(StoredTensor("t", name, tensor.shape, data)) == 1


def test_bf16_rounds_to_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan, 3.0e38], np.float32)
    back = (bf16_from_f32(values).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back[:5], np.array([1.0, 1.0, 1.015625, -0.0, np.inf], np.float32))
    assert np.isnan(back[5])


def test_what_cannot_be_computed_with_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="is stored as iq2_xs"):
        dequantize("iq2_xs", np.zeros(74, np.uint8), (1, 256))
    with pytest.raises(CheckpointError, match="of shape"):
        dequantize("q4_k", np.zeros(144, np.uint8), (1, 100))
    with pytest.raises(CheckpointError, match="18 bytes, but 36"):
        dequantize("q4_0", np.zeros(18, np.uint8), (2, 32))
    assert stored_bytes(FORMATS["q4_0"], (4, 64)) == 4 * 2 * 18
