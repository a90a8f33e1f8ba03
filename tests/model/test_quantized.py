"""Quantized checkpoints load as they are: every value the file's, every format computed with, nothing expanded."""

import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch

from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.source import open_model
from octavo.model.weight_cache import WeightCache
from octavo.model.weight_plan import plan_load
from octavo.model.weights import load_decoder
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.span_rows import in_order
from tests.families.harness import logits_of
from tests.model.quantized_files import (
    SIZES,
    awq,
    checkpoint,
    float8,
    gptq,
    group_scheme,
    packed,
    plain_int8,
    shapes,
    write,
)

FP8 = {"quant_method": "fp8"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}


def gptq_case(format, **options):
    said = {"quant_method": "gptq", "bits": options.get("bits", 4), "group_size": options.get("group", 128)}
    said |= {"sym": options.get("sym", True), "desc_act": options.get("act_order", False)}
    said |= {"checkpoint_format": "gptq_v2"} if options.get("v2") else {}
    return partial(gptq, **options), said, format


def awq_case(format, **options):
    said = {"quant_method": "awq", "bits": 4, "group_size": options.get("group", 128), "zero_point": True}
    return partial(awq, **options), said | {"version": options.get("version", "gemm").upper()}, format


def packed_case(format, **options):
    group = options.get("group", 128)
    strategy = "group" if group > 0 else "channel"
    said = group_scheme(options.get("bits", 4), "int", options.get("sym", True), strategy, group if group > 0 else None)
    return partial(packed, **options), said, format


def float_case(format, scope, quantization=FP8, **options):
    return partial(float8, scope=scope, **options), quantization, format


CASES = {
    "gptq": gptq_case("int4_g128_f16"),
    "gptq-32": gptq_case("int4_g32_f16", group=32),
    "gptq-64-bf16": gptq_case("int4_g64_bf16", group=64, dtype=torch.bfloat16),
    "gptq-row": gptq_case("int4_row_f16", group=-1),
    "gptq-asymmetric": gptq_case("int4z_g128_f16", sym=False),
    "gptq-v2-asymmetric": gptq_case("int4z_g64_f16", sym=False, v2=True, group=64),
    "gptq-order": gptq_case("int4_g64_f16_ordered", act_order=True, group=64),
    "gptq-order-asymmetric": gptq_case("int4z_g32_f16_ordered", act_order=True, group=32, sym=False),
    "gptq-8": gptq_case("int8_g128_f16", bits=8),
    "gptq-8-asymmetric": gptq_case("int8z_g64_f16", bits=8, sym=False, group=64),
    "gptq-3": gptq_case("int4_g128_f16", bits=3),
    "gptq-2-asymmetric": gptq_case("int4z_g32_f16", bits=2, sym=False, group=32),
    "awq": awq_case("int4z_g128_f16"),
    "awq-32": awq_case("int4z_g32_f16", group=32),
    "awq-gemv": awq_case("int4z_g64_f16", group=64, version="gemv"),
    "packed": packed_case("int4_g128_bf16"),
    "packed-row": packed_case("int4_row_bf16", group=-1),
    "packed-asymmetric": packed_case("int4z_g32_bf16", group=32, sym=False),
    "packed-order": packed_case("int4_g64_f16_ordered", group=64, order=True, dtype=torch.float16),
    "packed-8": packed_case("int8_row_bf16", bits=8, group=-1),
    "packed-8-asymmetric": packed_case("int8z_g64_f32", bits=8, group=64, sym=False, dtype=torch.float32),
    "packed-5": packed_case("int8_g32_bf16", bits=5, group=32),
    "packed-3-asymmetric": packed_case("int4z_row_bf16", bits=3, group=-1, sym=False),
    "w8a8": (plain_int8, group_scheme(8, strategy="channel", group=None, format="int-quantized"), "int8_row_bf16"),
    "w8a8-asymmetric": (
        partial(plain_int8, sym=False),
        group_scheme(8, sym=False, strategy="channel", group=None, format="int-quantized"),
        "int8z_row_bf16",
    ),
    "w8a8-tensor": (
        partial(plain_int8, scope="tensor"),
        group_scheme(8, strategy="tensor", group=None, format="int-quantized"),
        "int8_row_bf16",
    ),
    "fp8-tensor": float_case("e4m3_row_f32", "tensor"),
    "fp8-scalar": float_case("e4m3_row_f32", "scalar"),
    "fp8-rows": float_case("e4m3_row_f32", "row"),
    "fp8-blocks": float_case("e4m3_g128_shared", "block", BLOCKS, ending="weight_scale_inv"),
    "fp8-uneven-blocks": float_case(
        "e4m3_g32_f32", "block", FP8 | {"weight_block_size": [40, 32]}, ending="weight_scale_inv", block=(40, 32)
    ),
    "fbgemm": float_case("e4m3_row_f32", "channel", {"quant_method": "fbgemm_fp8"}),
    "modelopt": float_case("e4m3_row_f32", "tensor", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "compressed-fp8": float_case(
        "e4m3_row_f32",
        "channel",
        group_scheme(8, "float", strategy="channel", group=None, format="float-quantized"),
        dtype=torch.bfloat16,
    ),
    "compressed-fp8-blocks": float_case(
        "e4m3_g128_shared",
        "block",
        group_scheme(8, "float", strategy="block", group=None, format="float-quantized", block_structure=[128, 128]),
    ),
}


def matrices_of(directory):
    """Tensor name -> values by input, of every matrix of the load plan; and the formats of the layers'."""
    source = open_model(directory)
    plan = plan_load(source.spec, source.weights, source.tensors)
    found, formats = {}, set()
    for matrix in plan.matrices:
        for part in matrix.slices:
            stored = part.read()
            values = in_order(dequantize(stored.format, stored.data, stored.shape), stored.order)
            found.setdefault(part.tensor.name, []).append(values)
            formats |= {stored.format} if matrix.name.startswith("layers.") else set()
    return {name: np.concatenate(parts) for name, parts in found.items()}, formats


@pytest.mark.parametrize("name", CASES)
def test_every_value_is_the_files_and_every_product_uses_it(name, tmp_path):
    make, quantization, format = CASES[name]
    floats = checkpoint(tmp_path / "quantized", make, quantization)
    matrices, formats = matrices_of(tmp_path / "quantized")
    assert formats == {format}
    for tensor, values in matrices.items():
        np.testing.assert_array_equal(values, floats[tensor], err_msg=tensor)
    write(tmp_path / "floats", floats, SIZES)
    ids = [1, 5, 60, 33, 2, 9, 41]
    expected = logits_of(tmp_path / "floats", ids, "native")
    actual = logits_of(tmp_path / "quantized", ids, "native")
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())


GPTQ_KINDS = list(itertools.product((False, True), (32, 128, -1), (True, False), (False, True), (4, 8)))


@pytest.mark.parametrize(("act_order", "group", "sym", "v2", "bits"), GPTQ_KINDS)
def test_every_kind_of_gptq_is_read_by_the_group_of_each_row(act_order, group, sym, v2, bits, tmp_path):
    options = {"act_order": act_order, "group": group, "sym": sym, "v2": v2, "bits": bits}
    make, said, _ = gptq_case("", **options)
    config = {**SIZES, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}
    floats = checkpoint(tmp_path, make, said, config)
    matrices, _ = matrices_of(tmp_path)
    for tensor, values in matrices.items():
        np.testing.assert_array_equal(values, floats[tensor], err_msg=tensor)


def test_one_model_in_files_of_several_schemes(tmp_path):
    """Sharded, a tied embedding, a module left unquantized, scales that nobody needs, and a scheme for each module."""
    kinds = {"q_proj": partial(packed, group=64), "down_proj": plain_int8}
    names = iter(shapes())

    def make(rng, rows, columns):
        name = next(names).rpartition(".")[2]
        return kinds[name](rng, rows, columns) if name in kinds else as_floats(rng, rows, columns)

    said = group_scheme(group=64)
    said["config_groups"]["group_1"] = {
        "targets": [r"re:.*down_proj"],
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
    }
    config = {**SIZES, "tie_word_embeddings": True}
    extra = {"k_scale": np.ones(1, np.float32), "input_scale": np.ones(1, np.float32)}
    floats = checkpoint(tmp_path / "quantized", make, said, config, extra=extra, shards=3)
    matrices, formats = matrices_of(tmp_path / "quantized")
    assert formats == {"int4_g64_bf16", "int8_row_bf16", "f32"}
    for tensor, values in matrices.items():
        np.testing.assert_array_equal(values, floats[tensor], err_msg=tensor)
    notes = open_model(tmp_path / "quantized").quantized.notes
    assert notes == ("7 scales of keys in the file are not needed", "7 scales of inputs in the file are not needed")


def as_floats(rng, rows, columns):
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    return {"weight": values}, values


@pytest.mark.parametrize("name", ["quantize_config.json", "hf_quant_config.json"])
def test_the_configuration_may_be_in_a_file_of_its_own(name, tmp_path):
    if name == "quantize_config.json":
        make, said = partial(gptq, group=64), {"bits": 4, "group_size": 64, "sym": True, "desc_act": False}
    else:
        make = partial(float8, scope="scalar")
        said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    floats = checkpoint(tmp_path, make)
    (tmp_path / name).write_text(json.dumps(said))
    matrices, _ = matrices_of(tmp_path)
    for tensor, values in matrices.items():
        np.testing.assert_array_equal(values, floats[tensor], err_msg=tensor)


@pytest.mark.parametrize("width", [40, 48])
def test_widths_that_no_kernel_has_are_expanded_and_told(width, tmp_path):
    config = {**SIZES, "hidden_size": 64, "intermediate_size": width}
    floats = checkpoint(tmp_path, partial(awq, group=8), {"quant_method": "awq", "group_size": 8}, config)
    matrices, formats = matrices_of(tmp_path)
    assert formats == {"f32"}
    for tensor, values in matrices.items():
        np.testing.assert_array_equal(values, floats[tensor], err_msg=tensor)
    assert len(open_model(tmp_path).quantized.notes) == 2


def test_the_cache_keeps_orders_and_scales(tmp_path):
    make, said, _ = CASES["gptq-order-asymmetric"]
    checkpoint(tmp_path / "model", make, said)
    library = load_library()
    team = ThreadTeam(library, 1)
    packer, cache = NativePacker(library, team), WeightCache(tmp_path / "cache", 1 << 30)
    source = open_model(tmp_path / "model")
    first = load_decoder(source, packer, max_positions=16, cache=cache)
    cache.wait()
    second = load_decoder(open_model(tmp_path / "model"), packer, max_positions=16, cache=cache)
    assert (first.from_cache, second.from_cache) == (False, True)
    for before, after in zip(segments_of(first), segments_of(second), strict=True):
        assert before.format == after.format
        np.testing.assert_array_equal(before.data, after.data)
    quantization = {**said, "checkpoint_format": "gptq_v2"}
    write_config(tmp_path / "model", {**SIZES, "quantization_config": quantization})
    assert not load_decoder(open_model(tmp_path / "model"), packer, max_positions=16, cache=cache).from_cache
    cache.wait()
    team.close()


def segments_of(loaded):
    bodies = [block.branches[0].body for block in loaded.weights.layers[0].blocks]
    return [*bodies[0].qkv.segments, *bodies[0].out.segments, *bodies[1].up.segments, *bodies[1].down.segments]


def write_config(directory, config):
    (directory / "config.json").write_text(json.dumps(config))
