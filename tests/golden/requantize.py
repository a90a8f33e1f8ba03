"""SmolLM2 in every weight format: its weights, dequantized once, rounded again to each format and written as GGUF."""

import json
from concurrent.futures import ThreadPoolExecutor

import gguf

from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.mapped import MappedFile
from octavo.quantization.format import FORMATS as STORAGE
from octavo.quantization.gguf_blocks import dequantize
from tests.families.real import CONFIGS
from tests.golden.cases import DATA
from tests.golden.quantizers import quantize

FORMATS = tuple(name for name, format in STORAGE.items() if format.role != "other" and format.number >= 0)
PERPLEXITIES = DATA / "perplexity.json"
# SmolLM2's rows are 576 long but for down's 1536, and 256-element blocks divide only these; as llama.cpp does, the
# other matrices then take a format that fits.
_FALLBACK = "q8_0"


def write_perplexities(found):
    """{model or format: the oracle's perplexity of the page}."""
    PERPLEXITIES.write_text(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=1) + "\n")


def read_perplexities():
    """See write_perplexities."""
    return json.loads(PERPLEXITIES.read_text())


class Requantizer:
    """Holds a llama GGUF file's weights in float32."""

    def __init__(self, path):
        self._tensors = {
            name: dequantize(tensor.format, tensor.data, tensor.shape)
            for name, tensor in read_gguf(MappedFile(path)).tensors.items()
        }
        self._fallback = {}

    def write(self, format, path):
        """Write all matrices in `format` (norms stay float32); returns `path`."""
        writer = gguf.GGUFWriter(path, "llama")
        _write_sizes(writer, CONFIGS["smollm2"])
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(lambda item: self._stored(*item, format), self._tensors.items())
            for name, (stored, data) in zip(self._tensors, made, strict=True):
                writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[stored.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _stored(self, name, values, format):
        if values.ndim == 1:
            return "f32", values
        if values.shape[1] % STORAGE[format].elements == 0:
            return format, quantize(values, format)
        if name not in self._fallback:
            self._fallback[name] = quantize(values, _FALLBACK)
        return _FALLBACK, self._fallback[name]


def _write_sizes(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
