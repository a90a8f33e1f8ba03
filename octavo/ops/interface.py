"""Everything a model may ask a device to do. `reference.py` gives each op its meaning.

T: tokens of the step. R: rows to be sampled. Activations are float32, row-major, [T, width] or [R, width].
An op never changes its inputs, except the cache. Ops marked *opaque* are split points when a graph is compiled.

Type variables in words: `A` is a backend's activation (torch: Tensor; native: ndarray; recorder: Buffer), `V` its
vector of float32 (gain, bias), `I` its handle of an integer array of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from octavo.flow.request import Sampling
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import Activation as ActivationKind
from octavo.spec.decoder import AttentionSpec, ConvSpec, LatentSpec, QueryScaleSpec, StateSpaceSpec

A = TypeVar("A")
V = TypeVar("V", contravariant=True)
I = TypeVar("I", contravariant=True)  # noqa: E741  integers
Handle = TypeVar("Handle", covariant=True)


@dataclass(frozen=True, slots=True)
class StatePiece:
    """Where a piece of a recurrent state lies: which of the state's pages, and at which byte of it.

    The page's number is `state_reads[page, s]` for what sequence s of the step left behind (-1: nothing yet, the state
    is zero) and `state_writes[page, s]` for what it leaves now; both may be the same page.
    """

    page: int
    offset: int


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Where one layer's history lies: the cache group, and the layer's index inside the group's blocks.

    `pieces`: of a recurrent layer, in the order of its CacheNeed; nothing else is read of it then.
    """

    group: int
    index: int
    pieces: tuple[StatePiece, ...] = ()


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin of every position, [max_positions, width / 2] each, as the backend's vectors; `width` is rotated."""

    width: int
    cos: object
    sin: object


@dataclass(frozen=True, slots=True)
class RowRules:
    """One sampled row's rules and its tokens so far (prompt, then outputs).

    banned: ids that must not be drawn. permitted: what a grammar allows, in 32-bit words that cover the vocabulary, the
    first token in the lowest bit of the first word; empty: all. mu: mirostat's state.
    """

    sampling: Sampling
    prompt: Sequence[int]
    output: Sequence[int]
    output_index: int
    banned: Sequence[int] = ()
    permitted: Sequence[int] = ()
    mu: float = 0.0


class StepHandles(Protocol[Handle]):
    """What a forward sees of a step. Handles, not values: a forward never looks inside."""

    @property
    def token_ids(self) -> Handle:
        """[T]."""
        ...

    @property
    def positions(self) -> Handle:
        """[T] (one axis; a multi-axis model gets [axes, T])."""
        ...

    @property
    def token_types(self) -> Handle:
        """[T], which of a sequence's texts a token belongs to; only models that have an embedding of it look."""
        ...

    @property
    def sampled_rows(self) -> Handle:
        """[R], indices into T."""
        ...


class Ops(Protocol[A, V, I]):
    """The interface. 22 ops; composition does the rest."""

    def embed(self, ids: I, table: PackedWeight) -> A:
        """Rows of `table` [vocab, width]: ids [T] -> [T, width]. Also used for learned positions and token types."""
        ...

    def linear(self, x: A, weight: PackedWeight, bias: V | None = None) -> A:
        """x @ weight^T + bias: [T, in] -> [T, out]. bias [out].

        With a bf16 segment x is rounded to bf16 first (to nearest even); with any other format x stays float32.
        Sums are float32, in an order that depends on `in` alone (never on T, threads or other rows).
        """
        ...

    def rms_norm(self, x: A, weight: V | None, eps: float) -> A:
        """x / sqrt(mean(x^2) + eps) * weight.  Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4."""
        ...

    def layer_norm(self, x: A, weight: V | None, bias: V | None, eps: float) -> A:
        """(x - mean) / sqrt(var + eps) * weight + bias.  Source: Ba et al. 2016, arXiv:1607.06450."""
        ...

    def add(self, left: A, right: A) -> A:
        """Elementwise sum."""
        ...

    def scale(self, x: A, factor: float) -> A:
        """x * factor."""
        ...

    def act(self, x: A, kind: ActivationKind) -> A:
        """Elementwise activation."""
        ...

    def act_mul(self, gate_up: A, kind: ActivationKind) -> A:
        """act(left half) * right half: [T, 2w] -> [T, w]."""
        ...

    def qkv_rope_cache(
        self,
        qkv: A,
        spec: AttentionSpec,
        cache: LayerCache,
        positions: I,
        rope: RopeTable | None,
        q_norm: V | None,
        k_norm: V | None,
    ) -> A:
        """Opaque. Split qkv [T, (heads + 2 own_kv_heads) * head_dim]; norm q and k per head; rotate both; write k and
        v into the cache at their positions; return q [T, heads * head_dim]. A layer that reads another one's keys and
        values brings q alone."""
        ...

    def scale_by_position(self, x: A, spec: QueryScaleSpec, positions: I) -> A:
        """Each row times the factor of its position."""
        ...

    def paged_attention(
        self,
        q: A,
        spec: AttentionSpec,
        cache: LayerCache,
        sinks: V | None = None,
        distances: V | None = None,
    ) -> A:
        """Opaque. softmax(scale * q.k, softcapped, leant by distance, causal, inside window and chunk) . v over each
        row's own sequence. Where the spec is not causal, keys behind the query are seen as well.

        q [T, heads * head_dim] -> [T, heads * head_dim].  Source: Kwon et al. 2023, arXiv:2309.06180. sinks [heads],
        exactly when the spec has them: logits that join the softmax's denominator (Xiao et al. 2024, arXiv:2309.17453).
        distances [buckets * heads], exactly when the spec has them: added to the scores of the keys of a bucket.
        """
        ...

    def head_linear(self, x: A, weight: PackedWeight) -> A:
        """A matrix of its own for every head: [T, heads * stride] -> [T, heads * out].

        `weight` has one segment a head, [out, in] each, stacked to [heads * out, in]; the first `in` of a head's
        `stride` elements are taken. Rounding and sums are as in `linear`.
        """
        ...

    def latent_cache(
        self,
        q: A,
        kv: A,
        spec: LatentSpec,
        cache: LayerCache,
        positions: I,
        rope: RopeTable | None,
        gain: V | None,
    ) -> A:
        """Opaque. Norm the latent, the first `rank` elements of kv [T, rank + rope]; rotate the rest; write both into
        the cache at their positions; return q [T, heads * (nope + rope)] with the last `rope` elements of every head
        rotated."""
        ...

    def latent_attention(self, latent: A, q: A, spec: LatentSpec, cache: LayerCache) -> A:
        """Opaque. softmax(scale * (latent.c + rotated q.k), causal) . c over each row's own sequence, where c is the
        kept latent and k the kept rotated key of a token.

        latent [T, heads * rank], queries in the latent space; q as `latent_cache` gave it -> [T, heads * rank].
        Source: DeepSeek-V2, arXiv:2405.04434, section 2.1, with the projections up absorbed in queries and outputs.
        """
        ...

    def causal_conv(self, x: A, spec: ConvSpec, cache: LayerCache, weight: V, bias: V | None) -> A:
        """Opaque. out[t] = sum over taps j of weight[j] * input[t - taps + 1 + j], and bias: [T, ...] -> [T, width].

        weight [taps * width], the oldest input's weights first. What stands before the step's tokens is piece 0 of the
        layer's state; the last `taps - 1` inputs are left there.
        """
        ...

    def state_scan(self, x: A, steps: A, spec: StateSpaceSpec, cache: LayerCache, rates: V) -> A:
        """Opaque. For each head, token by token: h = exp(dt a) h + dt x b; y = h c + d x: -> [T, heads * head_dim].

        x [T, inner + 2 groups * state]: x, b and c. steps: an activation that holds the time steps, from column
        `spec.first_step` on. rates [3 * heads]: a (negative), d, and the time steps' bias. A head's h [state, head_dim]
        is a piece of the layer's state, from piece 1 on.  Source: Dao & Gu 2024, arXiv:2405.21060, section 2.1.
        """
        ...

    def gated_norm(self, x: A, gates: A, weight: V | None, spec: StateSpaceSpec) -> A:
        """RMS norm of x * silu(gate), over the columns of each group, times weight [inner]; the gate is the first
        `inner` columns of `gates`."""
        ...

    def softcap(self, x: A, limit: float) -> A:
        """limit * tanh(x / limit)."""
        ...

    def select_rows(self, x: A, rows: I) -> A:
        """[T, w] -> [R, w]."""
        ...

    def all_reduce(self, x: A) -> A:
        """Opaque. Sum over the tensor-parallel ranks; the identity with one."""
        ...

    def process_logits(self, logits: A) -> A:
        """Opaque. Permitted and allowed tokens, bias, penalties of each row: [R, vocab] -> [R, vocab]. The rules of a
        row are the step's; a row without rules passes unchanged."""
        ...

    def sample(self, logits: A, raw: A) -> None:
        """Opaque. Draw one token a row from `logits` [R, vocab] and take log-probabilities from `raw`, into the step's
        outputs. Draw: the uniform number of (seed, output index) by Philox 4x32-10 (Salmon et al. 2011), inverted over
        the filtered probabilities in vocabulary order."""
        ...
