"""Every op at once, on numpy arrays: each is recorded, checked and run as a program of one instruction.

For conformance and debugging. The same checks and kernels stand behind whole programs.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import Axis, Buffer, Ids
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.interface import LayerCache, RopeTable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import Activation as ActivationKind
from octavo.spec.decoder import AttentionSpec, ConvSpec, LatentSpec, QueryScaleSpec, StateSpaceSpec

Array = NDArray[np.float32]
Vector = NDArray[np.float32]


class NativeOps:
    """Ops[ndarray, ndarray, Ids]. Activations are float32 [T or R, width].

    Args:
        step: the step's tokens, spans and rules, for the ops that need them; `sample` leaves its results there.
        cache: for attention.
    """

    def __init__(
        self,
        library: NativeLibrary,
        team: ThreadTeam,
        step: NativeStep | None = None,
        cache: NativeCache | None = None,
    ) -> None:
        self._library = library
        self._team = team
        self._step = step or NativeStep(1)
        self._cache = cache

    def embed(self, ids: Ids, table: PackedWeight) -> Array:
        return self._run(lambda ops: ops.embed(ids, table), rows=self._step.struct.tokens)

    def linear(self, x: Array, weight: PackedWeight, bias: Vector | None = None) -> Array:
        return self._run(lambda ops, a: ops.linear(a, weight, bias), x)

    def rms_norm(self, x: Array, weight: Vector | None, eps: float) -> Array:
        return self._run(lambda ops, a: ops.rms_norm(a, weight, eps), x)

    def layer_norm(self, x: Array, weight: Vector | None, bias: Vector | None, eps: float) -> Array:
        return self._run(lambda ops, a: ops.layer_norm(a, weight, bias, eps), x)

    def add(self, left: Array, right: Array) -> Array:
        return self._run(lambda ops, a, b: ops.add(a, b), left, right)

    def scale(self, x: Array, factor: float) -> Array:
        return self._run(lambda ops, a: ops.scale(a, factor), x)

    def act(self, x: Array, kind: ActivationKind) -> Array:
        return self._run(lambda ops, a: ops.act(a, kind), x)

    def act_mul(self, gate_up: Array, kind: ActivationKind) -> Array:
        return self._run(lambda ops, a: ops.act_mul(a, kind), gate_up)

    def qkv_rope_cache(
        self,
        qkv: Array,
        spec: AttentionSpec,
        cache: LayerCache,
        positions: Ids,
        rope: RopeTable | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
    ) -> Array:
        return self._run(lambda ops, a: ops.qkv_rope_cache(a, spec, cache, positions, rope, q_norm, k_norm), qkv)

    def scale_by_position(self, x: Array, spec: QueryScaleSpec, positions: Ids) -> Array:
        return self._run(lambda ops, a: ops.scale_by_position(a, spec, positions), x)

    def paged_attention(
        self,
        q: Array,
        spec: AttentionSpec,
        cache: LayerCache,
        sinks: Vector | None = None,
        distances: Vector | None = None,
    ) -> Array:
        return self._run(lambda ops, a: ops.paged_attention(a, spec, cache, sinks, distances), q)

    def head_linear(self, x: Array, weight: PackedWeight) -> Array:
        return self._run(lambda ops, a: ops.head_linear(a, weight), x)

    def latent_cache(
        self,
        q: Array,
        kv: Array,
        spec: LatentSpec,
        cache: LayerCache,
        positions: Ids,
        rope: RopeTable | None,
        gain: Vector | None,
    ) -> Array:
        return self._run(lambda ops, a, b: ops.latent_cache(a, b, spec, cache, positions, rope, gain), q, kv)

    def latent_attention(self, latent: Array, q: Array, spec: LatentSpec, cache: LayerCache) -> Array:
        return self._run(lambda ops, a, b: ops.latent_attention(a, b, spec, cache), latent, q)

    def causal_conv(self, x: Array, spec: ConvSpec, cache: LayerCache, weight: Vector, bias: Vector | None) -> Array:
        return self._run(lambda ops, a: ops.causal_conv(a, spec, cache, weight, bias), x)

    def state_scan(self, x: Array, steps: Array, spec: StateSpaceSpec, cache: LayerCache, rates: Vector) -> Array:
        return self._run(lambda ops, a, b: ops.state_scan(a, b, spec, cache, rates), x, steps)

    def gated_norm(self, x: Array, gates: Array, weight: Vector | None, spec: StateSpaceSpec) -> Array:
        return self._run(lambda ops, a, b: ops.gated_norm(a, b, weight, spec), x, gates)

    def softcap(self, x: Array, limit: float) -> Array:
        return self._run(lambda ops, a: ops.softcap(a, limit), x)

    def select_rows(self, x: Array, rows: Ids) -> Array:
        return self._run(lambda ops, a: ops.select_rows(a, rows), x)

    def all_reduce(self, x: Array) -> Array:
        return x

    def process_logits(self, logits: Array) -> Array:
        return self._run(lambda ops, a: ops.process_logits(a), logits, axis=Axis.ROWS)

    def sample(self, logits: Array, raw: Array) -> None:
        def record(ops: ProgramRecorder, first: Buffer, second: Buffer) -> Buffer:
            ops.sample(first, second)
            return second  # unchanged, and ignored

        self._run(record, logits, raw, axis=Axis.ROWS)

    def _run(
        self, record: Callable[..., Buffer], *activations: Array, rows: int | None = None, axis: Axis = Axis.TOKENS
    ) -> Array:
        """Record one op over `activations`, run it, return a copy of its result."""
        recorder = ProgramRecorder(self._library, self._cache)
        inputs = [recorder.input(array.shape[1], axis) for array in activations]
        out = record(recorder, *inputs)
        if not recorder.instructions:  # the identity
            return activations[0]
        count = len(activations[0]) if rows is None else rows
        struct = self._step.struct
        limits = ProgramLimits(max(count, 1), max(count, struct.rows, 1))
        program = NativeProgram(self._library, self._team, recorder.instructions, limits, self._cache, fused=False)
        for buffer, array in zip(inputs, activations, strict=True):
            program.view(buffer, count)[:] = array
        tokens = struct.tokens
        struct.tokens = count if axis is Axis.TOKENS else tokens
        program.run(self._step)
        struct.tokens = tokens
        return program.view(out, struct.rows if out.axis is Axis.ROWS else count).copy()
