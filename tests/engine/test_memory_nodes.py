"""An engine on a machine with two memory nodes: the same answers, threads bound, weights asked to lie beside them."""

import logging
import os
from dataclasses import replace

import pytest

from octavo import LLM, SamplingParams
from octavo.config.machine import read_machine
from octavo.engine import build
from octavo.telemetry.log import logger
from tests.families.checkpoints import random_model, save

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPT = {"prompt_token_ids": [(7 * i) % 250 + 3 for i in range(40)]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    save(random_model("llama"), path)
    return str(path)


def answer(llm):
    return llm.generate([PROMPT], PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def opened(directory):
    return LLM(directory, skip_tokenizer_init=True, weight_cache=False, max_model_len=64, max_num_seqs=2, threads=2)


@pytest.fixture
def two_nodes(monkeypatch):
    """CPUs of this machine, or its only one twice, as two nodes."""
    usable = sorted(os.sched_getaffinity(0))
    cpus = (usable[0], usable[-1] if len(usable) > 1 else usable[0] + 1)
    nodes = replace(read_machine(), cpus=cpus, cores=cpus, nodes=((cpus[0],), (cpus[1],)), node_numbers=(0, 1))
    monkeypatch.setattr(build, "read_machine", lambda: nodes)
    return cpus


def test_answers_are_the_same_and_weights_are_placed(directory, two_nodes, monkeypatch):
    placed = []
    monkeypatch.setattr(build, "place_weights", lambda weights, placement: placed.append((len(weights), placement)))
    with opened(directory) as llm:
        found = answer(llm)
        resolved = llm.llm_engine.engine.resolved.model
    monkeypatch.undo()
    assert resolved.memory_nodes.value == 2
    assert str(resolved.placement.value) == "1 + 1 threads"
    [(matrices, placement)] = placed
    assert matrices > 4
    assert (placement.cpus, placement.numbers) == (two_nodes, (0, 1))
    with opened(directory) as llm:
        assert answer(llm) == found


class _Told(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def told():
    """Warnings of the engine, whatever earlier tests made of its log."""
    handler, log = _Told(), logger("engine")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    yield handler
    log.setLevel(level)
    log.removeHandler(handler)


def test_a_system_that_moves_no_memory_is_told_and_does_without(directory, two_nodes, monkeypatch, told):
    def refuse(weights, placement):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(build, "place_weights", refuse)
    with opened(directory) as llm:
        assert len(answer(llm)) == 6
    [line] = [line for line in told.lines if "weights stay on the memory nodes" in line]
    assert line.endswith("[Errno 1] Operation not permitted")
