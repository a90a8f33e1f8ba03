"""How much of a decode step is Python: the time around the one native call, by number of sequences.

python benchmarks/python_share.py [MODEL]
"""

import statistics
import sys
import time

from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.kernels.cpu.program import NativeProgram

STEPS = 64


def measure(client, native_seconds, sequences):
    """Medians over decode steps: (seconds of a step, seconds of its native call)."""
    for index in range(sequences):
        request = GenerationRequest(
            id=f"{sequences}-{index}",
            prompt_token_ids=tuple(range(1000 + index, 1032 + index)),
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(max_tokens=STEPS, ignore_eos=True),
            arrival=time.monotonic(),
            detokenize=False,
        )
        client.submit(request)
    steps, live = [], sequences
    while live:
        native_seconds.clear()
        started = time.perf_counter()
        outputs = client.receive(0.0)
        steps.append((time.perf_counter() - started, sum(native_seconds)))
        live -= sum(output.finish_reason is not None for output in outputs)
    decode = steps[len(steps) // 4 : -2]
    return statistics.median(step for step, _ in decode), statistics.median(native for _, native in decode)


def main():
    native_seconds = []
    run = NativeProgram.run

    def timed(self, *arguments):
        started = time.perf_counter()
        try:
            return run(self, *arguments)
        finally:
            native_seconds.append(time.perf_counter() - started)

    NativeProgram.run = timed
    config = EngineConfig.from_options(model=sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=2048)
    client = build_engine(config).client
    measure(client, native_seconds, 1)
    print("| sequences | step ms | native ms | Python us | Python share |\n|---|---|---|---|---|")
    for sequences in (1, 8, 64):
        step, native = measure(client, native_seconds, sequences)
        python = step - native
        print(f"| {sequences} | {step * 1e3:.2f} | {native * 1e3:.2f} | {python * 1e6:.0f} | {python / step:.1%} |")
    client.close()


if __name__ == "__main__":
    main()
