"""Runs a model file through a backend and gives the logits of every position, as the families' tests compare them."""

import itertools

import numpy as np

from octavo.cache.layout import groups_for, layer_caches, page_bytes, state_pages
from octavo.execution.cpu.runner import NativeRunner, record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.slots import SlotTable
from octavo.execution.step_inputs import build_inputs
from octavo.execution.torch.packer import TorchPacker
from octavo.execution.torch.runner import TorchRunner
from octavo.execution.torch.storage import TorchStore
from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import Sampling
from octavo.kernels.cpu.library import load_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import ProgramLimits
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.decoder import Decoder
from octavo.model.source import open_model
from octavo.model.weights import load_decoder

BLOCK_SIZE, MAX_LEN, BLOCKS = 16, 64, 128
CACHE_FORMAT = CACHE_FORMAT_OF_DTYPE["float32"]


def layer_bytes(layer, need):
    return load_library().cache_layer_bytes(CACHE_FORMAT, need.kv_heads, need.key_width, BLOCK_SIZE, need.value_width)


def logits_of(path, ids, backend="torch", steps=(), **options):
    """[tokens, vocab] in float32.

    `steps`: lengths of the chunks that the prompt is computed in (default: one). `options`: of load_decoder.
    """
    source = open_model(path)
    groups = groups_for(source.spec, layer_bytes)
    table = SlotTable(1, MAX_LEN, len(groups), BLOCK_SIZE, state_pages(groups))
    build = _torch_runner if backend == "torch" else _native_runner
    runner = build(source, groups, table, options)
    bounds = np.cumsum([0, *(steps or (len(ids),))]).tolist()
    assert bounds[-1] == len(ids)
    parts = []
    for step, (start, end) in enumerate(itertools.pairwise(bounds)):
        held, needed = (-(-bound // BLOCK_SIZE) for bound in (start, end))
        blocks = tuple(
            # Recurrent states go to other pages with every step.
            tuple(64 + step % 2 * 32 + page for page in range(group.pages))
            if group.is_state
            else tuple(1 + g * 8 + b for b in range(held, needed))
            for g, group in enumerate(groups)
        )
        row = PlannedRow(0, 0, start, end - start, blocks, samples=True)
        arrival = (SlotArrival(0, 0, tuple(ids), len(ids), Sampling(temperature=0.0)),) if step == 0 else ()
        plan = StepPlan(step, (row,), arrival)
        table.apply(plan)
        inputs = build_inputs(plan, table)
        inputs.sampled_rows = np.arange(end - start, dtype=np.int32)
        inputs.row_sequences = np.zeros(end - start, np.int32)
        inputs.sampling = np.repeat(inputs.sampling, end - start)
        parts.append(np.array(runner.logits(inputs), np.float32))
    return np.concatenate(parts)


def _decoder(source, groups, packer, options):
    loaded = load_decoder(source, packer, max_positions=MAX_LEN, **options)
    return Decoder(source.spec, loaded.weights, layer_caches(source.spec, groups), loaded.ropes)


def _torch_runner(source, groups, table, options):
    return TorchRunner(_decoder(source, groups, TorchPacker(), options), TorchStore(BLOCKS, BLOCK_SIZE, "float32"))


def _native_runner(source, groups, table, options):
    library = load_library()
    team = ThreadTeam(library, 2)
    storage = CpuStorage(BLOCKS, page_bytes(source.spec, groups, layer_bytes))
    storage.page(slice(None))[:] = 0xFF  # NaN: reading what nobody wrote shows
    cache = storage.cache("float32", BLOCK_SIZE, table.tables)
    decoder = _decoder(source, groups, NativePacker(library, team), options)
    program = record_program(library, team, decoder, ProgramLimits(MAX_LEN, MAX_LEN), cache, MAX_LEN)
    return NativeRunner(program, storage)
