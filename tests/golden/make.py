"""Writes the golden files: `python -m tests.golden.make [answers] [bf16] [perplexity]`. Takes minutes; review the diff.

The oracle is transformers in float32, so these files change when a prompt, a quantizer of the tests or transformers
changes, never because Octavo does.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.families.real import gemma3_path, smollm2_path, transformers_model
from tests.golden.cases import PROMPTS, page_ids, prompt_ids, read_golden, write_bf16_errors, write_golden
from tests.golden.oracle import golden_errors, greedy, judge, perplexity, rounded_to_bf16
from tests.golden.requantize import FORMATS, Requantizer, write_perplexities

# A step whose two likeliest tokens are nearer than this would test luck: choose another prompt.
LEAST_MARGIN = 0.01


def make_answers(directory):
    """Greedy tokens and their log-probabilities, of every model and both kinds of weights."""
    for name, prompts in PROMPTS.items():
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        ids = prompt_ids(path, prompts)
        model = transformers_model(name, path)
        for weights in ("quantized", "bf16"):
            if weights == "bf16":
                model = rounded_to_bf16(model)
            golden = {}
            for prompt, tokens in ids.items():
                golden[prompt] = judge(model, tokens, greedy(model, tokens))
                likeliest = [step[0] for step in golden[prompt].top_ids]
                margin = min(golden[prompt].margins)
                print(f"{name} {weights} {prompt}: {len(tokens)} tokens of prompt, smallest margin {margin:.4f}")
                if weights == "quantized" and (margin < LEAST_MARGIN or likeliest != list(golden[prompt].tokens)):
                    raise SystemExit(f"{name} {prompt}: too near a tie, choose another prompt")
            write_golden(name, weights, golden)


def make_bf16_errors(directory):
    """How far transformers itself is off its float32 answers when it computes in bf16, at the same steps."""
    found = {}
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        model = transformers_model(name, path).to(torch.bfloat16)
        errors = [golden_errors(model, golden) for golden in read_golden(name, "bf16").values()]
        found[name] = float(np.sqrt(np.mean(np.square(errors))))
        print(f"{name}: transformers in bf16 is off by {found[name]:.4f}")
    write_bf16_errors(found)


def make_perplexities(directory):
    """Of the page: under both models as their files are, and under SmolLM2 in every weight format."""
    found = {}
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        found[name] = perplexity(transformers_model(name, path), page_ids(path))
        print(f"{name}: {found[name]:.4f}")
    requantizer = Requantizer(smollm2_path())
    ids = page_ids(smollm2_path())
    for format in FORMATS:
        path = requantizer.write(format, directory / "smollm2.gguf")
        found[format] = perplexity(transformers_model("smollm2", path), ids)
        print(f"{format}: {found[format]:.4f}")
    write_perplexities(found)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["answers", "bf16", "perplexity"]
    with tempfile.TemporaryDirectory() as made:
        if "answers" in wanted:
            make_answers(Path(made))
        if "bf16" in wanted:
            make_bf16_errors(Path(made))
        if "perplexity" in wanted:
            make_perplexities(Path(made))
