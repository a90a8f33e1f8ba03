"""Loading: every weight in its place, and every way a checkpoint can be wrong named."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model import weight_plan
from octavo.model.source import open_model
from octavo.model.weights import load_decoder
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize
from tests.model.files import TINY, PlainPacker, llama_shapes, safetensors_bytes, tiny_tensors, write_model


def values_of(packed):
    parts = [dequantize(s.format, s.data, (s.rows, packed.shape[1])) for s in packed.segments]
    return np.concatenate(parts)


def load(directory, **options):
    return load_decoder(open_model(directory), PlainPacker(), **options)


def test_q_k_and_v_and_gate_and_up_are_stacked(tmp_path):
    tensors = tiny_tensors()
    loaded = load(write_model(tmp_path, tensors), max_positions=32)
    attention, mlp = (block.branches[0].body for block in loaded.weights.layers[1].blocks)
    parts = [tensors[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(values_of(attention.qkv), np.concatenate(parts))
    parts = [tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    np.testing.assert_array_equal(values_of(mlp.up), np.concatenate(parts))
    norm = loaded.weights.layers[1].blocks[1].branches[0].norm
    np.testing.assert_array_equal(norm.weight, tensors["model.layers.1.post_attention_layernorm.weight"])
    (rope,) = loaded.ropes.values()
    assert rope.cos.shape == (32, 8)
    assert not loaded.from_cache


@pytest.mark.parametrize(("key", "copy", "tied"), [(True, False, True), (True, True, True), (None, False, True)])
def test_a_tied_head_is_the_embedding(key, copy, tied, tmp_path):
    tensors = tiny_tensors()
    if not copy:
        del tensors["lm_head.weight"]
    config = TINY if key is None else TINY | {"tie_word_embeddings": key}
    weights = load(write_model(tmp_path, tensors, config)).weights
    assert (weights.head is weights.embed) == tied


def test_a_head_of_its_own_is_missed_when_the_config_says_so(tmp_path):
    tensors = tiny_tensors()
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"1 missing tensor: lm_head\.weight"):
        load(write_model(tmp_path, tensors, TINY | {"tie_word_embeddings": False}))


def test_shards_that_were_not_downloaded_whole_are_named(tmp_path, caplog):
    tensors = tiny_tensors()
    names = list(tensors)
    first, second = ({name: tensors[name] for name in part} for part in (names[:9], names[9:]))
    index = {name: "one.safetensors" if name in first else "two.safetensors" for name in names}

    def made(name, **changes):
        directory = tmp_path / name
        directory.mkdir()
        files = {"one.safetensors": safetensors_bytes(first), "two.safetensors": safetensors_bytes(second), **changes}
        for file, data in files.items():
            if data is not None:
                (directory / file.replace("_", ".")).write_bytes(data)
        (directory / "config.json").write_text(json.dumps(TINY))
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        return directory

    whole = load(made("whole"), max_positions=32)
    stray = made("stray", **{"old.safetensors": safetensors_bytes({names[0]: np.zeros((50, 64), np.float32)})})
    with caplog.at_level("WARNING"):
        np.testing.assert_array_equal(values_of(load(stray).weights.embed), values_of(whole.weights.embed))
    assert "files that the index does not name are not read: old.safetensors" in caplog.text
    with pytest.raises(CheckpointError, match=r"not there: two\.safetensors"):
        load(made("gone", **{"two.safetensors": None}))
    with pytest.raises(CheckpointError, match="should lie at"):
        load(made("short", **{"two.safetensors": safetensors_bytes(second)[:-1024]}))
    last = names[-1]
    with pytest.raises(CheckpointError, match=f"1 missing tensor: {last}"):
        load(made("absent", **{"two.safetensors": safetensors_bytes({k: v for k, v in second.items() if k != last})}))


def test_what_is_missing_surplus_and_misshapen_is_told_at_once(tmp_path):
    tensors = tiny_tensors()
    del tensors["model.norm.weight"]
    del tensors["model.layers.0.self_attn.k_proj.weight"]
    tensors["model.layers.9.extra.weight"] = np.zeros(3, np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)  # known, and not needed
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((64, 96), np.float32)
    with pytest.raises(CheckpointError) as caught:
        load(write_model(tmp_path, tensors))
    message = str(caught.value)
    assert "2 missing tensors: model.layers.0.self_attn.k_proj.weight, model.norm.weight" in message
    assert "1 surplus tensor: model.layers.9.extra.weight" in message
    assert "model.layers.1.mlp.up_proj.weight is [64, 96], not [96, 64]" in message
    assert "inv_freq" not in message


def test_many_problems_are_counted_and_ten_are_named(tmp_path):
    tensors = tiny_tensors() | {f"junk.{i}": np.zeros(1, np.float32) for i in range(25)}
    with pytest.raises(CheckpointError, match=r"25 surplus tensors: junk\.0, .*junk\.9 and 15 more"):
        load(write_model(tmp_path, tensors))


def test_nan_and_infinity_are_named(tmp_path):
    tensors = tiny_tensors()
    tensors["model.layers.0.mlp.down_proj.weight"][3, 4] = np.nan
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 0] = np.inf
    with pytest.raises(CheckpointError) as caught:
        load(write_model(tmp_path, tensors))
    assert "model.layers.0.mlp.down_proj.weight, model.layers.1.self_attn.v_proj.weight" in str(caught.value)
    tensors = tiny_tensors()
    tensors["model.norm.weight"][1] = -np.inf
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        load(write_model(tmp_path, tensors))


def test_weights_that_cannot_be_computed_with_are_named(tmp_path):
    tensors = tiny_tensors()
    tensors["model.norm.weight"] = np.zeros(64, np.int64)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is i64; a vector of floats"):
        load(write_model(tmp_path, tensors))


@pytest.mark.parametrize(("dtype", "format"), [("auto", "f32"), ("bfloat16", "bf16"), ("float16", "f16")])
def test_float_matrices_are_converted_only_when_asked(dtype, format, tmp_path):
    tensors = tiny_tensors()
    weights = load(write_model(tmp_path, tensors), dtype=dtype).weights
    assert weights.embed.formats == (format,)
    expected = tensors["model.embed_tokens.weight"]
    if format == "bf16":
        expected = (bf16_from_f32(expected).astype(np.uint32) << 16).view(np.float32)
    if format == "f16":
        expected = expected.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(values_of(weights.embed), expected)


def test_a_value_too_large_for_the_asked_type_is_an_error(tmp_path):
    tensors = tiny_tensors()
    tensors["model.embed_tokens.weight"][7, 7] = 1e6
    with pytest.raises(CheckpointError, match="embed_tokens"):
        load(write_model(tmp_path, tensors), dtype="float16")


def test_large_tensors_are_read_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_plan, "SLICE_BYTES", 64 * 64 * 4)
    config = TINY | {"vocab_size": 200}
    tensors = tiny_tensors(config)
    embed = load(write_model(tmp_path, tensors, config)).weights.embed
    assert [segment.rows for segment in embed.segments] == [64, 64, 64, 8]
    np.testing.assert_array_equal(values_of(embed), tensors["model.embed_tokens.weight"])


def test_quantized_checkpoints_of_other_kinds_are_refused(tmp_path):
    config = TINY | {"quantization_config": {"quant_method": "hqq"}}
    with pytest.raises(UnsupportedError, match="hqq are not supported; use the unquantized model"):
        open_model(write_model(tmp_path, tiny_tensors(), config))


_MEASURE = """
import sys
from pathlib import Path
import numpy as np
from octavo.model.source import open_model
from octavo.model.weights import load_decoder
from tests.model.files import CopyPacker

source = open_model(Path(sys.argv[1]))
resident = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])
loaded = load_decoder(source, CopyPacker(), max_positions=16)
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(peak - resident)
"""


def test_peak_memory_stays_near_the_weights(tmp_path):
    """A 200 MB checkpoint full of zeros (a sparse file), measured in a process of its own."""
    config = TINY | {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 49152, "num_attention_heads": 8}
    config |= {"tie_word_embeddings": True}
    shapes = llama_shapes(config)
    del shapes["lm_head.weight"]
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + offset)
    run = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert offset > 150e6
    assert int(run.stdout) * 1024 < offset * 1.15


@pytest.mark.parametrize(
    ("scheme", "inside", "bits"), [("int8", "int8_row_f32_rotated", 8), ("int4", "int4s_row_f32_rotated", 4)]
)
def test_unquantized_matrices_are_rounded_when_asked(scheme, inside, bits, tmp_path):
    tensors = tiny_tensors()
    weights = load(write_model(tmp_path, tensors), scheme=scheme).weights
    attention, mlp = (block.branches[0].body for block in weights.layers[1].blocks)
    assert set(attention.qkv.formats) | set(mlp.up.formats) == {inside}
    assert set(mlp.down.formats) == {{"int8": "q8_0", "int4": "q4_1"}[scheme]}  # 96 inputs, no multiple of 64
    assert set(weights.embed.formats) | set(weights.head.formats) == {"int8_row_f32_rotated"}
    exact = tensors["model.layers.1.mlp.down_proj.weight"]
    error = np.abs(values_of(mlp.down) - exact).max()
    assert 0 < error <= np.abs(exact).max() / 2 ** (bits - 2)


def test_rows_that_are_no_whole_number_of_blocks_stay_as_they_are(tmp_path):
    config = TINY | {"intermediate_size": 100}
    weights = load(write_model(tmp_path, tiny_tensors(config), config), scheme="int8").weights
    attention, mlp = (block.branches[0].body for block in weights.layers[0].blocks)
    assert set(mlp.down.formats) == {"f32"}  # 100 inputs
    assert set(mlp.up.formats) | set(attention.out.formats) == {"int8_row_f32_rotated"}
