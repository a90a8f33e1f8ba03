"""Small decoders with random weights, on any backend, and a worker that runs them."""

import zlib

import numpy as np

from octavo.cache.layout import groups_for, layer_caches, page_bytes, state_pages
from octavo.execution.cpu.runner import NativeRunner, record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.slots import SlotTable
from octavo.execution.torch.packer import TorchPacker
from octavo.execution.torch.runner import TorchRunner
from octavo.execution.torch.storage import TorchStore
from octavo.execution.worker import Worker
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import ProgramLimits, Recording
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.model.assembly import assemble
from octavo.model.decoder import Decoder
from octavo.model.rope import rope_tables
from octavo.ops.conformance import numbers, stored
from octavo.ops.interface import RopeTable
from octavo.spec.decoder import (
    AttentionSpec,
    ConvSpec,
    DecoderSpec,
    DenseMlpSpec,
    EmbeddingSpec,
    HeadSpec,
    LatentSpec,
    NormSpec,
    QueryScaleSpec,
    RopeSpec,
    ShortConvSpec,
    StateSpaceSpec,
    parallel,
    sequential,
)
from tests.conformance.devices import ISAS, library, team

VOCAB, HIDDEN, MAX_LEN, BLOCK_SIZE = 301, 64, 160, 16
RMS, LAYER = NormSpec("rms", 1e-6), NormSpec("layer", 1e-5, bias=True)
ROPE = RopeSpec(10000.0, 16)


def _attention(**fields):
    return AttentionSpec(**{"heads": 4, "kv_heads": 2, "head_dim": 16, "scale": 0.25, "rope": ROPE, **fields})


def _decoder(*layers, **fields):
    embedding = fields.pop("embedding", EmbeddingSpec(VOCAB, HIDDEN))
    head = fields.pop("head", HeadSpec(tied=True))
    return DecoderSpec(HIDDEN, layers, embedding, fields.pop("final_norm", RMS), head, MAX_LEN, **fields)


SILU, GELU = DenseMlpSpec(96, "silu"), DenseMlpSpec(96, "gelu_tanh", gated=False, bias=True)
LLAMA = sequential(_attention(), SILU, RMS)
WINDOWED = sequential(_attention(window=20, qk_norm=RMS), SILU, RMS, RMS)
FULL = sequential(_attention(qk_norm=RMS, softcap=20.0), SILU, RMS, RMS)
GPT = sequential(_attention(kv_heads=4, rope=None, qkv_bias=True, out_bias=True), GELU, LAYER)
LATENT = sequential(
    LatentSpec(6, 32, 8, 16, 32, 0.2, RopeSpec(10000.0, 8), RMS, q_rank=64, q_norm=RMS, bias=True), SILU, RMS
)
SHORT_CONV = sequential(ShortConvSpec(ConvSpec(HIDDEN, 3, gated=True), bias=True), SILU, RMS)
STATE_SPACE = sequential(StateSpaceSpec(6, 32, 8, 2, 4, 1e-5), SILU, RMS)
SHARED = sequential(_attention(kv_from=0, qk_norm=RMS), SILU, RMS)
SHARED_WINDOW = sequential(_attention(kv_from=1, window=20, qkv_bias=True), SILU, RMS)
CHUNKED = sequential(_attention(chunk=24, query_scale=QueryScaleSpec(0.3, 8.0)), SILU, RMS)
SPECS = {
    "shared": _decoder(LLAMA, sequential(_attention(window=20), SILU, RMS), SHARED, SHARED_WINDOW),
    "chunked": _decoder(CHUNKED, LLAMA),
    "short conv": _decoder(SHORT_CONV, LLAMA, SHORT_CONV),
    "state space": _decoder(STATE_SPACE, STATE_SPACE, LLAMA),
    "latent": _decoder(LATENT, LATENT),
    "llama": _decoder(LLAMA, LLAMA),
    "gemma": _decoder(
        WINDOWED, WINDOWED, FULL, embedding=EmbeddingSpec(VOCAB, HIDDEN, scale=8.0), head=HeadSpec(True, softcap=30.0)
    ),
    "gpt": _decoder(GPT, GPT, embedding=EmbeddingSpec(VOCAB, HIDDEN, positions=MAX_LEN), final_norm=LAYER),
    "parallel": _decoder(
        parallel(_attention(), SILU, RMS), parallel(_attention(), GELU, RMS, own=True), head=HeadSpec(False, scale=0.5)
    ),
}


class RandomTake:
    """Weights by name, the same on every backend: bf16, f32 and q8_0 by turns."""

    def __init__(self, packer, format=None):
        self._packer = packer
        self._format = format

    def matrix(self, place, name, parts, columns):
        formats = ("bf16", "f32", "q8_0")
        seeds = [zlib.crc32(f"{place}{part}".encode()) for part, _ in parts]
        return self._packer.matrix(
            [
                stored(self._format or formats[seed % 3], rows, columns, seed)
                for seed, (_, rows) in zip(seeds, parts, strict=True)
            ]
        )

    def heads(self, place, name, part, columns):
        rows, depth = (columns, part.rows) if part.turned else (part.rows, columns)
        return self.matrix(place, name, [(f"{name}.{head}", rows) for head in range(part.heads)], depth)

    def gain(self, place, name, width):
        return self._packer.vector(1 + numbers(zlib.crc32(f"{place}{name}".encode()), width, scale=0.1))

    def bias(self, place, name, parts):
        rows = sum(rows for _, rows in parts)
        return self._packer.vector(numbers(zlib.crc32(f"{place}{name}b".encode()), rows, scale=0.1))

    def parameters(self, place, name, parts):
        # Decays are negative; what else there is may be anything.
        parts = [numbers(zlib.crc32(f"{place}{part}".encode()), rows, scale=0.5) for part, rows in parts]
        return self._packer.vector(np.concatenate([-np.exp(parts[0]), *parts[1:]]))

    def taps(self, place, name, width, taps):
        return self._packer.vector(numbers(zlib.crc32(f"{place}{name}".encode()), taps * width, scale=0.4))


def decoder(spec, packer, format=None):
    """A Decoder with random weights; `format` of all its matrices, or a mix."""
    tables = {}
    for rope in spec.ropes:
        cos, sin = (packer.vector(t).reshape(t.shape) for t in rope_tables(rope, MAX_LEN))
        tables[rope] = RopeTable(rope.width, cos, sin)
    return Decoder(spec, assemble(spec, RandomTake(packer, format)), layer_caches(spec, groups_of(spec)), tables)


def slot_table(spec, slots=8):
    groups = groups_of(spec)
    return SlotTable(slots, MAX_LEN, len(groups), BLOCK_SIZE, state_pages(groups))


def groups_of(spec):
    """The layers' groups, laid out for float16; every dtype of the runners here takes them as they are."""
    native = library(ISAS[0])
    return groups_for(
        spec, lambda _, n: native.cache_layer_bytes(1, n.kv_heads, n.key_width, BLOCK_SIZE, n.value_width)
    )


def page_size(native, spec, dtype="float16"):
    """Bytes of a page of the spec's groups."""
    code = CACHE_FORMAT_OF_DTYPE[dtype]

    def layer_bytes(layer, need):
        return native.cache_layer_bytes(code, need.kv_heads, need.key_width, BLOCK_SIZE, need.value_width)

    return page_bytes(spec, groups_of(spec), layer_bytes)


def native_runner(isa, spec, table, *, threads=2, tokens=128, rows=8, dtype="float16", fused=True, format=None):
    native, threads_of = library(isa), team(isa, threads)
    storage = CpuStorage(256, page_size(native, spec, dtype))
    storage.page(slice(None))[:] = 0xFF  # NaN: reading what nobody wrote shows
    cache = storage.cache(dtype, BLOCK_SIZE, table.tables)
    model = decoder(spec, NativePacker(native, threads_of), format)
    program = record_program(native, threads_of, model, ProgramLimits(tokens, rows), cache, MAX_LEN, Recording(fused))
    return NativeRunner(program, storage)


def torch_runner(spec, dtype="float16", format=None):
    return TorchRunner(decoder(spec, TorchPacker(), format), TorchStore(256, BLOCK_SIZE, dtype))


def native_worker(isa, spec, **options):
    table = slot_table(spec)
    return Worker(native_runner(isa, spec, table, **options), table)


def torch_worker(spec, **options):
    return Worker(torch_runner(spec, **options), slot_table(spec))


def prompt(seed, length):
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())
