"""Words that other tools packed, kept as they wrote them, and configurations as they write them: read to the number.

The words are of the tools' own functions (named with their versions at each), of codes that a formula gives.
"""

import numpy as np
import pytest
import torch

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.quantized.config import QuantizationConfig
from octavo.model.checkpoint.quantized.methods import read_quantized
from octavo.ops.weight import StoredTensor
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.span_rows import in_order
from tests.model.quantized_files import gptq, group_scheme, packed_rows

FORMATS = {"int32": "i32", "int64": "i64", "float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8"}
ROWS, COLUMNS = 12, 32

# compressed_tensors.compressors.pack_quantized.helpers.pack_to_int32(codes, 3) and (zero points, 3, packed_dim=0).
DENSE = (  # 0.19.0: codes without gaps
    [[983391912, 395101811, 1413094927], [-243741593, -2059165216, 866768362], [-1470875106, 1933221214, 253201606],
     [1731439061, -521045812, -360365151], [504305548, 1588089914, -965526883], [-706050749, -865651799, -1579093640],
     [-1933151430, 975048471, -1654740908], [1134682353, -1445598587, 2026661683], [983391912, 395101811, 1413094927],
     [-243741593, -2059165216, 866768362], [-1470875106, 1933221214, 253201606],
     [1731439061, -521045812, -360365151]],
    [[-1733573736], [3]],
)  # fmt: skip
WHOLE = (  # 0.17.0: ten codes to a word
    [[983391912, 506665420, 60940529, 21], [830000231, 353273731, 983391912, 12], [676608542, 216692090, 830000231, 3],
     [657697237, 63300401, 676608542, 58], [504305548, 983650536, 657697237, 49], [367691075, 832360103, 504305548, 40],
     [214332218, 678968414, 367691075, 39], [60940529, 660056597, 214332218, 30], [983391912, 506665420, 60940529, 21],
     [830000231, 353273731, 983391912, 12], [676608542, 216692090, 830000231, 3], [657697237, 63300401, 676608542, 58]],
    [[413909912], [14]],
)  # fmt: skip


def tensors_of(module, arrays):
    """Tensors as a file has them."""
    found = {}
    for ending, array in arrays.items():
        array = np.ascontiguousarray(array)
        name = f"{module}.{ending}"
        format = "f8_e4m3" if (ending, array.dtype.name) == ("weight", "uint8") else FORMATS[array.dtype.name]
        found[name] = StoredTensor(name, format, array.shape, array.reshape(-1).view(np.uint8))
    return found


def weights_of(quantization, arrays, module="model.layers.0.mlp.up_proj"):
    """The values of a module [out, in], and the format they are kept in."""
    config = QuantizationConfig(quantization["quant_method"], quantization, "config.json")
    tensors, _ = read_quantized(config, tensors_of(module, arrays))
    stored = tensors[f"{module}.weight"]
    rows = stored.rows(0, stored.shape[0])
    return in_order(dequantize(stored.format, rows, stored.shape), stored.order), stored.format


@pytest.mark.parametrize("words", [DENSE, WHOLE], ids=["0.19.0", "0.17.0"])
def test_three_bits_of_both_packings_of_compressed_tensors(words):
    row, column = np.mgrid[:ROWS, :COLUMNS]
    codes = (row * 7 + column * 5 + column // 4) % 8 - 4
    zeros = np.arange(ROWS)[:, None] * 3 % 8 - 4
    scales = np.linspace(0.5, 2, ROWS, dtype=np.float32)[:, None]
    arrays = {
        "weight_packed": np.array(words[0], np.int32),
        "weight_zero_point": np.array(words[1], np.int32),
        "weight_scale": scales,
        "weight_shape": np.array([ROWS, COLUMNS]),
    }
    said = group_scheme(3, sym=False, strategy="channel", group=None)
    values, _ = weights_of(said, arrays)
    np.testing.assert_array_equal(values, scales * (codes - zeros).astype(np.float32))
    del arrays["weight_zero_point"]
    values, _ = weights_of(group_scheme(3, strategy="channel", group=None), arrays)
    np.testing.assert_array_equal(values, scales * codes.astype(np.float32))


def test_plain_codes_whose_groups_stand_apart():
    """compressed-tensors to 0.17: actorder "group" beside int-quantized."""
    rng = np.random.default_rng(3)
    codes, groups = rng.integers(-128, 128, (16, 64)).astype(np.int8), rng.permutation(np.arange(64) // 32)
    scales = rng.uniform(0.5, 2, (16, 2)).astype(np.float32)
    arrays = {"weight": codes, "weight_scale": scales, "weight_g_idx": groups.astype(np.int32)}
    values, format = weights_of(group_scheme(8, group=32, format="int-quantized"), arrays)
    assert format == "int8_g32_f32_ordered"
    np.testing.assert_array_equal(values, codes * scales[:, groups])


def test_one_zero_point_for_a_packed_matrix_is_not_packed():
    rng = np.random.default_rng(3)
    codes = rng.integers(-8, 8, (16, 64))
    arrays = {
        "weight_packed": packed_rows(codes + 8, 4),
        "weight_scale": np.array([0.5], np.float32),
        "weight_zero_point": np.array([-3], np.int8),
        "weight_shape": np.array([16, 64]),
    }
    values, _ = weights_of(group_scheme(sym=False, strategy="tensor", group=None), arrays)
    np.testing.assert_array_equal(values, 0.5 * (codes + 3))


def test_weights_that_inputs_are_turned_for_are_refused():
    said = group_scheme() | {"transform_config": {"config_groups": {"v": {"type": "hadamard", "apply": []}}}}
    with pytest.raises(UnsupportedError, match=r"transform_config turns inputs .* quantized without transforms"):
        weights_of(said, {})
    plain = {"weight": np.ones((16, 64), np.float32)}
    assert weights_of(group_scheme() | {"transform_config": {}}, plain)[1] == "f32"


def test_groups_of_inputs_alone_change_nothing():
    """llm-compressor's schemes of attention and caches: inputs are not rounded here."""
    said = group_scheme(8, group=32, format="int-quantized")
    said["config_groups"]["attention"] = {"targets": ["re:.*self_attn$"], "weights": None, "input_activations": {}}
    codes, scales = np.arange(64, dtype=np.int8).reshape(1, 64).repeat(16, axis=0), np.ones((16, 2), np.float32)
    values, _ = weights_of(said, {"weight": codes, "weight_scale": scales})
    np.testing.assert_array_equal(values, codes)
    del said["config_groups"]["group_0"]
    assert weights_of(said, {"weight": scales})[1] == "f32"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("model.layers.0.mlp.down_proj", {"bits": 8, "group": 32}),
        ("model.layers.1.mlp.down_proj", {"bits": 8, "group": 32}),
        ("model.layers.0.mlp.gate_proj", {"sym": False, "group": 64}),
        ("model.layers.1.mlp.gate_proj", {"group": 64}),
    ],
)
def test_modules_with_bits_and_groups_of_their_own(module, options):
    """As GPTQModel 7.7.0 writes it: patterns with and without a sign, the first that matches decides."""
    said = {
        "quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False,
        "dynamic": {
            "-:.*layers\\.1\\..*o_proj.*": {},
            "+:.*\\.down_proj.*": {"bits": 8, "group_size": 32},
            ".*\\.0\\..*_proj": {"sym": False},
        },
    }  # fmt: skip
    arrays, values = gptq(np.random.default_rng(5), 32, 64, **options)
    arrays = arrays | {"scales": arrays["scales"].numpy()}
    np.testing.assert_array_equal(weights_of(said, arrays, module)[0], values)


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ([1], "dynamic should be an object of patterns"),
        ({"+:x": 3}, "dynamic '\\+:x' is no object"),
        ({"+:((": {}}, "dynamic '\\+:\\(\\(' is no regular expression"),
        ({"+:x": {"bits": 5}}, "dynamic '\\+:x': GPTQ with 5 bits is not supported"),
    ],
)
def test_overrides_that_cannot_be(dynamic, words):
    said = {"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": dynamic}
    arrays, _ = gptq(np.random.default_rng(5), 32, 64, group=64)
    with pytest.raises((CheckpointError, UnsupportedError), match=words):
        weights_of(said, arrays | {"scales": arrays["scales"].numpy()})


AUTOROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": True, "data_type": "int",
    "packing_format": "auto_round:auto_gptq",
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, {"group": 64}),
        ({"packing_format": "auto_round", "sym": False}, {"group": 64, "sym": False, "v2": True}),
        ({"packing_format": "auto_round", "sym": False, "model_free": True}, {"group": 64, "sym": False}),
        ({"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 8, "group_size": 32}}}, {"bits": 8, "group": 32}),
        ({"extra_config": {".*up_proj": {"bits": 2, "group_size": 32}}}, {"bits": 2, "group": 32}),
        ({"extra_config": {"model.layers.0.mlp.up": {"bits": 8}, "lm_head": {"bits": 16}}}, {"group": 64}),
    ],
)
def test_autoround_files(more, options):
    arrays, values = gptq(np.random.default_rng(5), 32, 64, **options)
    arrays = arrays | {"scales": arrays["scales"].numpy()}
    np.testing.assert_array_equal(weights_of(AUTOROUND | more, arrays)[0], values)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"data_type": "mx_fp", "packing_format": "auto_round:llm_compressor"},
            "mx_fp .* export it with data type int",
        ),
        ({"packing_format": "auto_round:auto_awq", "extra_config": {"x": {"bits": 8}}}, "extra_config gives x bits"),
        ({"extra_config": {"x": 8}}, "extra_config should have an object for each module"),
    ],
)
def test_autoround_files_that_are_refused(more, words):
    with pytest.raises((CheckpointError, UnsupportedError), match=words):
        weights_of(AUTOROUND | more, {})


@pytest.mark.parametrize("kind", ["modelopt", "compressed-tensors"])
def test_scales_that_are_powers_of_two_in_a_byte(kind):
    """MXFP8: compressed-tensors and ModelOpt write the exponent plus 127, OCP's e8m0, as unsigned bytes."""
    rng = np.random.default_rng(5)
    codes, powers = rng.integers(0, 126, (16, 64)).astype(np.uint8), rng.integers(-9, 3, (16, 2))
    arrays = {"weight": codes, "weight_scale": (powers + 127).astype(np.uint8)}
    said = {"quant_method": kind, "quant_algo": "MXFP8"}
    if kind != "modelopt":
        said = group_scheme(8, "float", group=32, format="mxfp8-quantized")
    values, format = weights_of(said, arrays)
    assert format == "e4m3_g32_f32"
    np.testing.assert_array_equal(values, np.ldexp(e4m3(codes), powers[:, np.arange(64) // 32]))


def test_blocks_of_modelopt_keep_four_axes():
    rng = np.random.default_rng(5)
    codes, scales = rng.integers(0, 126, (160, 256)).astype(np.uint8), rng.uniform(0.5, 2, (2, 1, 2, 1))
    arrays = {"weight": codes, "weight_scale": scales.astype(np.float32)}
    values, _ = weights_of({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, arrays)
    wide = arrays["weight_scale"][np.arange(160)[:, None] // 128, 0, np.arange(256) // 128, 0]
    np.testing.assert_array_equal(values, e4m3(codes) * wide)


def e4m3(codes):
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
