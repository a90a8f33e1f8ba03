"""The methods that round a safetensors checkpoint: what each wants to know, how it scales and rounds, what it writes.

The layouts are those that vLLM and Transformers load: `awq` version gemm; `gptq` checkpoint format v1, asymmetric v2
(GPTQModel does not trust v1's zero points, which tools have understood in two ways); and compressed-tensors'
int-quantized and float-quantized with activations rounded a token at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.compression.flow import SharedInput
from octavo.compression.parameters import as_format, rounded
from octavo.compression.statistics import InputStatistics, Wanted
from octavo.quantization import awq, layouts, smooth
from octavo.quantization.gptq import GptqOptions, gptq
from octavo.quantization.integers import Coded, Floats, Grid

_WORD = 32  # bits
_AWQ_BITS = 4
_AWQ_SAMPLE = 512  # inputs that its searches are made with


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of the new checkpoint; `suffix` follows the module's name."""

    suffix: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """What is written for a matrix, and the values [out, in] that it stands for."""

    tensors: tuple[OutputTensor, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix to be rounded. clips: its range may be cut; format: of the tensor in the source."""

    weight: Floats
    inputs: InputStatistics | None
    clips: bool
    format: str


class Scheme(Protocol):
    """A method. wanted: None when it needs no calibration. turned: whether matrices stored [in, out] can be written.

    scales: whether factors are moved between channels.
    """

    @property
    def name(self) -> str: ...

    @property
    def wanted(self) -> Wanted | None: ...

    @property
    def turned(self) -> bool: ...

    @property
    def scales(self) -> bool: ...

    @property
    def bits(self) -> float:
        """Of a rounded weight, its share of scales included."""
        ...

    @property
    def described(self) -> str:
        """In words."""
        ...

    def misfit(self, rows: int, columns: int) -> str:
        """Why a matrix of that shape cannot be written; "" when it can."""
        ...

    def factors(self, group: SharedInput, weights: Sequence[Floats], inputs: InputStatistics) -> Floats | None:
        """By what an input's channels (those that are free, see Giver) are divided and its weights multiplied."""
        ...

    def round(self, module: Module) -> RoundedMatrix: ...

    def config(self, skipped: Sequence[str], within_layers: Sequence[str]) -> dict[str, Any]:
        """config.json's quantization_config. skipped: modules that stay as they are; those of layers among them."""
        ...


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """4 bits, a scale and a zero point for `group` inputs."""

    group: int
    symmetric: bool = False
    name: str = "awq"
    turned: bool = True
    scales: bool = True

    @property
    def wanted(self) -> Wanted:
        return Wanted(sample=_AWQ_SAMPLE)

    @property
    def bits(self) -> float:
        return _AWQ_BITS + (16 + _AWQ_BITS) / self.group

    @property
    def described(self) -> str:
        return f"awq 4 bits, {_kind(self.symmetric)}, groups of {self.group}"

    @property
    def _grid(self) -> Grid:
        return Grid(_AWQ_BITS, self.symmetric, self.group)

    def misfit(self, rows: int, columns: int) -> str:
        return _misfit(rows, columns, self.group, _WORD // _AWQ_BITS)

    def factors(self, group: SharedInput, weights: Sequence[Floats], inputs: InputStatistics) -> Floats | None:
        assert group.giver is not None
        giver = group.giver
        return awq.search_scales(weights, inputs.sample, giver.mean(inputs.mean), self._grid, giver.spread)

    def round(self, module: Module) -> RoundedMatrix:
        inputs = module.inputs
        assert inputs is not None
        coded = awq.round_clipped(self._grid, module.weight, inputs.sample if module.clips else None)
        return _integers(coded, layouts.awq_tensors(coded))

    def config(self, skipped: Sequence[str], within_layers: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": _AWQ_BITS,
            "group_size": self.group,
            "zero_point": True,  # those of symmetric codes are in the file, too
            "version": "gemm",
            "modules_to_not_convert": list(skipped) or None,
        }


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """4 or 8 bits; group 0 stands for whole rows."""

    bits_each: int
    group: int
    symmetric: bool
    options: GptqOptions
    name: str = "gptq"
    turned: bool = True
    scales: bool = False

    @property
    def wanted(self) -> Wanted:
        return Wanted(moments=True)

    @property
    def described(self) -> str:
        order = ", act-order" if self.options.act_order else ""
        return f"gptq {self.bits_each} bits, {_kind(self.symmetric)}, groups of {self.group or 'a row'}{order}"

    @property
    def bits(self) -> float:
        return self.bits_each + ((16 + self.bits_each) / self.group if self.group else 0)

    def misfit(self, rows: int, columns: int) -> str:
        return _misfit(rows, columns, self.group or columns, _WORD // self.bits_each, both=True)

    def factors(self, group: SharedInput, weights: Sequence[Floats], inputs: InputStatistics) -> Floats | None:
        return None

    def round(self, module: Module) -> RoundedMatrix:
        assert module.inputs is not None
        assert module.inputs.moments is not None
        grid = Grid(self.bits_each, self.symmetric, self.group)
        coded = gptq(module.weight, module.inputs.moments, grid, self.options)
        return _integers(coded, layouts.gptq_tensors(coded, self.bits_each, less=1 if self.symmetric else 0))

    def config(self, skipped: Sequence[str], within_layers: Sequence[str]) -> dict[str, Any]:
        config: dict[str, Any] = {
            "quant_method": "gptq",
            "bits": self.bits_each,
            "group_size": self.group or -1,
            "sym": self.symmetric,
            "desc_act": False,  # groups are runs of columns in any order of rounding
            "static_groups": self.options.act_order,
            "checkpoint_format": "gptq" if self.symmetric else "gptq_v2",
            "damp_percent": self.options.damp,
            "true_sequential": False,
            "lm_head": False,
        }
        if within_layers:
            config["dynamic"] = {f"-:^{name.replace('.', chr(92) + '.')}$": {} for name in within_layers}
        return config


@dataclass(frozen=True, slots=True)
class EightBitScheme:
    """int8 after SmoothQuant, or float8; a scale a row, kept in the model's own type."""

    name: str
    alpha: float = 0.5
    turned: bool = False
    scales: bool = True

    @property
    def wanted(self) -> Wanted | None:
        return Wanted() if self.name == "int8" and self.alpha > 0 else None

    @property
    def bits(self) -> float:
        return 8.0

    @property
    def described(self) -> str:
        return f"int8, SmoothQuant alpha {self.alpha:g}" if self.wanted else self.name

    def misfit(self, rows: int, columns: int) -> str:
        return ""

    def factors(self, group: SharedInput, weights: Sequence[Floats], inputs: InputStatistics) -> Floats | None:
        assert group.giver is not None
        giver = group.giver
        return smooth.smoothing(giver.largest(inputs.peaks), weights, self.alpha, giver.largest)

    def round(self, module: Module) -> RoundedMatrix:
        kept = module.format if module.format in ("bf16", "f16") else "f32"

        def keep(scales: Floats) -> Floats:
            return rounded(scales, kept)

        whole = self.name == "int8"
        rows = (smooth.int8_rows if whole else smooth.e4m3_rows)(module.weight, keep)
        tensors = (
            OutputTensor("weight", "i8" if whole else "f8_e4m3", rows.codes.shape, rows.codes),
            OutputTensor("weight_scale", kept, (len(rows.scales), 1), as_format(rows.scales, kept)),
        )
        return RoundedMatrix(tensors, rows.values())

    def config(self, skipped: Sequence[str], within_layers: Sequence[str]) -> dict[str, Any]:
        kind = "int" if self.name == "int8" else "float"
        common: dict[str, Any] = {
            "num_bits": 8,
            "type": kind,
            "symmetric": True,
            "group_size": None,
            "block_structure": None,
            "actorder": None,
            "observer_kwargs": {},
        }
        return {
            "quant_method": "compressed-tensors",
            "format": f"{kind}-quantized",
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "ignore": list(skipped),
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**common, "strategy": "channel", "dynamic": False, "observer": "minmax"},
                    "input_activations": {**common, "strategy": "token", "dynamic": True, "observer": None},
                    "output_activations": None,
                }
            },
        }


def _kind(symmetric: bool) -> str:
    return "symmetric" if symmetric else "asymmetric"


def _misfit(rows: int, columns: int, group: int, words: int, both: bool = False) -> str:
    """Why codes do not fill whole words and groups."""
    if columns % group:
        return f"{columns} inputs are no whole number of groups of {group}"
    if rows % words or (both and columns % words):
        return f"[{rows}, {columns}] does not fill whole words of {words} codes"
    return ""


def _integers(coded: Coded, arrays: Mapping[str, NDArray[np.generic]]) -> RoundedMatrix:
    formats: dict[str, str] = {"float16": "f16", "int32": "i32"}
    tensors = tuple(OutputTensor(name, formats[a.dtype.name], a.shape, a) for name, a in arrays.items())
    return RoundedMatrix(tensors, coded.values())
