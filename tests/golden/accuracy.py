"""Writes the tables of docs/accuracy.md: `python -m tests.golden.accuracy [TABLE...]`. Takes minutes.

The oracle's side comes from the golden files, Octavo's is measured now, on the best native library of this machine.
"""

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.kernels.cpu.library import load_library
from octavo.ops.conformance import QUANTIZED
from octavo.quantization.format import FORMATS as STORAGE
from tests.families.real import gemma3_path, smollm2_path
from tests.golden.cases import PROMPTS, STEPS, calibration_windows, page_ids, read_bf16_errors, read_golden
from tests.golden.octavo_model import continue_prompts, judge_texts, open_llm, perplexity
from tests.golden.oracle import save_bf16
from tests.golden.requantize import FORMATS, Requantizer, read_perplexities

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
_NAMES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M"}
_RUNS = (
    ("quantized", "float32", "as in the file"),
    ("quantized", "auto", "as in the file"),
    ("bf16", "auto", "rounded to bf16"),
)


def answers_table(directory):
    """How near the log-probabilities after each prompt are, and how many greedy tokens agree."""
    rows = [
        ("model", "weights", "cache", "greedy tokens equal", "largest difference", "RMS", "transformers in bf16, RMS")
    ]
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        bf16 = save_bf16(name, path, directory / f"{name}-bf16")
        for weights, cache, words in _RUNS:
            golden = read_golden(name, weights)
            options = {"skip_tokenizer_init": True, "kv_cache_dtype": cache}
            with open_llm(bf16 if weights == "bf16" else path, **options) as llm:
                cache = llm.llm_engine.engine.resolved.model.kv_cache_dtype.value
                errors, equal = measure(llm, golden.values())
            theirs = f"{read_bf16_errors()[name]:.3f}" if weights == "bf16" else ""
            counts = ", ".join(str(count) for count in equal)
            rms = np.sqrt(np.square(errors).mean())
            rows.append((_NAMES[name], words, cache, counts, f"{np.abs(errors).max():.2g}", f"{rms:.2g}", theirs))
    return rows


def measure(llm, golden):
    """Differences of log-probabilities [steps, TOP] over all prompts, and the greedy steps that agree in each."""
    golden = list(golden)
    errors = []
    for entry, steps in zip(golden, judge_texts(llm, [entry.prompt + entry.tokens for entry in golden]), strict=True):
        for ids, logprobs, step in zip(entry.top_ids, entry.top_logprobs, steps[-STEPS:], strict=True):
            errors.append([step[token] - logprob for token, logprob in zip(ids, logprobs, strict=True)])
    return np.array(errors), count_equal(llm, golden)


def count_equal(llm, golden):
    """The greedy steps after each prompt that agree."""
    equal = []
    for entry, (tokens, _) in zip(golden, continue_prompts(llm, [entry.prompt for entry in golden]), strict=True):
        unlike = [step for step in range(STEPS) if tokens[step] != entry.tokens[step]]
        equal.append(unlike[0] if unlike else STEPS)
    return equal


def perplexity_table(directory):
    """SmolLM2 in every weight format."""
    wanted = read_perplexities()
    rows = [("format", "bits a weight", "transformers", "Octavo", "difference", "over f32")]
    requantizer, ids = Requantizer(smollm2_path()), page_ids(smollm2_path())
    for format in FORMATS:
        path = requantizer.write(format, directory / "smollm2.gguf")
        with open_llm(path, skip_tokenizer_init=True) as llm:
            found = perplexity(llm, ids)
        rows.append((format, f"{STORAGE[format].bits_per_weight:g}", *_compared(found, wanted[format], wanted["f32"])))
    return rows


def files_table(directory):
    """Both models as their files are."""
    rows = [("model", "transformers", "Octavo", "difference")]
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        with open_llm(path) as llm:
            found = perplexity(llm, page_ids(path))
        rows.append((_NAMES[name], *_compared(found, read_perplexities()[name], 1.0)[:3]))
    return rows


def inputs_table(directory):
    """What rounded inputs change: the files as they are, then SmolLM2 in every block format."""
    rows = [
        ("weights", "inputs in", "exact", "rounded", "difference", "RMS of log-probabilities", "greedy tokens equal")
    ]
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        for compute, bits in _ROUNDED.items():
            with open_llm(path, linear_compute=compute) as llm:
                found = perplexity(llm, page_ids(path))
                errors, equal = measure(llm, read_golden(name, "quantized").values())
            rms, counts = np.sqrt(np.square(errors).mean()), ", ".join(str(count) for count in equal)
            compared = _compared(found, read_perplexities()[name], 1.0)[:3]
            rows.append((f"{_NAMES[name]}, its file", bits, *compared, f"{rms:.2g}", counts))
    requantizer, ids = Requantizer(smollm2_path()), page_ids(smollm2_path())
    for format in FORMATS:
        if STORAGE[format].role != "block":
            continue
        path = requantizer.write(format, directory / "rounded.gguf")
        for compute, bits in _ROUNDED.items():
            with open_llm(path, skip_tokenizer_init=True, linear_compute=compute) as llm:
                found = perplexity(llm, ids)
            rows.append((f"SmolLM2 in {format}", bits, *_compared(found, read_perplexities()[format], 1.0)[:3], "", ""))
    return rows


_ROUNDED = {"int16": "16 bits", "int8": "8 bits"}  # --linear-compute


def rounded_table(directory):
    """What --quantization changes, rounded inputs included: against the same bf16 weights with float32 products."""
    rows = [("model", "rounded to", "page", "six windows", "RMS of log-probabilities", "greedy tokens equal")]
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        bf16 = save_bf16(name, path, directory / f"{name}-bf16")
        texts, golden = [page_ids(path), *calibration_windows(path)], read_golden(name, "bf16")
        exact, _ = _judged(bf16, texts, golden, dtype="float32")
        for scheme in ("int8", "int4"):
            found, equal = _judged(bf16, texts, golden, quantization=scheme, linear_compute="auto")
            rms = np.sqrt(np.square(np.concatenate(found) - np.concatenate(exact)).mean())
            changes = (_change(exact[:1], found[:1]), _change(exact[1:], found[1:]))
            rows.append((_NAMES[name], scheme, *changes, f"{rms:.3f}", ", ".join(map(str, equal))))
    return rows


def _judged(path, texts, golden, **options):
    """Log-probabilities of every token but the first of each text, and how many greedy tokens agree."""
    with open_llm(path, skip_tokenizer_init=True, kv_cache_dtype="float32", **options) as llm:
        found = [
            np.array([step[token] for step, token in zip(steps, ids[1:], strict=True)])
            for ids, steps in zip(texts, judge_texts(llm, texts), strict=True)
        ]
        return found, count_equal(llm, list(golden.values()))


def _change(before, after):
    """Perplexities of some texts together, and the change."""
    was, now = (float(np.exp(-np.concatenate(found).mean())) for found in (before, after))
    return f"{was:.3f} -> {now:.3f} ({100 * (now / was - 1):+.2f} %)"


# Layers that are left out, beside none.
_LEFT_OUT = {
    "smollm2": (("int4", ("first", "last")),),
    "gemma3": (("int8", ("sliding_window",)), ("int4", ("full_attention",))),
}


def cache_table(directory):
    """What keeping keys and values in fewer bits costs, against float32, and how many more tokens fit."""
    head = "model, cache, left out, perplexity, over float32, RMS of log-probabilities, greedy tokens equal"
    rows = [(*head.split(", "), "tokens a GiB", "of float16's")]
    for name in PROMPTS:
        path = smollm2_path() if name == "smollm2" else gemma3_path(directory)
        prompts = [entry.prompt for entry in read_golden(name, "quantized").values()]
        kept = [(dtype, ()) for dtype in ("float32", "float16", *QUANTIZED)] + list(_LEFT_OUT[name])
        found = [_kept_in(path, prompts, dtype, skipped) for dtype, skipped in kept]
        exact, half = found[0], found[1].token_bytes
        for (dtype, skipped), each in zip(kept, found, strict=True):
            over = 100 * (each.perplexity / exact.perplexity - 1)
            rms = np.sqrt(np.square(each.logprobs - exact.logprobs).mean())
            equal = [
                next((i for i in range(STEPS) if ours[i] != theirs[i]), STEPS)
                for ours, theirs in zip(each.tokens, exact.tokens, strict=True)
            ]
            room = (f"{(1 << 30) // each.token_bytes:,}", f"{half / each.token_bytes:.2f}")
            cost = (f"{each.perplexity:.3f}", f"{over:+.2f} %", f"{rms:.2g}", ", ".join(map(str, equal)))
            rows.append((_NAMES[name], dtype, ", ".join(skipped), *cost, *room))
    return rows


@dataclass
class _Kept:
    perplexity: float
    logprobs: np.ndarray  # of the page's tokens
    tokens: list  # greedy ones after each prompt
    token_bytes: int


def _kept_in(path, prompts, dtype, skipped):
    options = {"kv_cache_dtype": dtype, "kv_cache_dtype_skip_layers": skipped, "num_gpu_blocks_override": 4096}
    with open_llm(path, skip_tokenizer_init=True, **options) as llm:
        ids = page_ids(path)
        (steps,) = judge_texts(llm, [ids])
        logprobs = np.array([step[token] for step, token in zip(steps, ids[1:], strict=True)])
        tokens = [tokens for tokens, _ in continue_prompts(llm, prompts)]
        return _Kept(float(np.exp(-logprobs.mean())), logprobs, tokens, llm.llm_engine.engine.memory.token_bytes)


def _compared(found, wanted, exact):
    return (
        f"{wanted:.3f}",
        f"{found:.3f}",
        f"{100 * (found / wanted - 1):+.3f} %",
        f"{100 * (found / exact - 1):+.1f} %",
    )


def markdown(rows):
    """A table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def replaced(text, name, table):
    """The page with one table between its marks replaced."""
    pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert pattern.search(text), f"no place for {name}"
    return pattern.sub(lambda marks: marks.group(1) + table + "\n" + marks.group(2), text)


TABLES = {
    "cache": cache_table,
    "answers": answers_table,
    "files": files_table,
    "formats": perplexity_table,
    "inputs": inputs_table,
    "rounded": rounded_table,
}

if __name__ == "__main__":
    page = replaced(PAGE.read_text(), "machine", f"Measured with the native library for {load_library().isa}.")
    with tempfile.TemporaryDirectory() as made:
        for name in sys.argv[1:] or TABLES:
            page = replaced(page, name, markdown(TABLES[name](Path(made))))
            print(name)
    PAGE.write_text(page)
