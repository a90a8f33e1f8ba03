"""`octavo inspect` tells what became of the weights: of rounded ones, which stay on the grid of 4 bits they had."""

import logging
from pathlib import Path

import pytest
import torch

from octavo.cli.report import report
from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine
from octavo.model.source import open_model
from octavo.model.weight_plan import plan_load
from tests.families.checkpoints import random_model, save


def on_grid(weight: torch.Tensor) -> torch.Tensor:
    """A matrix [outputs, inputs] whose 32 neighbouring inputs hold 16 numbers at most."""
    groups = weight.reshape(len(weight), -1, 32)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (high - low) / 15
    return (((groups - low) / step).round() * step + low).reshape(weight.shape)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices are [inputs, outputs] in the file: of layer 0 on a grid along inputs, of layer 1 across."""
    model = random_model("gpt2")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".c_" in name and weight.dim() == 2:
                weight.copy_(on_grid(weight.T).T if ".h.0." in name else on_grid(weight))
    return save(model, tmp_path_factory.mktemp("gpt2"), torch.bfloat16)


def test_grids_of_transposed_matrices_are_found(gpt2: Path) -> None:
    source = open_model(gpt2)
    plan = plan_load(source.spec, source.weights, source.tensors, None, "int4")
    formats = {matrix.name: {part.format for part in matrix.slices} for matrix in plan.matrices}
    for name in ("mixer.qkv", "mixer.out", "mlp.up", "mlp.down"):
        assert formats[f"layers.0.{name}"] == {"q4_1"}
        assert formats[f"layers.1.{name}"] == {"int4s_row_f32_rotated"}


def test_layers_that_keep_their_grid_are_told(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octavo"):
        engine = build_engine(EngineConfig.from_options(model=str(gpt2), quantization="int4", max_num_seqs=2))
    lines = list(report(engine, None))
    engine.close()
    [weights] = [line for line in lines if line.startswith("  weights   ")]
    assert "layers that were rounded to 4 bits before stay on their grid, in q4_1" in weights
    kernels = lines[lines.index("kernels") + 1 :]
    shown = [line.split()[2] for line in kernels if line.startswith("  weights in")]
    assert sorted(shown) == ["int4s_row_f32_rotated", "int8_row_f32_rotated", "q4_1"]
    table = kernels[: kernels.index("")]
    assert len({line.index(word) for line in table if (word := "% of the elements") in line}) == 1
    assert " in int4, packed " in caplog.text
