"""What packing makes of plain numbers, and the sums of pages, on every instruction set this machine runs."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu.packer import PAGE
from octavo.kernels.cpu.structs import format_code
from octavo.ops.weight import StoredTensor
from tests.conformance.matrices import DENSE_ISAS, Machine, machine_of

LANES = 16


@pytest.fixture(scope="module", params=DENSE_ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made


def panels(words: np.ndarray) -> np.ndarray:
    """[rows, cols] as [panels, cols, 16 rows], absent rows 0."""
    rows, cols = words.shape
    whole = np.zeros((-(-rows // LANES) * LANES, cols), words.dtype)
    whole[:rows] = words
    return whole.reshape(-1, LANES, cols).swapaxes(1, 2)


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_plain_numbers_lie_in_panels_of_sixteen_rows(machine: Machine, format: str, rows: int, cols: int) -> None:
    """The input dimension outermost; of bf16 two inputs are a word, and an odd last one is beside a zero."""
    rng = np.random.default_rng(rows * 1000 + cols)
    width = np.uint32 if format == "f32" else np.uint16
    numbers = rng.integers(1, 0x3C00, (rows, cols)).astype(width)
    packed = machine.packer.matrix([StoredTensor("w", format, (rows, cols), numbers.view(np.uint8).reshape(-1))])
    if format == "bf16":
        even = np.pad(numbers, ((0, 0), (0, cols % 2)))
        numbers = np.ascontiguousarray(even).view(np.uint32)
    data = np.asarray(packed.segments[0].data).reshape(-(-rows // LANES), -1)
    expected = np.ascontiguousarray(panels(numbers)).view(np.uint8).reshape(len(data), -1)
    np.testing.assert_array_equal(data[:, : expected.shape[1]], expected)
    assert not data[:, expected.shape[1] :].any()


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sign", [0, 1])
def test_the_largest_number_is_no_infinity(machine: Machine, format: str, sign: int) -> None:
    """Of either sign and at any place of a row; one bit more is refused."""
    width, top, infinity = {"f32": (np.uint32, 31, 0x7F800000), "f16": (np.uint16, 15, 0x7C00)}.get(
        format, (np.uint16, 15, 0x7F80)
    )
    for place in (0, 7, 32, 36):
        numbers = np.zeros((20, 37), width)
        numbers[18, place] = infinity - 1 | sign << top
        machine.packer.matrix([StoredTensor("w", format, (20, 37), numbers.view(np.uint8).reshape(-1))])
        for bad in (infinity, infinity + 1, infinity | infinity - 1):
            numbers[18, place] = bad | sign << top
            with pytest.raises(CheckpointError, match="row 18 holds"):
                machine.packer.matrix([StoredTensor("w", format, (20, 37), numbers.view(np.uint8).reshape(-1))])


def test_unknown_formats_are_refused_by_number(machine: Machine) -> None:
    call, team = machine.library.call, machine.teams[0].handle
    assert call.octavo_pack_finite(team, -1, None, 1, 256, None) == -1
    assert call.octavo_pack_finite(team, format_code("q6_k"), None, 1, 255, None) == -2


@pytest.mark.parametrize("pages", [0, 1, 255, 1025])
def test_sums_count_every_word_by_its_place(machine: Machine, pages: int) -> None:
    data = np.random.default_rng(pages).integers(0, 256, pages * PAGE, np.uint8)
    places = np.arange(1, PAGE // 4, 2, dtype=np.uint64)
    expected = (data.view(np.uint64).reshape(-1, PAGE // 8) * places).sum(axis=1, dtype=np.uint64)
    np.testing.assert_array_equal(machine.packer.page_sums(data), expected)
    np.testing.assert_array_equal(machine.packer.page_sums(data, alone=True), expected)
