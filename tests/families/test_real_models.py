"""The two real models: logits of every position as transformers computes them from the same numbers."""

import numpy as np
import pytest

from tests.families.checkpoints import expected_logits
from tests.families.harness import logits_of
from tests.families.real import gemma3_path, smollm2_path, transformers_model


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_native_logits_are_those_of_transformers(name, tmp_path):
    path = smollm2_path() if name == "smollm2" else gemma3_path(tmp_path)
    ids = [2, *np.random.default_rng(0).integers(3, 40000, 39).tolist()]
    expected = expected_logits(transformers_model(name, path), ids)
    actual = logits_of(path, ids, "native")
    error = np.sqrt(np.square(actual - expected).mean()) / expected.std()
    assert error < 1e-3
    assert (actual.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.95
