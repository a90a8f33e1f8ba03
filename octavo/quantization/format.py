"""Which storage formats exist: how many elements a block holds, how many bytes it takes, and what can be computed with.

A block runs along a row; a row is a whole number of blocks. `number` is the type's number in a GGUF file (the ggml
project's `ggml_type`, documented in docs/gguf.md there). Formats with spans are those of quantized safetensors files:
"int4z_g128_f16" has codes of 4 bits less a zero point, and a float16 for each 128; "row" is one for a whole row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from octavo.errors import CheckpointError, UnsupportedError
from octavo.ops.weight import StoredTensor

Role = Literal["float", "block", "other"]


# Codes of formats with spans: bits, and whether each span has a zero point.
SPAN_CODES = {
    "int4": (4, False),
    "int4z": (4, True),
    "int8": (8, False),
    "int8z": (8, True),
    "e4m3": (8, False),
    "int4s": (4, False),
}
STEPPED = "int4s_row_f32_rotated"  # codes with a step and a start for each 32 inputs, see stepped.py
# Types of scales, in bytes. shared: a float32 that every 16 rows from a multiple of 16 on have in common.
SCALE_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "shared": 4}
SPAN_INPUTS = (32, 64, 128)
ROTATED = 64  # inputs that are rotated together


@dataclass(frozen=True, slots=True)
class Spans:
    """How codes along a row share scales. A stored row is its codes, its scales, then its zero points, a byte each.

    codes: one of SPAN_CODES. inputs: that share a scale; 0: all of a row. ordered: the columns are permuted, and the
    tensor says which input each belongs to. rotated: codes are those of rows times a Hadamard matrix for each ROTATED
    inputs (span_rows.rotate), never both.
    """

    codes: str
    inputs: int
    scale: str
    ordered: bool = False
    rotated: bool = False

    @property
    def bits(self) -> int:
        """Of a code."""
        return SPAN_CODES[self.codes][0]

    @property
    def zeros(self) -> bool:
        """Whether each span has a zero point."""
        return SPAN_CODES[self.codes][1]

    @property
    def bytes(self) -> int:
        """Scale and zero point of a span."""
        return SCALE_BYTES[self.scale] + self.zeros

    @property
    def name(self) -> str:
        """As formats are called."""
        span = f"g{self.inputs}" if self.inputs else "row"
        return f"{self.codes}_{span}_{self.scale}{'_ordered' if self.ordered else '_rotated' if self.rotated else ''}"

    def count(self, columns: int) -> int:
        """Spans of a row."""
        return columns // self.inputs if self.inputs else 1


@dataclass(frozen=True, slots=True)
class Format:
    """One storage format. role "float": plain numbers; "block": quantized, with kernels; "other": only measured."""

    name: str
    number: int
    elements: int  # of a block
    block_bytes: int
    role: Role
    scales: tuple[int, ...] = ()  # byte offsets of the block's float16 scales: what may be NaN or infinite
    spans: Spans | None = None  # then block_bytes leaves out what belongs to a whole row

    @property
    def bits_per_weight(self) -> float:
        """Storage cost of one element, in bits, its share of the scales included but those of whole rows."""
        return 8 * self.block_bytes / self.elements

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements; `columns` must be a multiple of `elements`."""
        of_row = self.spans.bytes if self.spans is not None and not self.spans.inputs else 0
        return columns // self.elements * self.block_bytes + of_row


def _span_formats() -> Iterator[Format]:
    """Every combination there is a kernel for."""
    for codes, (_, zeros) in SPAN_CODES.items():
        for inputs, scale, ordered in product((*SPAN_INPUTS, 0), SCALE_BYTES, (False, True)):
            if codes == "int4s" or (scale == "shared" and zeros) or (ordered and not inputs):
                continue
            yield _span_format(Spans(codes, inputs, scale, ordered), inputs or SPAN_INPUTS[0])
    yield _span_format(Spans("int8", 0, "f32", rotated=True), ROTATED)
    steps = 2 * ROTATED // 32
    yield Format(STEPPED, -1, ROTATED, ROTATED // 2 + steps, "block", (), Spans("int4s", 0, "f32", rotated=True))


def _span_format(spans: Spans, elements: int) -> Format:
    block_bytes = elements * spans.bits // 8 + (spans.bytes if spans.inputs else 0)
    return Format(spans.name, -1, elements, block_bytes, "block", (), spans)


_TABLE = (
    Format("f32", 0, 1, 4, "float"),
    Format("f16", 1, 1, 2, "float"),
    Format("bf16", 30, 1, 2, "float"),
    Format("q4_0", 2, 32, 18, "block", (0,)),
    Format("q4_1", 3, 32, 20, "block", (0, 2)),
    Format("q5_0", 6, 32, 22, "block", (0,)),
    Format("q5_1", 7, 32, 24, "block", (0, 2)),
    Format("q8_0", 8, 32, 34, "block", (0,)),
    Format("q2_k", 10, 256, 84, "block", (80, 82)),
    Format("q3_k", 11, 256, 110, "block", (108,)),
    Format("q4_k", 12, 256, 144, "block", (0, 2)),
    Format("q5_k", 13, 256, 176, "block", (0, 2)),
    Format("q6_k", 14, 256, 210, "block", (208,)),
    Format("iq4_nl", 20, 32, 18, "block", (0,)),
    Format("mxfp4", 39, 32, 17, "block"),  # its scale is a bare power of two
    Format("q8_1", 9, 32, 40, "other"),
    Format("q8_k", 15, 256, 292, "other"),
    Format("iq2_xxs", 16, 256, 66, "other"),
    Format("iq2_xs", 17, 256, 74, "other"),
    Format("iq3_xxs", 18, 256, 98, "other"),
    Format("iq1_s", 19, 256, 50, "other"),
    Format("iq3_s", 21, 256, 110, "other"),
    Format("iq2_s", 22, 256, 82, "other"),
    Format("iq4_xs", 23, 256, 136, "other"),
    Format("i8", 24, 1, 1, "other"),
    Format("i16", 25, 1, 2, "other"),
    Format("i32", 26, 1, 4, "other"),
    Format("i64", 27, 1, 8, "other"),
    Format("f64", 28, 1, 8, "other"),
    Format("iq1_m", 29, 256, 56, "other"),
    Format("tq1_0", 34, 256, 54, "other"),
    Format("tq2_0", 35, 256, 66, "other"),
    # Types that only safetensors files have; no ggml number.
    Format("u8", -1, 1, 1, "other"),
    Format("u16", -1, 1, 2, "other"),
    Format("u32", -1, 1, 4, "other"),
    Format("u64", -1, 1, 8, "other"),
    Format("bool", -1, 1, 1, "other"),
    Format("f8_e4m3", -1, 1, 1, "other"),
    Format("f8_e5m2", -1, 1, 1, "other"),
    Format("f8_e8m0", -1, 1, 1, "other"),
    *_span_formats(),
)

FORMATS: dict[str, Format] = {f.name: f for f in _TABLE}
FORMAT_OF_NUMBER: dict[int, Format] = {f.number: f for f in _TABLE if f.number >= 0}


def stored_bytes(format: Format, shape: tuple[int, ...]) -> int:
    """Bytes a tensor of `shape` takes.

    Raises:
        ValueError: its rows are no whole number of blocks.
    """
    columns = shape[-1] if shape else 1
    if columns % format.elements:
        raise ValueError(f"rows of {columns} elements are no whole number of {format.elements}-element blocks")
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return rows * format.row_bytes(columns)


def check_computable(tensor: StoredTensor) -> Format:
    """The format of a tensor that weights may have.

    Raises:
        UnsupportedError: no kernel computes with it.
        CheckpointError: the bytes do not fit the shape.
    """
    format = FORMATS.get(tensor.format)
    if format is None or format.role == "other":
        raise UnsupportedError(f"tensor {tensor.name} is stored as {tensor.format}, which Octavo cannot compute with")
    try:
        expected = stored_bytes(format, tensor.shape)
    except ValueError as error:
        raise CheckpointError(f"tensor {tensor.name} of shape {list(tensor.shape)}: {error}") from error
    if tensor.reader is None and tensor.data.nbytes != expected:
        raise CheckpointError(
            f"tensor {tensor.name}: {tensor.data.nbytes} bytes, but {expected} are needed for {list(tensor.shape)}"
        )
    return format
