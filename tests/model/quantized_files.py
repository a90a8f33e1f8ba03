"""Quantized checkpoints packed number by number as each format's specification says, and the values they stand for.

A module is (tensors by ending, values [out, in]). Packing is done with plain loops over the file's own words: nothing
here is shared with the readers.
"""

import json

import numpy as np
import torch
from safetensors.torch import save_file

SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)


def shapes(config=SIZES):
    """Module -> [out, in] of every matrix of a layer."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    parts = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (width, hidden), "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }  # fmt: skip
    layers = range(config["num_hidden_layers"])
    return {f"model.layers.{i}.{name}": shape for i in layers for name, shape in parts.items()}


def write_words(numbers, bits):
    """Numbers as one stream of bits, lowest first, in int32 words."""
    stream = 0
    for place, number in enumerate(numbers):
        stream |= int(number) << (place * bits)
    count = -(-len(numbers) * bits // 32)
    words = [stream >> (32 * i) & 0xFFFFFFFF for i in range(count)]
    return np.array(words, np.uint32).view(np.int32)


def packed_rows(matrix, bits):
    """Each row as words."""
    return np.stack([write_words(row, bits) for row in matrix])


def random_scales(rng, shape, dtype=torch.float16):
    """Of either sign and unlike sizes; as a tensor, and as float64."""
    values = rng.uniform(0.001, 0.02, shape) * rng.choice([-1, 1], shape)
    tensor = torch.from_numpy(np.asarray(values)).to(dtype)
    return tensor, tensor.double().numpy()


def groups_of(columns, group, rng=None):
    """The group of each input; shuffled with `rng`."""
    groups = np.arange(columns) // group
    return groups if rng is None else rng.permutation(groups)


def value(scales, codes, zeros, groups):
    """scale * (code - zero point) of every number; scales and zeros are [out, groups]."""
    numbers = codes.astype(np.float64) - np.broadcast_to(zeros, scales.shape)[:, groups]
    return (scales[:, groups] * numbers).astype(np.float32)


def gptq(rng, rows, columns, bits=4, group=128, sym=True, act_order=False, v2=False, dtype=torch.float16):
    """AutoGPTQ's module."""
    group = columns if group < 0 else group
    count, most = columns // group, (1 << bits) - 1
    codes = rng.integers(0, most + 1, (rows, columns))
    scales, exact = random_scales(rng, (rows, count), dtype)
    zeros = np.full((rows, count), 1 << (bits - 1)) if sym else rng.integers(0, most + 1, (rows, count))
    groups = groups_of(columns, group, rng if act_order else None)
    stored_zeros = zeros if v2 else (zeros - 1) & most
    tensors = {
        "qweight": np.ascontiguousarray(packed_rows(codes, bits).T),
        "qzeros": packed_rows(stored_zeros.T, bits),
        "scales": scales.T.contiguous(),
        "g_idx": groups.astype(np.int32),
    }
    return tensors, value(exact, codes, zeros, groups)


def awq(rng, rows, columns, group=128, version="gemm", dtype=torch.float16):
    """AutoAWQ's module."""
    group = columns if group < 0 else group
    count = columns // group
    codes, zeros = rng.integers(0, 16, (rows, columns)), rng.integers(0, 16, (rows, count))
    scales, exact = random_scales(rng, (rows, count), dtype)
    if version == "gemv":
        padded = -(-count // 8) * 8
        wide = torch.zeros(rows, padded, dtype=dtype)
        wide[:, :count] = scales
        points = np.zeros((rows, padded), np.int64)
        points[:, :count] = zeros
        tensors = {"qweight": packed_rows(codes, 4), "qzeros": packed_rows(points, 4), "scales": wide}
    else:
        tensors = {"qweight": interleaved(codes.T), "qzeros": interleaved(zeros.T), "scales": scales.T.contiguous()}
    return tensors, value(exact, codes, zeros, groups_of(columns, group))


def interleaved(matrix):
    """[n, out] as [n, out / 8] words whose nibble i is column AWQ_NIBBLES[i] of the eight."""
    words = np.zeros((len(matrix), matrix.shape[1] // 8), np.uint32)
    for word in range(words.shape[1]):
        for nibble, column in enumerate(AWQ_NIBBLES):
            words[:, word] |= (matrix[:, 8 * word + column] << (4 * nibble)).astype(np.uint32)
    return words.view(np.int32)


def packed(rng, rows, columns, bits=4, group=128, sym=True, order=False, dtype=torch.bfloat16):
    """compressed-tensors' pack-quantized module."""
    group = columns if group < 0 else group
    count, middle = columns // group, 1 << (bits - 1)
    codes = rng.integers(-middle, middle, (rows, columns))
    zeros = np.zeros((rows, count), np.int64) if sym else rng.integers(-middle, middle, (rows, count))
    scales, exact = random_scales(rng, (rows, count), dtype)
    groups = groups_of(columns, group, rng if order else None)
    tensors = {
        "weight_packed": packed_rows(codes + middle, bits),
        "weight_scale": scales,
        "weight_shape": np.array([rows, columns], np.int64),
    }
    if not sym:
        tensors["weight_zero_point"] = np.ascontiguousarray(packed_rows((zeros + middle).T, bits).T)
    if order:
        tensors["weight_g_idx"] = groups.astype(np.int32)
    return tensors, value(exact, codes, zeros, groups)


def plain_int8(rng, rows, columns, sym=True, scope="channel", dtype=torch.bfloat16):
    """compressed-tensors' int-quantized module."""
    codes = rng.integers(-128, 128, (rows, columns))
    scales, exact = random_scales(rng, (rows, 1) if scope == "channel" else (1,), dtype)
    tensors = {"weight": codes.astype(np.int8), "weight_scale": scales}
    zeros = np.zeros((rows, 1), np.int64)
    if not sym:
        zeros = rng.integers(-128, 128, (rows, 1))
        tensors["weight_zero_point"] = zeros.astype(np.int8)
    return tensors, value(np.broadcast_to(exact.reshape(-1, 1), (rows, 1)), codes, zeros, np.zeros(columns, int))


def float8(rng, rows, columns, scope="channel", ending="weight_scale", block=(128, 128), dtype=torch.float32):
    """A matrix of 8-bit floats; scope: tensor, row (a vector), channel (a column) or block."""
    weight = torch.from_numpy(rng.standard_normal((rows, columns)) * 50).to(torch.float8_e4m3fn)
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    shape = {"tensor": (1,), "scalar": (), "row": (rows,), "channel": (rows, 1), "block": blocks}[scope]
    scales, exact = random_scales(rng, shape, dtype)
    wide = np.asarray(exact).reshape(-1, 1) if scope != "block" else exact
    if scope == "block":
        wide = np.repeat(np.repeat(wide, block[0], axis=0), block[1], axis=1)[:rows, :columns]
    values = (weight.double().numpy() * wide).astype(np.float32)
    return {"weight": weight, ending: scales}, values


def checkpoint(directory, make, quantization=None, config=SIZES, seed=1, extra=None, shards=1):
    """Write a model whose layers are made by `make(rng, rows, columns)`; gives the float weights of all of it.

    extra: ending -> array, a tensor more in every module. quantization: of config.json.
    """
    rng = np.random.default_rng(seed)
    hidden = config["hidden_size"]
    floats = {
        name: rng.normal(0, 0.5, (config["vocab_size"], hidden)).astype(np.float32)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    for i in range(config["num_hidden_layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            floats[f"model.layers.{i}.{norm}.weight"] = rng.normal(1, 0.2, hidden).astype(np.float32)
    floats["model.norm.weight"] = rng.normal(1, 0.2, hidden).astype(np.float32)
    tensors = dict(floats)
    for name, (rows, columns) in shapes(config).items():
        made, values = make(rng, rows, columns)
        tensors |= {f"{name}.{ending}": array for ending, array in {**made, **copies(extra)}.items()}
        floats[f"{name}.weight"] = values
    said = {} if quantization is None else {"quantization_config": quantization}
    write(directory, tensors, {**config, **said}, shards)
    return floats


def copies(extra):
    """Arrays of their own, as every tensor of a file must be."""
    return {ending: array.copy() for ending, array in (extra or {}).items()}


def write(directory, tensors, config, shards=1):
    """config.json, and the tensors in one file or several."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    saved = {
        n: t if isinstance(t, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(t)) for n, t in tensors.items()
    }
    if shards == 1:
        save_file(saved, directory / "model.safetensors")
        return
    files = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(saved)}
    for file in set(files.values()):
        save_file({name: saved[name] for name, at in files.items() if at == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def group_scheme(bits=4, kind="int", sym=True, strategy="group", group=128, format="pack-quantized", **more):
    """The quantization_config of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "symmetric": sym, "strategy": strategy, "group_size": group}
    group_0 = {"targets": ["Linear"], "weights": {**weights, **more}, "input_activations": None}
    groups = {"group_0": group_0}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}
