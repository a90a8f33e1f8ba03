"""Records one forward pass as a list of instructions: what a graph capture is to a GPU.

Every shape, type, alignment and size is checked here, once; the interpreter trusts the instructions.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from octavo.errors import InternalError
from octavo.kernels.cpu.allocate import is_aligned
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import Axis, Buffer, Ids, Instruction, Places, Vector
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.structs import ActivationCode, CacheType, Coding, Opcode, format_code
from octavo.ops.interface import LayerCache, RopeTable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import Activation as ActivationKind
from octavo.spec.decoder import AttentionSpec, ConvSpec, LatentSpec, QueryScaleSpec, RopeSpec, StateSpaceSpec

MOST_TAPS = 16  # of a convolution


class ProgramRecorder:
    """Ops[Buffer, ndarray, Ids]: calling it writes the program instead of computing.

    Args:
        library: whose packed layouts the weights are checked against.
        cache: what attention reads and writes; None when the program has none.
        max_len: longest context; rope and position tables must reach it.
        coding: what products with weights of block formats round their inputs to.

    Every op raises InternalError when its arguments do not fit together.
    """

    def __init__(
        self,
        library: NativeLibrary,
        cache: NativeCache | None = None,
        max_len: int = 0,
        coding: Coding = Coding.EXACT,
    ) -> None:
        self.instructions: list[Instruction] = []
        self._library = library
        self._cache = cache
        self._max_len = max_len
        self._coding = coding
        self._buffers = 0

    def input(self, width: int, axis: Axis = Axis.TOKENS) -> Buffer:
        """A buffer that is filled before the program runs."""
        self._buffers += 1
        return Buffer(self._buffers - 1, width, axis)

    # --- matrices ---

    def embed(self, ids: Ids, table: PackedWeight) -> Buffer:
        rows, width = table.shape
        _require(ids is not Ids.SAMPLED_ROWS, "embed looks up token ids, positions or token types")
        if ids is Ids.POSITIONS:
            _require(rows >= self._max_len, f"a position table of {rows} rows cannot serve {self._max_len} positions")
        self._check_matrix(table)
        return self._emit(
            Instruction(Opcode.EMBED, Axis.TOKENS, width, integers=(len(table.segments), ids.value), operands=(table,))
        )

    def linear(self, x: Buffer, weight: PackedWeight, bias: Vector | None = None) -> Buffer:
        width, depth = weight.shape
        _require(depth == x.width, f"a weight of {depth} inputs is applied to an activation {x.width} wide")
        self._check_matrix(weight)
        _check_vector(bias, width, "bias")
        integers = (len(weight.segments), self._coding)
        return self._emit(
            Instruction(Opcode.LINEAR, x.axis, width, x, depth=depth, integers=integers, operands=(weight, bias))
        )

    # --- norms and elementwise ---

    def rms_norm(self, x: Buffer, weight: Vector | None, eps: float) -> Buffer:
        _check_vector(weight, x.width, "gain")
        return self._emit(Instruction(Opcode.RMS_NORM, x.axis, x.width, x, floats=(eps,), operands=(weight,)))

    def layer_norm(self, x: Buffer, weight: Vector | None, bias: Vector | None, eps: float) -> Buffer:
        _check_vector(weight, x.width, "gain")
        _check_vector(bias, x.width, "bias")
        return self._emit(Instruction(Opcode.LAYER_NORM, x.axis, x.width, x, floats=(eps,), operands=(weight, bias)))

    def add(self, left: Buffer, right: Buffer) -> Buffer:
        same = left.width == right.width and left.axis == right.axis
        _require(same, f"cannot add {_shape(left)} and {_shape(right)}")
        return self._emit(Instruction(Opcode.ADD, left.axis, left.width, left, right))

    def scale(self, x: Buffer, factor: float) -> Buffer:
        return x if factor == 1.0 else self._emit(Instruction(Opcode.SCALE, x.axis, x.width, x, floats=(factor,)))

    def act(self, x: Buffer, kind: ActivationKind) -> Buffer:
        return self._emit(Instruction(Opcode.ACT, x.axis, x.width, x, integers=(_activation(kind),)))

    def act_mul(self, gate_up: Buffer, kind: ActivationKind) -> Buffer:
        _require(gate_up.width % 2 == 0, f"gate and up are two halves; {gate_up.width} is odd")
        return self._emit(
            Instruction(Opcode.ACT_MUL, gate_up.axis, gate_up.width // 2, gate_up, integers=(_activation(kind),))
        )

    def softcap(self, x: Buffer, limit: float) -> Buffer:
        _require(limit > 0.0, f"a softcap is positive, not {limit}")
        return self._emit(Instruction(Opcode.SOFTCAP, x.axis, x.width, x, floats=(limit,)))

    # --- attention ---

    def qkv_rope_cache(
        self,
        qkv: Buffer,
        spec: AttentionSpec,
        cache: LayerCache,
        positions: Ids,
        rope: RopeTable | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
    ) -> Buffer:
        width = (spec.heads + 2 * spec.own_kv_heads) * spec.head_dim
        _require(positions is Ids.POSITIONS, "rotation goes by positions")
        _require(qkv.width == width, f"q, k and v are {width} wide together, not {qkv.width}")
        part = self._check_attention(spec, cache)
        self._check_rope(spec.rope, rope, spec.head_dim)
        for gain in (q_norm, k_norm):
            _require(gain is None or spec.qk_norm is not None, "a gain of queries or keys without their norm")
            _check_vector(gain, spec.head_dim, "gain of queries or keys")
        if spec.qk_norm is not None and q_norm is None:
            q_norm = np.ones(spec.head_dim, np.float32)  # null would mean: no norm
        if spec.qk_norm is not None and k_norm is None:
            k_norm = np.ones(spec.head_dim, np.float32)
        rotary = 0 if rope is None else rope.width
        cos, sin = (None, None) if rope is None else (_vector(rope.cos), _vector(rope.sin))
        return self._emit(
            Instruction(
                Opcode.QKV_ROPE_CACHE,
                Axis.TOKENS,
                spec.heads * spec.head_dim,
                qkv,
                integers=(spec.heads, spec.own_kv_heads, spec.head_dim, rotary, cache.group, cache.index, 0, *part),
                floats=(0.0 if spec.qk_norm is None else spec.qk_norm.eps,),
                operands=(cos, sin, q_norm, k_norm),
            )
        )

    def scale_by_position(self, x: Buffer, spec: QueryScaleSpec, positions: Ids) -> Buffer:
        _require(positions is Ids.POSITIONS and x.axis is Axis.TOKENS, "only tokens have positions")
        _require(spec.span > 0, f"a span of {spec.span} positions")
        floats = (spec.scale, spec.span)
        return self._emit(Instruction(Opcode.SCALE_BY_POSITION, Axis.TOKENS, x.width, x, floats=floats))

    def paged_attention(
        self,
        q: Buffer,
        spec: AttentionSpec,
        cache: LayerCache,
        sinks: Vector | None = None,
        distances: Vector | None = None,
    ) -> Buffer:
        width = spec.heads * spec.head_dim
        _require(q.width == width, f"queries are {width} wide, not {q.width}")
        _require((sinks is not None) == spec.sinks, "sinks are given exactly when the spec has them")
        _check_vector(sinks, spec.heads, "sinks")
        slopes = None if spec.alibi is None else np.array(spec.alibi, np.float32)
        _check_vector(slopes, spec.heads, "slopes")
        _require((distances is not None) == (spec.distances is not None), "distances are given when the spec has them")
        leaning = None if spec.distances is None or distances is None else _by_distance(spec, distances)
        part = self._check_attention(spec, cache)
        return self._emit(
            Instruction(
                Opcode.PAGED_ATTENTION,
                Axis.TOKENS,
                width,
                q,
                integers=(
                    spec.heads,
                    spec.kv_heads,
                    spec.head_dim,
                    spec.window or 0,
                    cache.group,
                    cache.index,
                    spec.chunk or 0,
                    *part,
                    int(not spec.causal),
                ),
                floats=(spec.scale, spec.softcap or 0.0, 0.0 if spec.distances is None else spec.distances.reach),
                operands=(slopes, sinks, leaning),
            )
        )

    # --- latent attention ---

    def head_linear(self, x: Buffer, weight: PackedWeight) -> Buffer:
        heads, (width, depth) = len(weight.segments), weight.shape
        rows = {segment.rows for segment in weight.segments}
        _require(len(rows) == 1 and rows.pop() * heads == width, "every head has one segment of equal height")
        _require(x.width % heads == 0 and x.width >= heads * depth, f"{x.width} elements are no {heads} x {depth}")
        self._check_matrix(weight)
        integers = (heads, x.width // heads, self._coding)
        return self._emit(
            Instruction(Opcode.HEAD_LINEAR, x.axis, width, x, depth=depth, integers=integers, operands=(weight,))
        )

    def latent_cache(
        self,
        q: Buffer,
        kv: Buffer,
        spec: LatentSpec,
        cache: LayerCache,
        positions: Ids,
        rope: RopeTable | None,
        gain: Vector | None,
    ) -> Buffer:
        _require(positions is Ids.POSITIONS, "rotation goes by positions")
        _require(q.width == spec.heads * spec.head_dim, f"queries are {spec.heads * spec.head_dim} wide, not {q.width}")
        _require(kv.width == spec.width, f"latent and key are {spec.width} wide together, not {kv.width}")
        part = self._check_latent(spec, cache)
        self._check_rope(spec.rope, rope, spec.rope_dim)
        _check_vector(gain, spec.rank, "gain of latents")
        cos, sin = (None, None) if rope is None else (_vector(rope.cos), _vector(rope.sin))
        return self._emit(
            Instruction(
                Opcode.LATENT_CACHE,
                Axis.TOKENS,
                q.width,
                q,
                kv,
                integers=(spec.heads, spec.nope, spec.rope_dim, spec.rank, cache.group, cache.index, 0, *part),
                floats=(spec.latent_norm.eps,),
                operands=(cos, sin, gain),
            )
        )

    def latent_attention(self, latent: Buffer, q: Buffer, spec: LatentSpec, cache: LayerCache) -> Buffer:
        width = spec.heads * spec.rank
        _require(latent.width == width, f"queries in the latent space are {width} wide, not {latent.width}")
        _require(q.width == spec.heads * spec.head_dim, f"queries are {spec.heads * spec.head_dim} wide, not {q.width}")
        part = self._check_latent(spec, cache)
        return self._emit(
            Instruction(
                Opcode.LATENT_ATTENTION,
                Axis.TOKENS,
                width,
                latent,
                q,
                integers=(spec.heads, spec.nope, spec.rope_dim, spec.rank, cache.group, cache.index, 0, *part),
                floats=(spec.scale,),
            )
        )

    # --- recurrent layers ---

    def causal_conv(self, x: Buffer, spec: ConvSpec, cache: LayerCache, weight: Vector, bias: Vector | None) -> Buffer:
        last = spec.first + spec.width * (3 if spec.gated else 1)
        _require(x.width >= last, f"a convolution of columns up to {last} reads an activation {x.width} wide")
        _require(1 <= spec.taps <= MOST_TAPS, f"a convolution has 1 to {MOST_TAPS} taps, not {spec.taps}")
        _check_vector(weight, spec.taps * spec.width, "convolution")
        _check_vector(bias, spec.width, "bias")
        return self._emit(
            Instruction(
                Opcode.CAUSAL_CONV,
                Axis.TOKENS,
                spec.width,
                x,
                integers=(spec.width, spec.taps, spec.first, x.width, spec.gated + 2 * spec.silu),
                operands=(weight, bias, self._pieces(cache, (spec.state_bytes,))),
            )
        )

    def state_scan(self, x: Buffer, steps: Buffer, spec: StateSpaceSpec, cache: LayerCache, rates: Vector) -> Buffer:
        _require(x.width == spec.conv.width, f"x, b and c are {spec.conv.width} wide together, not {x.width}")
        last = spec.first_step + spec.heads
        _require(steps.width >= last, f"time steps in columns up to {last} of an activation {steps.width} wide")
        _require(spec.heads % spec.groups == 0, f"{spec.heads} heads do not share {spec.groups} groups evenly")
        _check_vector(rates, 3 * spec.heads, "scan's rates")
        sizes = spec.heads, spec.head_dim, spec.state, spec.groups
        return self._emit(
            Instruction(
                Opcode.STATE_SCAN,
                Axis.TOKENS,
                spec.inner,
                x,
                steps,
                integers=(*sizes, spec.first_step, steps.width),
                floats=spec.limits,
                operands=(rates, self._pieces(cache, spec.cache_needs[0].pieces)),
            )
        )

    def gated_norm(self, x: Buffer, gates: Buffer, weight: Vector | None, spec: StateSpaceSpec) -> Buffer:
        _require(x.width == spec.inner, f"{spec.inner} channels are normed, not {x.width}")
        _require(gates.width >= spec.inner, f"{spec.inner} gates in an activation {gates.width} wide")
        _check_vector(weight, spec.inner, "gain")
        integers, floats = (spec.groups, 0, gates.width), (spec.norm_eps,)
        return self._emit(
            Instruction(
                Opcode.GATED_NORM, x.axis, x.width, x, gates, integers=integers, floats=floats, operands=(weight,)
            )
        )

    # --- rows ---

    def select_rows(self, x: Buffer, rows: Ids) -> Buffer:
        _require(rows is Ids.SAMPLED_ROWS, "only the sampled rows can be selected")
        _require(x.axis is Axis.TOKENS, "rows were selected already")
        return self._emit(Instruction(Opcode.SELECT_ROWS, Axis.ROWS, x.width, x))

    def all_reduce(self, x: Buffer) -> Buffer:
        return x

    def process_logits(self, logits: Buffer) -> Buffer:
        _require(logits.axis is Axis.ROWS, "logits belong to sampled rows")
        return self._emit(Instruction(Opcode.PROCESS_LOGITS, logits.axis, logits.width, logits))

    def sample(self, logits: Buffer, raw: Buffer) -> None:
        _require(logits.axis is Axis.ROWS and raw.axis is Axis.ROWS, "logits belong to sampled rows")
        _require(logits.width == raw.width, f"logits {_shape(logits)} and raw logits {_shape(raw)} differ")
        self.instructions.append(Instruction(Opcode.SAMPLE, Axis.ROWS, logits.width, logits, raw))

    # --- checks ---

    def _emit(self, instruction: Instruction) -> Buffer:
        """Append an instruction, which gets a new output."""
        for buffer in instruction.reads:
            _require(buffer.index < self._buffers, "an activation of another recording")
        out = self.input(instruction.width, instruction.axis)
        self.instructions.append(replace(instruction, out=out))
        return out

    def _check_matrix(self, weight: PackedWeight) -> None:
        rows, cols = weight.shape
        held = sum(segment.rows for segment in weight.segments)
        _require(held == rows, f"segments hold {held} rows of a weight of {rows}")
        for segment in weight.segments:
            code = format_code(segment.format)
            _require(code is not None, f"format {segment.format!r} has no native kernel")
            assert code is not None
            data = segment.data
            _require(isinstance(data, np.ndarray) and data.dtype == np.uint8, "a native segment's data is bytes")
            assert isinstance(data, np.ndarray)
            size = self._library.packed_bytes(code, segment.rows, cols)
            whole = data.nbytes == size and data.flags.c_contiguous and is_aligned(data)
            _require(whole, f"a segment {segment.rows} x {cols} of {segment.format} is {size} aligned bytes")

    def _check_attention(self, spec: AttentionSpec, at: LayerCache) -> tuple[int, int]:
        _require(spec.heads % spec.kv_heads == 0, f"{spec.heads} heads do not share {spec.kv_heads} key heads evenly")
        return self._check_place(at, spec.kv_heads, spec.head_dim, spec.head_dim)

    def _check_latent(self, spec: LatentSpec, at: LayerCache) -> tuple[int, int]:
        kept, place = self._check_place(at, 1, spec.width, 0)
        if kept in (CacheType.INT8, CacheType.INT4):
            _require(spec.can_rotate, f"a latent of {spec.rank} and a key of {spec.rope_dim} are rotated by themselves")
        return kept, place

    def _check_place(self, at: LayerCache, kv_heads: int, key_width: int, value_width: int) -> tuple[int, int]:
        """A layer's part of a page lies inside it; its type and its place, as instructions have them in i[8], i[9]."""
        cache = self._cache
        _require(cache is not None, "attention needs a cache")
        assert cache is not None
        _require(0 <= at.group < cache.groups, f"cache group {at.group} of {cache.groups}")
        part = cache.part(
            at.group,
            at.index,
            lambda kept: self._library.cache_layer_bytes(kept, kv_heads, key_width, cache.block_size, value_width),
        )
        _require(part is not None, f"layer {at.index} of group {at.group} does not fit a page of {cache.page_bytes}")
        assert part is not None
        return part.type, part.offset // 64

    def _pieces(self, at: LayerCache, sizes: Sequence[int]) -> Places:
        """Where the first pieces of a layer's state are; each lies inside a page."""
        cache = self._cache
        _require(cache is not None, "a recurrent layer needs a cache")
        assert cache is not None
        _require(len(at.pieces) >= len(sizes), f"a state of {len(sizes)} pieces has places for {len(at.pieces)}")
        for piece, size in zip(at.pieces, sizes, strict=False):
            fits = piece.page >= 0 and piece.offset % 16 == 0 and 0 <= piece.offset <= cache.page_bytes - size
            _require(fits, f"a piece of {size} bytes at {piece.offset} does not fit a page of {cache.page_bytes}")
        return np.array([(piece.page, piece.offset) for piece in at.pieces], np.int64).reshape(-1, 2)

    def _check_rope(self, spec: RopeSpec | None, rope: RopeTable | None, width: int) -> None:
        """`width`: elements there are to rotate."""
        _require((rope is None) == (spec is None), "a rope table is given exactly when the spec has a rope")
        if rope is None:
            return
        fits = 0 < rope.width <= width and rope.width % 2 == 0
        _require(fits, f"cannot rotate {rope.width} of {width} elements")
        for table in (_vector(rope.cos), _vector(rope.sin)):
            shaped = table.ndim == 2 and table.shape[1] == rope.width // 2 and table.shape[0] >= self._max_len
            _require(shaped, f"a rope table is [>= {self._max_len}, {rope.width // 2}], not {table.shape}")
            _require(table.dtype == np.float32 and table.flags.c_contiguous, "a rope table is contiguous float32")


def _activation(kind: ActivationKind) -> ActivationCode:
    return ActivationCode[kind.upper()]


def _vector(values: object) -> Vector:
    _require(isinstance(values, np.ndarray), f"a native vector is an ndarray, not {type(values).__name__}")
    assert isinstance(values, np.ndarray)
    return values


def _check_vector(values: Vector | None, width: int, name: str) -> None:
    if values is None:
        return
    _require(_vector(values).shape == (width,), f"a {name} of {width} elements is needed, not {values.shape}")
    _require(values.dtype == np.float32 and values.flags.c_contiguous, f"a {name} must be contiguous float32")


def _shape(buffer: Buffer) -> str:
    return f"[{buffer.axis.name.lower()}, {buffer.width}]"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InternalError(f"cannot record this op: {message}")


def _by_distance(spec: AttentionSpec, distances: Vector) -> Vector:
    """What each head adds for a key at -reach - 16 .. reach + 15 from the query, [heads, 2 reach + 32]: 16 of them lie
    side by side wherever one begins."""
    how = spec.distances
    assert how is not None
    _check_vector(distances, how.buckets * spec.heads, "distances")
    buckets = [how.bucket(far) for far in range(-how.reach - 16, how.reach + 16)]
    return np.ascontiguousarray(distances.reshape(how.buckets, spec.heads)[buckets].T).reshape(-1)
