"""AutoRound checkpoints: GPTQ's, AWQ's or fp8's tensors, by the packing_format they name.

Layout: AutoRound's export. "auto_round:auto_gptq" stores zero points less one, "auto_round" as they are, but for files
made with "model_free" (0.15, whatever they name); "extra_config" has other bits and groups for modules, by name or by
pattern.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.quantized import awq, float8, gptq
from octavo.model.checkpoint.quantized.config import QuantizationConfig
from octavo.model.checkpoint.quantized.module import Module
from octavo.ops.weight import StoredTensor

_PATTERN = re.compile(r"[*+?^$()\[\]{}|\\]")
_WHOLE = 16  # bits of a module that is not rounded


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    method, said = _as_known(config)
    return f"AutoRound, {method.describe(said)}"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every quantized module.

    Raises:
        UnsupportedError, CheckpointError: as those methods.
    """
    method, said = _as_known(config)
    return method.read_modules(said, tensors)


def _as_known(config: QuantizationConfig) -> tuple[Any, QuantizationConfig]:
    """The method whose tensors these are, and its configuration."""
    packing, kind = config.text("packing_format", "auto_round:auto_gptq"), config.text("data_type", "int")
    fields = dict(config.fields)
    if "awq" in packing and kind == "int":
        _refuse_mixed(config)
        return awq, QuantizationConfig("awq", {**fields, "version": "gemm"}, config.where)
    if kind == "int":
        less_one = "auto_gptq" in packing or packing in ("auto", "auto_round:gptq") or config.flag("model_free", False)
        stored = "gptq" if less_one else "gptq_v2"
        dynamic = {_as_pattern(name): said for name, said in _extra(config).items() if _bits(said) < _WHOLE}
        return gptq, QuantizationConfig(
            "gptq", {**fields, "checkpoint_format": stored, "desc_act": False, "dynamic": dynamic}, config.where
        )
    if kind in ("fp", "fp8", "fp8_e4m3") and config.integer("bits", 8) == 8:
        sizes = config.fields.get("group_size")
        return float8, QuantizationConfig(
            "fp8", {**fields, "weight_block_size": sizes if isinstance(sizes, list) else None}, config.where
        )
    raise UnsupportedError(
        f"{config.where}: AutoRound's {kind} in packing_format {packing} is not supported; export it with data "
        "type int as auto_round:auto_gptq, auto_gptq or auto_awq"
    )


def _extra(config: QuantizationConfig) -> dict[str, dict[str, Any]]:
    said = config.fields.get("extra_config") or {}
    if not isinstance(said, dict) or not all(
        isinstance(fields, dict) for fields in cast(dict[str, Any], said).values()
    ):
        raise CheckpointError(f"{config.where}: extra_config should have an object for each module, not {said!r}")
    return {name: {k: v for k, v in fields.items() if v is not None} for name, fields in cast(Any, said).items()}


def _as_pattern(name: str) -> str:
    """A module's name, or a pattern that is anywhere in it, as a pattern for its beginning."""
    return f"+:.*(?:{name})" if _PATTERN.search(name) else f"+:{re.escape(name)}$"


def _bits(said: Mapping[str, Any]) -> int:
    bits = said.get("bits", 0)
    return bits if isinstance(bits, int) else 0


def _refuse_mixed(config: QuantizationConfig) -> None:
    for name, said in _extra(config).items():
        other = [
            key
            for key in ("bits", "group_size", "sym")
            if said.get(key, config.fields.get(key)) != config.fields.get(key)
        ]
        if other and _bits(said) < _WHOLE:
            raise UnsupportedError(
                f"{config.where}: extra_config gives {name} {other[0]} of its own, which is not read in AWQ's packing; "
                "export the model as auto_round:auto_gptq"
            )
