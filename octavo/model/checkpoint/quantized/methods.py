"""Which quantized checkpoints Octavo reads, by the method they name, and what becomes of their tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo.errors import UnsupportedError
from octavo.model.checkpoint.quantized import autoround, awq, compressed, float8, gptq
from octavo.model.checkpoint.quantized.config import QuantizationConfig
from octavo.model.checkpoint.quantized.module import Module
from octavo.ops.weight import StoredTensor

_Read = Callable[[QuantizationConfig, Mapping[str, StoredTensor]], list[Module]]


class _Method(Protocol):
    """A module of this package that reads one kind of checkpoint."""

    @staticmethod
    def describe(config: QuantizationConfig) -> str: ...

    @staticmethod
    def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]: ...


# What --quantization calls a checkpoint of each method, and who reads it.
_METHODS: dict[str, tuple[str, _Method]] = {
    "gptq": ("gptq", gptq),
    "awq": ("awq", awq),
    "compressed-tensors": ("compressed-tensors", compressed),
    "fp8": ("fp8", float8),
    "fbgemm-fp8": ("fp8", float8),
    "modelopt": ("fp8", float8),
    "modelopt-mxfp8": ("fp8", float8),
    "auto-round": ("auto-round", autoround),
    "intel/auto-round": ("auto-round", autoround),
}
_INSTEAD = "use the unquantized model with --quantization, or an AWQ, GPTQ, compressed-tensors, fp8 or GGUF checkpoint"
# Left over by quantization tools, and not needed: scales of inputs (which stay float32) and of keys and values (whose
# cache has scales of its own), and where zero points of symmetric weights were.
_SURPLUS = {
    "input_scale": "scales of inputs", "input_scale_ub": "scales of inputs", "input_zero_point": "scales of inputs",
    "activation_scale": "scales of inputs", "k_scale": "scales of keys", "v_scale": "scales of values",
    "q_scale": "scales of queries", "k_zero_point": "scales of keys", "v_zero_point": "scales of values",
    "kv_scale": "scales of keys", "output_scale": "scales of outputs", "weight_zero_point": "unused zero points",
    "weight_shape": "shapes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized checkpoint.

    Args:
        method: as --quantization names it. text: what it is, in words. notes: what was left out or expanded.
        format: that most bytes of quantized modules have, beside which an embedding may be larger.
    """

    method: str
    text: str
    format: str
    notes: tuple[str, ...] = ()


def main_format(tensors: Iterable[StoredTensor]) -> str:
    """The format that most bytes are stored in."""
    bytes_of: Counter[str] = Counter()
    for tensor in tensors:
        bytes_of[tensor.format] += tensor.data.nbytes
    return max(bytes_of, key=lambda format: bytes_of[format], default="f32")


def read_quantized(
    config: QuantizationConfig, tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantized]:
    """The checkpoint's tensors with one matrix for each quantized module, and what it is.

    Raises:
        UnsupportedError: a method or a kind of it that Octavo does not read; says what to use.
        CheckpointError: tensors are missing, misshapen or contradict the configuration; names them.
    """
    if config.method not in _METHODS:
        raise UnsupportedError(f"{config.where}: checkpoints of {config.method} are not supported; {_INSTEAD}")
    method, reader = _METHODS[config.method]
    text = reader.describe(config)
    modules = reader.read_modules(config, tensors)
    used = {name for module in modules for name in module.uses}
    surplus: Counter[str] = Counter()
    plain: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        kind = _SURPLUS.get(name.rpartition(".")[2])
        if kind is not None and name not in used:
            surplus[kind] += 1
        elif name not in used:
            plain[name] = tensor
    notes = [f"{count} {kind} in the file are not needed" for kind, count in surplus.items() if kind[-6:] != "shapes"]
    expanded = Counter(module.expanded for module in modules if module.expanded)
    notes += [f"{count} matrices are expanded to f32: {reason}" for reason, count in expanded.items()]
    return plain | {m.tensor.name: m.tensor for m in modules}, Quantized(
        method, text, main_format(module.tensor for module in modules), tuple(notes)
    )
