"""Measures what steps of the real engine take, and fits the simulator's step-time model to them.

python -m benchmarks.simulate.calibrate [MODEL] [--rows 1 4 16 64] [--prompts 16 128 512 1500] [--write costs.json]

Every load is `rows` prompts of one length that are answered together: chunks of many sizes at many positions, then
decode steps over contexts of that length. The times are those that the scheduler's own model is told (the forward and
the draw). The fit minimizes relative errors, with coefficients that are not negative.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.simulate.costs import StepCosts, write_costs
from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.client import EngineClient
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.scheduling.step_time import StepLoad, StepTimeModel

_ANSWER = 12
_FAR = 1e6  # a target, in ms, that holds nothing back: it only makes the scheduler keep a model

Step = tuple[StepLoad, float]


class Watch:
    """Notes what the scheduler's step-time model is told, for as long as it is open."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __enter__(self) -> "Watch":
        observe, steps = StepTimeModel.observe, self.steps
        self._observe = observe

        def noted(self: StepTimeModel, load: StepLoad, seconds: float) -> None:
            steps.append((load, seconds))
            observe(self, load, seconds)

        StepTimeModel.observe = noted
        return self

    def __exit__(self, *_: object) -> None:
        StepTimeModel.observe = self._observe


def run_load(client: EngineClient, rows: int, prompt: int, serial: int) -> None:
    """Answer `rows` prompts that share nothing, to the end."""
    live = rows
    for index in range(rows):
        first = (serial * 64 + index) * 131
        tokens = tuple(1000 + (first + 7 * position) % 30_000 for position in range(prompt + index))
        stopping = Stopping(max_tokens=_ANSWER, ignore_eos=True)
        sampling = Sampling(temperature=0.0)
        name = f"{serial}-{index}"
        client.submit(
            GenerationRequest(
                name, tokens, sampling, stopping, arrival=time.monotonic(), cache_salt=name, detokenize=False
            )
        )
    while live:
        live -= sum(output.finish_reason is not None for output in client.receive(0.0))


def fit(steps: Sequence[Step]) -> tuple[StepCosts, float]:
    """Least squares of relative errors; the median relative error comes along."""
    features = np.array([(1.0, load.tokens, load.rows, load.pairs) for load, _ in steps])
    seconds = np.array([taken for _, taken in steps])
    used = list(range(features.shape[1]))
    while True:  # a cost below nothing is nothing: fit the others without it
        weights, *_ = np.linalg.lstsq(features[:, used] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (weights >= 0).all():
            break
        used.pop(int(weights.argmin()))
    full = [0.0] * features.shape[1]
    for index, weight in zip(used, weights, strict=True):
        full[index] = float(weight)
    errors = np.abs(features @ np.array(full) / seconds - 1)
    middle = float(np.median(errors))
    return StepCosts(*full, noise=middle), middle


def measure(model: str | None, rows: Iterable[int], prompts: Iterable[int]) -> list[Step]:
    """Steps of the real engine under every load."""
    config = EngineConfig.from_options(
        model=model, max_model_len=2048, max_num_seqs=max(rows), enable_prefix_caching=False, target_itl_ms=_FAR
    )
    client = build_engine(config).client
    try:
        run_load(client, 1, 32, 0)  # warms up what is warm in service
        with Watch() as watch:
            loads = [(count, prompt) for count in rows for prompt in prompts if count * prompt <= 16_384]
            for serial, (count, prompt) in enumerate(loads, 1):
                run_load(client, count, prompt, serial)
        return watch.steps
    finally:
        client.close()


def main() -> None:
    """Print the figures and how well they fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="as for octavo serve; the demo model when left out")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompts", type=int, nargs="+", default=[16, 128, 512, 1500])
    parser.add_argument("--write", type=Path, help="a file for the simulator's --costs")
    options = parser.parse_args()
    steps = measure(options.model, options.rows, options.prompts)
    costs, error = fit(steps)
    print(f"{len(steps)} steps; median relative error {error:.1%}\n{costs}\n")
    print("| rows | tokens | measured ms | fitted ms |\n|---:|---:|---:|---:|")
    for rows in options.rows:
        alike = [(load, taken) for load, taken in steps if load.rows == load.tokens == rows]
        if alike:
            measured = statistics.median(taken for _, taken in alike)
            fitted = statistics.median(costs.seconds(load) for load, _ in alike)
            print(f"| {rows} | {rows} | {1e3 * measured:.1f} | {1e3 * fitted:.1f} |")
    if options.write:
        write_costs(options.write, costs)


if __name__ == "__main__":
    main()
