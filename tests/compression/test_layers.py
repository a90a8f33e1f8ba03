"""Running, tracing and rescaling layers of every family: scaled models compute what they did."""

import numpy as np
import pytest
import torch

from octavo.compression.checkpoint import CheckpointRounder
from octavo.compression.flow import shared_inputs
from octavo.compression.schemes import EightBitScheme
from tests.compression.models import TEXTS, make, opened, outputs, runner
from tests.families.checkpoints import random_model

FAMILIES = (
    "llama-biased-tied-llama3", "mistral-window", "qwen2", "qwen3", "gemma3", "granite", "opt", "opt-350m", "gpt2",
    "deepseek3-yarn", "llama4", "lfm2", "granite-hybrid",
)  # fmt: skip
# Which of a first layer's inputs can be scaled through what makes them; the rest cannot.
GIVERS = {
    "llama-biased-tied-llama3": ["norm", "values", "norm", "up"],
    "gpt2": ["norm", "values", "norm", None],  # gelu is not linear
    "opt": ["norm", "values", "norm", "up"],  # a ramp is
    "opt-350m": [None, "values", None, "up"],  # the norm's result is the residual, too
    "deepseek3-yarn": ["norm", "norm", None, "norm", "up"],
    "lfm2": ["norm", None, "norm", "up"],
    "granite-hybrid": ["norm", "norm", "norm", "up"],  # the gated norm before the projection out
}


@pytest.mark.parametrize("name", ["llama-biased-tied-llama3", "gemma3", "gpt2", "opt", "granite"])
def test_layers_compute_what_transformers_computes(name, tmp_path):
    source, parameters = opened(make(name, tmp_path, torch.float32))
    run = runner(source, parameters)
    run.embed()
    with torch.inference_mode():
        wanted = random_model(name)(torch.from_numpy(TEXTS).long(), output_hidden_states=True).hidden_states
    for index in range(len(source.spec.layers) - 1):  # the last one's are normed there
        assert np.abs(run.hidden - wanted[index].numpy()).max() < 2e-4 * np.abs(run.hidden).max()
        run.advance(run.load(index))


@pytest.mark.parametrize("name", GIVERS)
def test_what_can_take_over_a_scale(name, tmp_path):
    source, parameters = opened(make(name, tmp_path))
    run = runner(source, parameters)
    run.embed()
    groups = shared_inputs(run.trace(run.load(0)), {plan.name: plan.columns for plan in parameters.plan.matrices})
    assert [group.giver and group.giver.kind for group in groups] == GIVERS[name]
    assert all(group.why for group in groups if group.giver is None)
    assert [group.meets for group in groups].count(True) == (0 if name in ("lfm2", "granite-hybrid") else 1) + (
        name == "deepseek3-yarn"
    )


class _AnyFactors(EightBitScheme):
    """Factors that nothing asked for, of matrices that a file has turned as well."""

    def __init__(self, name):
        super().__init__(name, turned=True)

    def factors(self, group, weights, inputs):
        return np.random.default_rng(len(weights)).uniform(0.3, 3, group.giver.count).astype(np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_scaled_model_computes_what_it_did(name, tmp_path):
    """In float32, so that nothing is rounded; the heads that share keys and values share their factors."""
    source, parameters = opened(make(name, tmp_path, torch.float32))
    before = outputs(source, parameters)
    run = runner(source, parameters)
    rounder = CheckpointRounder(source, parameters, run, _AnyFactors("int8"))
    run.embed()
    for index in range(len(source.spec.layers)):
        rounder.scale_layer(index)
        run.advance(run.load(index))
    changed = set(parameters.changed)
    assert len(changed) >= len(source.spec.layers)
    after = outputs(source, parameters)
    assert np.abs(after - before).max() < 2e-4 * np.abs(before).max()
