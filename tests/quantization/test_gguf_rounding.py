"""Block formats as they are written: the gguf package reads them, and the fits beat plain rounding."""

import gguf
import numpy as np
import pytest

from octavo.quantization.format import FORMATS
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.gguf_mix import MIXES, format_of
from octavo.quantization.gguf_rounding import round_matrix
from tests.golden.quantizers import quantize as plain

WRITTEN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


def matrix(rows: int = 24, columns: int = 512) -> np.ndarray:
    random = np.random.default_rng(3)
    values = random.standard_normal((rows, columns)).astype(np.float32) * 0.05
    values[1] = 0
    values[2] = np.abs(values[2])
    values[3] = -np.abs(values[3])
    values[4] = 0.25
    return values


def read(data: np.ndarray, format: str, rows: int) -> np.ndarray:
    return gguf.quants.dequantize(data.reshape(rows, -1), gguf.GGMLQuantizationType[format.upper()])


@pytest.mark.parametrize("format", WRITTEN)
def test_the_gguf_package_reads_what_is_written(format: str) -> None:
    values = matrix()
    data = round_matrix(format, values)
    assert data.nbytes == values.size // FORMATS[format].elements * FORMATS[format].block_bytes
    back = read(data, format, len(values))
    assert np.array_equal(back, dequantize(format, data, values.shape))
    assert not back[1].any()
    simple = read(plain(values, format), format, len(values))
    error, other = (np.square(each - values)[5:].mean() for each in (back, simple))
    assert error <= other * (1.0 if format == "q8_0" else 0.95)
    assert np.abs(back[4] - 0.25).max() < 0.01


@pytest.mark.parametrize("format", [name for name in WRITTEN if name != "q8_0"])
def test_important_columns_err_less(format: str) -> None:
    values = matrix(64)
    importance = np.ones(512, np.float32)
    importance[::7] = 50
    plainly, weighed = (read(round_matrix(format, values, each), format, 64) for each in (None, importance))
    assert (np.square(weighed - values) * importance).sum() < (np.square(plainly - values) * importance).sum()
    assert not np.array_equal(plainly, weighed)


def test_inputs_that_were_all_zero_weigh_alike() -> None:
    values = matrix()
    assert np.array_equal(round_matrix("q4_k", values, np.zeros(512, np.float32)), round_matrix("q4_k", values))


@pytest.mark.parametrize(
    ("type", "name", "layer", "columns", "format"),
    [
        ("Q4_K_M", "head", None, 512, "q6_k"),
        ("Q4_K_M", "down", 0, 512, "q6_k"),
        ("Q4_K_M", "down", 4, 512, "q4_k"),
        ("Q4_K_M", "v", 6, 512, "q6_k"),
        ("Q4_K_M", "q", 0, 512, "q4_k"),
        ("Q4_K_M", "q", 0, 96, "q5_0"),  # blocks of 256 do not fit
        ("Q4_K_M", "head", None, 96, "q8_0"),
        ("Q4_K_S", "v", 0, 512, "q5_k"),
        ("Q4_K_S", "v", 31, 512, "q4_k"),
        ("Q5_K_M", "q", 3, 96, "q5_1"),
        ("Q8_0", "up", 1, 96, "q8_0"),
        ("Q4_0", "up", 1, 40, "f16"),
    ],
)
def test_who_gets_more_bits(type: str, name: str, layer: int | None, columns: int, format: str) -> None:
    assert format_of(MIXES[type], name, layer, 32, columns) == format


def test_file_types_are_ggml_s() -> None:
    for name, mix in MIXES.items():
        known = {kind.name: kind.value for kind in gguf.LlamaFileType}
        assert known[f"MOSTLY_{name}"] == mix.number
