"""Small model files written byte by byte, and a packer that only copies."""

import json
import struct

import numpy as np

from octavo.ops.weight import PackedWeight, Segment
from octavo.quantization.format import FORMATS
from octavo.quantization.quantize import quantize


class CopyPacker:
    """An IntoMemoryPacker whose packed form is the stored bytes."""

    def __init__(self):
        self.packed = 0

    def matrix(self, parts):
        segments = []
        for part in parts:
            region = np.empty(self.packed_bytes(part.format, *part.shape), np.uint8)
            self.pack_into(part, region)
            segments.append(Segment(part.format, part.shape[0], region))
        return PackedWeight((sum(part.shape[0] for part in parts), parts[0].shape[1]), tuple(segments))

    def quantize(self, stored, format):
        return quantize(stored, format)

    def vector(self, values):
        return np.array(values, np.float32)

    def packed_bytes(self, format, rows, cols):
        return rows * FORMATS[format].row_bytes(cols)

    def pack_into(self, stored, destination):
        self.packed += 1
        destination[:] = stored.data

    def page_sums(self, data, alone=False):
        """Every byte counts, and where it is."""
        places = np.arange(1, 1024, 2, dtype=np.uint64)
        return (data.view(np.uint64).reshape(-1, 512) * places).sum(axis=1, dtype=np.uint64)


class PlainPacker:
    """A Packer without packed bytes: cannot be cached, does not check values."""

    def __init__(self):
        self._inner = CopyPacker()

    def matrix(self, parts):
        return self._inner.matrix(parts)

    def quantize(self, stored, format):
        return quantize(stored, format)

    def vector(self, values):
        return np.array(values, np.float32)


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}


def llama_shapes(config=TINY):
    """Tensor name -> shape of a Llama checkpoint."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    shapes["lm_head"] = shapes["model.embed_tokens"]
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def tiny_tensors(config=TINY, seed=5):
    """Random float32 arrays of a Llama checkpoint."""
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in llama_shapes(config).items()}


def write_model(directory, tensors, config=TINY):
    """A directory with config.json and model.safetensors."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return directory


_TYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8"}


def safetensors_bytes(tensors):
    """A safetensors file. Arrays of uint16 are taken for bfloat16."""
    header, blobs, offset = {}, [], 0
    for name, values in tensors.items():
        data = values.tobytes()
        kind = "BF16" if values.dtype == np.uint16 else _TYPES[str(values.dtype)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    return with_header(json.dumps(header).encode(), b"".join(blobs))


def with_header(header, data=b""):
    return struct.pack("<Q", len(header)) + header + data


# --- GGUF ------------------------------------------------------------------------------------------------------------


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_bytes(entries=(), tensors=(), version=3, alignment=32, counts=None):
    """entries: (key, type number, value bytes). tensors: (name, dims innermost first, type number, data)."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    parts = [b"GGUF", struct.pack("<IQQ", version, tensor_count, entry_count)]
    parts += [string(key) + struct.pack("<I", kind) + value for key, kind, value in entries]
    offset, data = 0, []
    for name, dims, kind, blob in tensors:
        parts.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        padded = blob + bytes(-len(blob) % alignment)
        data.append(padded)
        offset += len(padded)
    head = b"".join(parts)
    return head + bytes(-len(head) % alignment) + b"".join(data)
