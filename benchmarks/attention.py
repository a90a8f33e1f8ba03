"""Attention over a paged cache beside plain contiguous multi-head attention in PyTorch (the extra octavo[torch]).

    python benchmarks/attention.py [--tokens 1024] [--threads 2] [--shape smollm2-135m] [--kept float16]

Both get the same queries, keys and values of one layer: a prompt of so many tokens, causal; then one more token of each
of 16 sequences with contexts of that length. PyTorch keeps keys and values of all query heads in one tensor a layer, as
plain multi-head attention does; Octavo keeps what there is, in blocks of 16 tokens. Memory is what is kept of keys and
values and the most that a run takes beside it, each in a process of its own. Times are medians of interleaved runs.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.ops.attention import SHAPES, attention
from benchmarks.ops.measure import Bench
from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.team import ThreadTeam

SEQUENCES = 16  # that decode
_REST = 0.25  # seconds; threads of OpenMP spin for a while after their work, and would take the core away


@dataclass(frozen=True)
class Setting:
    """What is compared. decode: one token of each sequence, not a prompt."""

    shape: str
    tokens: int
    threads: int
    kept: str
    decode: bool


@dataclass(frozen=True)
class Ready:
    """Something to run, and the bytes that it keeps of keys and values."""

    run: Callable[[], object]
    kept: int


def octavo(setting: Setting) -> Ready:
    """One layer of paged attention."""
    library = load_library()
    bench = Bench(library, ThreadTeam(library, setting.threads))
    sequences, start, count = (SEQUENCES, setting.tokens - 1, 1) if setting.decode else (1, 0, setting.tokens)
    work = attention(bench, setting.shape, setting.kept, sequences=sequences, start=start, count=count, layers=1)
    activations = 8 * sequences * count * SHAPES[setting.shape][0][0] * SHAPES[setting.shape][0][2]
    return Ready(work.run, work.bytes - activations)


def contiguous(setting: Setting, dtype: torch.dtype, *, naive: bool) -> Ready:
    """PyTorch's scaled_dot_product_attention, or the textbook's product, softmax and product."""
    torch.set_num_threads(setting.threads)
    heads, _, width = SHAPES[setting.shape][0]
    sequences, count = (SEQUENCES, 1) if setting.decode else (1, setting.tokens)
    keys, values = (torch.randn(sequences, heads, setting.tokens, width).to(dtype) for _ in range(2))
    queries = torch.randn(sequences, heads, count, width).to(dtype)
    hidden = torch.ones(count, setting.tokens, dtype=torch.bool).triu(setting.tokens - count + 1)

    def plain() -> torch.Tensor:
        scores = (queries @ keys.transpose(2, 3)) * width**-0.5
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ values

    def fused() -> torch.Tensor:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=not setting.decode)

    return Ready(plain if naive else fused, keys.nbytes + values.nbytes)


CONTENDERS: dict[str, Callable[[Setting], Ready]] = {
    "Octavo, paged": octavo,
    "PyTorch SDPA, float32": lambda setting: contiguous(setting, torch.float32, naive=False),
    "PyTorch SDPA, bfloat16": lambda setting: contiguous(setting, torch.bfloat16, naive=False),
    "PyTorch matmul, float32": lambda setting: contiguous(setting, torch.float32, naive=True),
    "PyTorch matmul, bfloat16": lambda setting: contiguous(setting, torch.bfloat16, naive=True),
}


def _highest() -> int:
    """Most resident bytes since the mark was reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _reset_mark() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str, setting: Setting, answer: "multiprocessing.Queue[int]") -> None:
    """Bytes kept, and taken by a run; libraries have had a small run to prepare themselves."""
    CONTENDERS[name](Setting(setting.shape, 64, setting.threads, setting.kept, setting.decode)).run()
    ready = CONTENDERS[name](setting)
    _reset_mark()
    before = _highest()
    ready.run()
    answer.put(ready.kept + _highest() - before)


def memory(name: str, setting: Setting) -> int:
    """Bytes, as the module says."""
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[int] = context.Queue()
    child = context.Process(target=_memory, args=(name, setting, answer))
    child.start()
    taken = answer.get(timeout=300)
    child.join()
    return taken


def _timed(ready: Ready) -> float:
    start = time.perf_counter()
    ready.run()
    return time.perf_counter() - start


def times(setting: Setting, rounds: int) -> list[float]:
    """Seconds of each contender: the median over rounds, by turns, of the best of four runs."""
    ready = [make(setting) for make in CONTENDERS.values()]
    samples: list[list[float]] = []
    for _ in range(rounds + 2):
        samples.append([])
        for each in ready:
            time.sleep(_REST)
            samples[-1].append(min(_timed(each) for _ in range(4)))
    return [statistics.median(column) for column in zip(*samples[2:], strict=True)]


def main() -> None:
    """Print a table for the prompt and one for decoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--kept", default="float16", help="how Octavo keeps keys and values")
    asked = parser.parse_args()
    for decode in (False, True):
        setting = Setting(asked.shape, asked.tokens, asked.threads, asked.kept, decode)
        took = times(setting, asked.rounds)
        sizes = [memory(name, setting) for name in CONTENDERS]
        what = f"{SEQUENCES} sequences, one token each" if decode else "a prompt"
        print(f"\n{asked.shape}, {asked.tokens} tokens, {what}, {asked.threads} threads\n")
        print("| | ms a layer | Octavo is faster by | MB | Octavo takes less by |\n|---|---|---|---|---|")
        for name, seconds, size in zip(CONTENDERS, took, sizes, strict=True):
            gain, less = seconds / took[0], 1 - sizes[0] / size
            print(f"| {name} | {seconds * 1e3:.2f} | {gain:.2f} x | {size / 1e6:.1f} | {less:.0%} |", flush=True)


if __name__ == "__main__":
    main()
