"""Quantized checkpoints that are damaged, contradict themselves or are of another kind: one error that names what."""

import json
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.source import open_model
from octavo.model.weights import load_decoder
from tests.model.files import CopyPacker
from tests.model.quantized_files import SIZES, awq, checkpoint, float8, gptq, group_scheme, packed, plain_int8

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
W8A8 = group_scheme(8, strategy="channel", group=None, format="int-quantized")
MAKERS = {
    "gptq": (partial(gptq, group=64), GPTQ),
    "awq": (partial(awq, group=64), AWQ),
    "packed": (partial(packed, group=64, sym=False), group_scheme(group=64, sym=False)),
    "w8a8": (plain_int8, W8A8),
    "fp8": (
        partial(float8, scope="block", ending="weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
}
DOWN = "model.layers.0.mlp.down_proj"


def edited(directory, kind, change, quantization=None):
    """A checkpoint of a kind whose tensors `change` has had its way with."""
    make, said = MAKERS[kind]
    checkpoint(directory, make, {**said, **(quantization or {})})
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def load(directory):
    library = load_library()
    team = ThreadTeam(library, 1)
    try:
        return load_decoder(open_model(directory), NativePacker(library, team), max_positions=16)
    finally:
        team.close()


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("awq", "scales"),
        ("awq", "qzeros"),
        ("packed", "weight_scale"),
        ("packed", "weight_zero_point"),
        ("packed", "weight_shape"),
        ("w8a8", "weight_scale"),
        ("fp8", "weight_scale_inv"),
    ],
)
def test_a_part_that_is_missing_or_misshapen_is_named(kind, ending, tmp_path):
    name = f"{DOWN}.{ending}"
    with pytest.raises(CheckpointError, match=name):
        load(edited(tmp_path / "missing", kind, lambda tensors: tensors.pop(name)))

    def cut(tensors):
        tensors[name] = tensors[name].flatten()[1:].clone()

    with pytest.raises(CheckpointError, match=f"{name}.*(belong together|follows from)"):
        load(edited(tmp_path / "cut", kind, cut))

    def other_type(tensors):
        tensors[name] = tensors[name].to(torch.int16)

    with pytest.raises(CheckpointError, match=f"{name} is i16"):
        load(edited(tmp_path / "type", kind, other_type))


@pytest.mark.parametrize(("kind", "ending"), [("gptq", "scales"), ("packed", "weight_scale"), ("fp8", "weight")])
def test_numbers_that_are_none_are_named_with_their_row(kind, ending, tmp_path):
    def poison(tensors):
        values = tensors[f"{DOWN}.{ending}"]
        place = (2, 5) if kind == "gptq" else (5, 2)
        values[place] = torch.tensor(float("nan")).to(values.dtype)

    with pytest.raises(CheckpointError, match=rf"{DOWN}\.weight.*row 5 holds a NaN"):
        load(edited(tmp_path / kind, kind, poison))


@pytest.mark.parametrize(
    ("kind", "quantization", "words"),
    [
        ("gptq", {"bits": 5}, "5 bits is not supported; 2, 3, 4 and 8 are"),
        ("gptq", {"bits": "4"}, "bits should be a whole number"),
        ("gptq", {"group_size": 0}, "group_size 0; a positive number"),
        ("gptq", {"group_size": 80}, "no whole number of groups of 80"),
        ("gptq", {"group_size": 32}, "scales is .* but .* follows from"),
        ("gptq", {"bits": 8}, "follows from the other tensors"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format marlin is not supported; save the model as gptq"),
        ("gptq", {"checkpoint_format": "gptq_v2"}, "zero points other than 8.*checkpoint_format"),
        ("gptq", {"sym": "yes"}, "sym should be true or false"),
        ("awq", {"bits": 8}, "AWQ with 8 bits is not supported"),
        ("awq", {"version": "gemv_fast"}, "version gemv_fast is not supported; save the model as gemm or gemv"),
        ("awq", {"group_size": 80}, "no whole number of groups of 80"),
        ("packed", {"format": "nvfp4-pack-quantized"}, "format nvfp4-pack-quantized is not supported"),
        ("packed", {"config_groups": {}}, "has no config_groups"),
        ("packed", {"config_groups": {"group_0": {"targets": ["x"], "weights": {}}}}, "targets the quantized module"),
        ("packed", {"config_groups": {"group_0": {"targets": ["re:(("], "weights": {}}}}, "no regular expression"),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights are not supported"),
        ("fp8", {"weight_block_size": [64, 128]}, "is not blocks of 64 x 128"),
        ("fp8", {"weight_block_size": [0, 128]}, "should be two positive numbers"),
        ("fp8", {"weight_block_size": None}, "is not one scale, or one a row"),
        ("fp8", {"quant_method": "bitsandbytes"}, "bitsandbytes are not supported; use the unquantized model"),
        ("fp8", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo nvfp4 is not supported; FP8, FP8_PER"),
        ("fp8", {"quant_method": None}, "does not say its quant_method"),
    ],
)
def test_a_configuration_that_cannot_be(kind, quantization, words, tmp_path):
    with pytest.raises((CheckpointError, UnsupportedError), match=words):
        load(edited(tmp_path, kind, lambda tensors: None, quantization))


def test_bitsandbytes_without_a_name_is_known(tmp_path):
    checkpoint(tmp_path, plain_int8, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})
    with pytest.raises(UnsupportedError, match="checkpoints of bitsandbytes are not supported"):
        open_model(tmp_path)


@pytest.mark.parametrize("group", [-1, 6, 2**30])  # 384 inputs in groups of 64 are 6
def test_a_group_out_of_range(group, tmp_path):
    def move(tensors):
        tensors[f"{DOWN}.g_idx"][17] = group

    with pytest.raises(CheckpointError, match=rf"{DOWN}\.g_idx names groups .* but there are 6"):
        load(edited(tmp_path, "gptq", move))


def test_groups_of_unlike_sizes_are_expanded_and_told(tmp_path):
    """No tool writes them, but what they mean is clear."""

    def move(tensors):
        tensors[f"{DOWN}.g_idx"][0] = 1

    source = open_model(edited(tmp_path, "gptq", move))
    assert source.tensors[f"{DOWN}.weight"].format == "f32"
    assert source.quantized.notes == ("1 matrices are expanded to f32: its groups are of unlike sizes",)
    values = source.tensors[f"{DOWN}.weight"].rows(3, 1).view(np.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    code = int(tensors[f"{DOWN}.qweight"][0, 3]) & 15
    assert values[0, 0] == np.float32(tensors[f"{DOWN}.scales"][1, 3].item()) * (code - 8)


def test_a_truncated_file(tmp_path):
    directory = edited(tmp_path, "awq", lambda tensors: None)
    data = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(data[:-1000])
    with pytest.raises(CheckpointError, match="truncated"):
        open_model(directory)


def test_a_quantized_model_without_its_configuration_names_what_is_too_many(tmp_path):
    checkpoint(tmp_path, partial(gptq, group=64))
    with pytest.raises(CheckpointError, match=r"missing tensors: .*q_proj\.weight.*surplus tensors: .*qweight"):
        load(tmp_path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_damage_gives_an_error_or_a_sound_model(data, tmp_path):
    """Tensors that are dropped, cut, reshaped, retyped or swapped, and configurations with other values."""
    kind = data.draw(st.sampled_from(sorted(MAKERS)))
    directory = tmp_path / kind
    if not directory.exists():
        checkpoint(directory, *MAKERS[kind], {**SIZES, "intermediate_size": 256})
        (directory / "config.kept").write_text((directory / "config.json").read_text())
        (directory / "model.safetensors").rename(directory / "kept.bin")
    tensors = load_file(directory / "kept.bin")
    config = json.loads((directory / "config.kept").read_text())
    quantization = config["quantization_config"]
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(name for name in tensors if "_proj" in name)))
        tensor = tensors[name]
        change = data.draw(st.sampled_from(["drop", "cut", "turn", "type", "take", "say"]))
        if change == "drop":
            del tensors[name]
        elif change == "cut":
            tensors[name] = tensor[: data.draw(st.integers(0, max(len(tensor) - 1, 0)))].clone()
        elif change == "turn":
            tensors[name] = tensor.t().contiguous() if tensor.dim() == 2 else tensor[None]
        elif change == "type":
            tensors[name] = tensor.to(data.draw(st.sampled_from([torch.int32, torch.float16, torch.uint8])))
        elif change == "take":
            tensors[name] = tensors[data.draw(st.sampled_from(sorted(tensors)))].clone()
        else:
            key = data.draw(st.sampled_from(sorted(quantization)))
            quantization[key] = data.draw(st.sampled_from([None, 0, -1, 3, 8, 48, True, "x", [], [7, 7], {}]))
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    with suppress(OctavoError):
        load_decoder(open_model(directory), CopyPacker(), max_positions=16)
