"""What the start of an engine costs by part: the first one, which packs the weights, and later ones, which map them.

python -m benchmarks.start MODEL [--quantization int8] [--rounds 3] [--threads N]

Every start is a process of its own; first ones have an empty directory of packed weights, later ones follow on them.
Seconds. `memory` is what a first write to new pages gives beside each start, in GB/s: virtual machines take pages from
their host one by one, and there a first start is bound by it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

_PROBE = 128 << 20
_TOKENS = 16


def live(model: str, directory: str, threads: int | None, quantization: str | None) -> dict[str, float]:
    """Start, give a first token and some more; what each part took."""
    began = time.perf_counter()
    from octavo.config.engine import EngineConfig
    from octavo.engine.build import build_engine
    from octavo.flow.request import GenerationRequest, Sampling, Stopping

    imported = time.perf_counter()
    options = {"quantization": quantization} if quantization else {}
    config = EngineConfig.from_options(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=2048,
        kv_cache_memory_bytes="256MiB",
        weight_cache_dir=directory,
        threads=threads,
        **options,
    )
    engine = build_engine(config)
    seconds = {"import": imported - began, **dict(engine.phases)}
    for name, count in (("first token", 1), (f"{_TOKENS} tokens", _TOKENS)):
        asked = time.perf_counter()
        engine.client.submit(
            GenerationRequest(
                id=name,
                prompt_token_ids=tuple(range(5, 21)),
                sampling=Sampling(temperature=0.0),
                stopping=Stopping(max_tokens=count, ignore_eos=True),
                arrival=time.monotonic(),
                detokenize=False,
            )
        )
        while not any(output.finish_reason is not None for output in engine.client.receive()):
            pass
        seconds[name] = time.perf_counter() - asked
        if name == "first token":
            seconds["start to first token"] = time.perf_counter() - began
    engine.close()
    with open("/proc/self/status") as status:
        seconds["peak MB"] = next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmHWM:"))
    return seconds


def probe() -> float:
    """GB/s of a first write to new pages, by one thread."""
    began = time.perf_counter()
    np.empty(_PROBE, np.uint8).fill(1)
    return _PROBE / (time.perf_counter() - began) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--live", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.live:
        print(json.dumps(live(arguments.model, arguments.live, arguments.threads, arguments.quantization)))
        return
    found: dict[str, list[dict[str, float]]] = {"first": [], "later": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as directory:
            for kind in found:
                command = [sys.executable, "-m", "benchmarks.start", *sys.argv[1:], "--live", directory]
                memory = {"memory": probe()}
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found[kind].append(memory | json.loads(output))
    for kind, starts in found.items():
        print(f"{kind} start, {len(starts)} of them: median (least to most)")
        for name in starts[0]:
            values = [start[name] for start in starts]
            print(f"  {name:30} {statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
