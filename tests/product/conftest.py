"""The demo model, loaded once for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from octavo.model.source import find_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    return find_model(None)


@pytest.fixture(scope="session")
def weight_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the session: the first load fills it, the others read it."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def llm(weight_cache: Path) -> Iterator[LLM]:
    model = LLM(max_model_len=512, max_num_seqs=8, weight_cache_dir=str(weight_cache), seed=3)
    yield model
    model.close()
