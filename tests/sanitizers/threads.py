"""Not a test: a small model answers requests on several threads, without torch, for ThreadSanitizer to watch.

    python -m tests.sanitizers.threads DIR

A kernel that reads what another thread may still be writing ends the run. Two threads spin while they wait; five, more
than most machines that run this have, sleep.
"""

import sys
import tempfile
from itertools import cycle
from pathlib import Path

import gguf
import numpy as np

from tests.golden.quantizers import quantize
from tests.sanitizers.plugin import use_libraries

HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 256, 512, 4, 2, 512, 2
FORMATS = (
    *("q6_k", "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1"),
    *("q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "iq4_nl", "mxfp4"),
)
PROMPTS = (range(70), range(100, 103), range(200, 217))
CHUNK, OUTPUTS = 32, 6


def main(directory):
    use_libraries(directory)
    # Imported late: the modules below look for libraries when they are loaded.
    from octavo.kernels.cpu.library import supported_isas

    with tempfile.TemporaryDirectory() as made:
        path = write_model(Path(made) / "small.gguf")
        for isa in supported_isas():
            two, five = (answers(path, isa, threads) for threads in (2, 5))
            assert two == five, f"{isa}: two threads say {two}, five {five}"
            print(f"{isa}: {two}", flush=True)


def answers(path, isa, threads):
    """Token ids: greedy with log-probabilities of prompt and answer, drawn under every rule, and plainly greedy."""
    from octavo import LLM, SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=OUTPUTS, logprobs=3, prompt_logprobs=1),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=OUTPUTS, repetition_penalty=1.1),
        SamplingParams(temperature=0.0, max_tokens=OUTPUTS),
    ]
    options = {"num_gpu_blocks_override": 64, "weight_cache": False, "skip_tokenizer_init": True}
    with LLM(str(path), isa=isa, threads=threads, max_num_batched_tokens=CHUNK, max_num_seqs=4, **options) as llm:
        prompts = [{"prompt_token_ids": list(ids)} for ids in PROMPTS]
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def write_model(path):
    """A llama of random weights, its matrices in all formats by turns."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    random, formats = np.random.default_rng(0), cycle(FORMATS)
    for name, shape in _shapes().items():
        values = (random.standard_normal(shape) * 0.05 + (len(shape) == 1)).astype(np.float32)
        format = "f32" if len(shape) == 1 else next(formats)
        kind = gguf.GGMLQuantizationType[format.upper()]
        writer.add_tensor(f"{name}.weight", values if len(shape) == 1 else quantize(values, format), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes():
    keys = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        matrices = {"attn_q": HIDDEN, "attn_k": keys, "attn_v": keys, "attn_output": HIDDEN}
        matrices |= {"ffn_gate": INNER, "ffn_up": INNER}
        shapes |= {f"blk.{layer}.{name}": (rows, HIDDEN) for name, rows in matrices.items()}
        shapes[f"blk.{layer}.ffn_down"] = (HIDDEN, INNER)
        shapes |= {f"blk.{layer}.{name}": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    return shapes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
