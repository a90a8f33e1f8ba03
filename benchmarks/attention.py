"""How long attention of one decoded token takes over a long context, in every type that keys and values are kept in.

    python benchmarks/attention.py [--isa avx2] [--threads 2] [--contexts 2048 8192]

A program of a model's attention alone, each layer with keys and values of its own: they come from where they would in a
model.
"""

import argparse
import time

import numpy as np

from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import AttentionSpec

BLOCK = 16
# Heads, kv heads, their width; and layers.
SHAPES = {
    "SmolLM2-135M": ((9, 3, 64), 30),
    "Gemma 3 270M, without windows": ((4, 1, 256), 18),
    "Llama 3 8B": ((32, 8, 128), 32),
}
TYPES = ("float16", "int8", "fp8_e4m3", "fp8_e5m2", "int4")


class Decode:
    """One token of one sequence at the end of a context, through `layers` layers of attention."""

    def __init__(
        self,
        library: NativeLibrary,
        team: ThreadTeam,
        shape: tuple[int, int, int],
        dtype: str,
        *,
        layers: int,
        context: int,
    ) -> None:
        heads, kv_heads, width = shape
        spec = AttentionSpec(heads, kv_heads, width, width**-0.5, None)
        code = CACHE_FORMAT_OF_DTYPE[dtype]
        self.layer_bytes = library.cache_layer_bytes(code, kv_heads, width, BLOCK)
        blocks = -(-context // BLOCK)
        pool = aligned_bytes(blocks * layers * self.layer_bytes)
        pool[:] = 0x3C  # an ordinary number in every type
        tables = np.random.default_rng(1).permutation(blocks).astype(np.int32).reshape(1, 1, blocks)
        cache = NativeCache(code, BLOCK, layers * self.layer_bytes, pool, tables)
        recorder = ProgramRecorder(library, cache)
        q = recorder.input(heads * width)
        for layer in range(layers):
            recorder.paged_attention(q, spec, LayerCache(0, layer))
        self._program = NativeProgram(library, team, recorder.instructions, ProgramLimits(1, 1), cache, fused=False)
        self._program.view(q, 1)[:] = np.random.default_rng(2).standard_normal(heads * width).astype(np.float32)
        self._step = NativeStep(1)
        one = np.zeros(1, np.int32)
        self._step.set_tokens(one, np.array([context - 1], np.int32), np.array([0, 1], np.int32), one)

    def seconds(self) -> float:
        """Of one run."""
        start = time.perf_counter()
        self._program.run(self._step)
        return time.perf_counter() - start


def main() -> None:
    """Print a table: microseconds a layer, least of all rounds, and how many times as fast as float16 each type is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192])
    asked = parser.parse_args()
    library = load_library(asked.isa)
    team = ThreadTeam(library, asked.threads)
    print(f"{library.isa}, {asked.threads} threads\n")
    print(f"| model | context | {' | '.join(TYPES)} |\n|---|---|{'---|' * len(TYPES)}")
    for name, (shape, layers) in SHAPES.items():
        for context in asked.contexts:
            runs = [Decode(library, team, shape, t, layers=layers, context=context) for t in TYPES]
            samples = [[run.seconds() for run in runs] for _ in range(asked.rounds + 2)][2:]  # by turns
            took = [min(column) / layers * 1e6 for column in zip(*samples, strict=True)]
            cells = [f"{took[0]:.0f} us"] + [f"{each:.0f} us, {took[0] / each:.2f} x" for each in took[1:]]
            print(f"| {name} | {context} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
