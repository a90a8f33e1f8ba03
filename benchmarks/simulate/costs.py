"""How long a step takes on the simulated device, and the figures that were measured on a real one."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.scheduling.step_time import StepLoad


@dataclass(frozen=True, slots=True)
class StepCosts:
    """seconds = fixed + token * tokens + row * rows + pair * pairs; see `StepLoad`. All in seconds.

    `noise`: what steps of the same load differ by, as a standard deviation relative to that.
    """

    fixed: float
    token: float
    row: float
    pair: float
    noise: float = 0.0

    def seconds(self, load: StepLoad) -> float:
        """What a step of this load takes."""
        return self.fixed + self.token * load.tokens + self.row * load.rows + self.pair * load.pairs

    def request_seconds(self, prompt: float, answer: float, rows: float) -> float:
        """A request's share of the device when steps have `rows` rows: its reciprocal is the most that are served."""
        context = prompt + answer / 2
        decode = self.fixed / rows + self.token + self.row + self.pair * context
        return prompt * (self.token + self.pair * prompt / 2) + answer * decode


# SmolLM2-135M-Instruct in bf16 on two cores with AVX-512: what `calibrate` printed there
# (220 steps of 1 to 64 rows, chunks of up to 512 tokens; median relative error 7 %).
SMOLLM2_TWO_CORES = StepCosts(fixed=0.0091, token=0.000754, row=0.000462, pair=5.27e-7, noise=0.07)

# Nobody's in particular: the order of an 8B model on one accelerator. Many rows share a step, so a long load costs less
# real time a request.
ACCELERATOR = StepCosts(fixed=0.008, token=2e-5, row=2e-5, pair=1e-10, noise=0.07)

NAMED = {"smollm2": SMOLLM2_TWO_CORES, "accelerator": ACCELERATOR}


def read_costs(source: str) -> StepCosts:
    """One of `NAMED`, or figures that `calibrate` wrote to a file."""
    if source in NAMED:
        return NAMED[source]
    path = Path(source)
    return StepCosts(**{name: float(value) for name, value in json.loads(path.read_text()).items()})


def write_costs(path: Path, costs: StepCosts) -> None:
    """For `--costs`."""
    path.write_text(json.dumps(asdict(costs), indent=2) + "\n")
