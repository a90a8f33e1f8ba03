"""What a decoder is, as data: sizes, norms, positions, scales. No tensor, no forward, no file format.

A decoder is layers; a layer is blocks; a block is branches whose outputs are summed into the residual. A later family
adds a field with a default or a new body type; no existing field changes its meaning. Floats are explicit numbers:
nothing is derived later ("scale" is the number that multiplies the scores).
"""

import math
from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalization. Gains of the form `1 + w` are turned into plain gains when weights load."""

    kind: NormKind
    eps: float
    weight: bool = True
    bias: bool = False


# --- positions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1 model card code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN, arXiv:2309.00071. `attention_factor` multiplies both cos and sin."""

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class TableScaling:
    """Each frequency divided by its own factor (GGUF `rope_freqs.weight`, LongRoPE's tables)."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | TableScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions, arXiv:2104.09864, always in half-split pairing (i, i + width/2): interleaved checkpoints are
    permuted when they load. `width` leading elements of a head are rotated, the rest pass."""

    theta: float
    width: int
    scaling: RopeScaling | None = None
    axes: tuple[int, ...] = ()  # axis of each frequency; () means one axis


# --- bodies ----------------------------------------------------------------------------------------------------------


CacheKind = Literal["full", "window", "chunked", "latent", "state", "step"]


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What one layer keeps per token or per sequence.

    kind "full": keys and values of every position. "window": of the last `window` positions (the query included).
    "chunked": positions are cut into chunks of `window`; those of the query's own chunk (Llama 4). "latent": one
    vector of `key_width` elements per position whose first ones are the value as well: kv_heads is 1 and value_width 0
    (DeepSeek-V2, arXiv:2405.04434, section 2.1). "state": `pieces` bytes per sequence, whatever its length. "step":
    nothing beyond the layer: keys and values of the step's own tokens, which all such layers put in the same place.

    Attributes:
        window: of "window" and "chunked", in tokens.
        shares: the layer whose keys and values this one reads; it keeps none itself (Gemma 3n; YOCO, arXiv:2405.05254).
        pieces: of "state": bytes of each piece; a piece, for example one head's matrix, lies in one page as a whole.
        can_rotate: whether it may be kept as int8 or int4, which are rotated.
    """

    kind: CacheKind
    kv_heads: int = 0
    key_width: int = 0  # elements of one head's key
    value_width: int = 0
    window: int | None = None
    shares: int | None = None
    pieces: tuple[int, ...] = ()
    can_rotate: bool = True


@dataclass(frozen=True, slots=True)
class QueryScaleSpec:
    """Queries at position p times 1 + scale ln(1 + floor((p + 1) / span)): Llama 4's temperature, arXiv:2501.19399."""

    scale: float
    span: float


@dataclass(frozen=True, slots=True)
class DistanceSpec:
    """Scores get a learned number by how far the key is from the query: half of `buckets` for keys behind it, half for
    the others; near ones have one each, farther ones share one in steps of a logarithm, and from `reach` on the last.
    Raffel et al. 2020, arXiv:1910.10683, section 2.1."""

    buckets: int
    reach: int

    def bucket(self, distance: int) -> int:
        """Of a key at `distance` from the query."""
        half, far = self.buckets // 2, abs(distance)
        near = half // 2
        if far >= near:
            steps = math.log(far / near) / math.log(self.reach / near) * (half - near)
            far = min(near + int(steps + 1e-9), half - 1)  # whole steps are meant to be whole
        return far + (half if distance > 0 else 0)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention over the paged cache."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # multiplies q.k
    rope: RopeSpec | None  # None: no or learned positions
    window: int | None = None  # keys seen, the query itself included
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: NormSpec | None = None
    qk_norm_over: Literal["head"] = "head"  # gain [head_dim] shared by all heads
    softcap: float | None = None
    chunk: int | None = None  # positions are cut into chunks of this length; only keys of a query's own chunk are seen
    kv_from: int | None = None  # the layer whose keys and values are read; this one has and writes none
    query_scale: QueryScaleSpec | None = None
    # Of each head: added to a score is slope * (key position - query position), after the softcap.  Press et al. 2022,
    # arXiv:2108.12409, section 3.
    alibi: tuple[float, ...] | None = None
    distances: DistanceSpec | None = None  # each head has a learned number for each bucket, added as ALiBi's are
    sinks: bool = False  # each head has a learned logit in the softmax's denominator, as of a key without a value
    causal: bool = True  # else keys behind the query are seen, too, and a window reaches as far behind it as before it

    @property
    def own_kv_heads(self) -> int:
        """Key and value heads that the layer computes."""
        return self.kv_heads if self.kv_from is None else 0

    @property
    def cache_needs(self) -> tuple[CacheNeed, ...]:
        """What the layer keeps, or which layer it reads."""
        if not self.causal:
            return (CacheNeed("step", self.kv_heads, self.head_dim, self.head_dim),)
        kind: CacheKind = "chunked" if self.chunk is not None else "full" if self.window is None else "window"
        seen = self.window if self.chunk is None else self.chunk
        return (CacheNeed(kind, self.kv_heads, self.head_dim, self.head_dim, seen, shares=self.kv_from),)


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention, DeepSeek-V2, arXiv:2405.04434, section 2.1: keys and values of all heads are
    projections of one latent vector a token, which is all that is kept, with one rotated key that the heads share.

    A head's query has `nope` elements without rotation, then `rope` rotated ones; its value has `value_dim`.
    """

    heads: int
    nope: int
    rope_dim: int
    value_dim: int
    rank: int  # elements of the latent
    scale: float  # multiplies q.k
    rope: RopeSpec | None
    latent_norm: NormSpec
    q_rank: int | None = None  # queries come through a vector of so many elements, normed by `q_norm`
    q_norm: NormSpec | None = None
    bias: bool = False  # on the projections down to the latents, and on the output

    @property
    def head_dim(self) -> int:
        """Elements of a head's query."""
        return self.nope + self.rope_dim

    @property
    def width(self) -> int:
        """Elements kept of a token."""
        return self.rank + self.rope_dim

    @property
    def can_rotate(self) -> bool:
        """Whether latents keep to themselves when what is kept is rotated, as int8 and int4 have it: in runs as long as
        the largest power of two that divides the width, of which none reaches over into the key."""
        return self.rank % (self.width & -self.width) == 0

    @property
    def cache_needs(self) -> tuple[CacheNeed, ...]:
        """One vector a token, key and value at once."""
        return (CacheNeed("latent", 1, self.width, can_rotate=self.can_rotate),)


_FLOAT = 4  # bytes: states are float32, so that storing one between two steps changes no bit


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """A causal convolution of each of `width` channels over its last `taps` inputs; the last `taps - 1` are kept.

    It reads the columns of its activation from `first` on. gated: these are [b | c | x], each `width` wide, the
    convolution's input is b * x and its output is multiplied by c. silu: of the sum.
    """

    width: int
    taps: int
    first: int = 0
    gated: bool = False
    silu: bool = False

    @property
    def state_bytes(self) -> int:
        """Bytes of the inputs that are kept."""
        return _FLOAT * self.width * (self.taps - 1)


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """The gated short convolution of LFM2 (transformers' Lfm2ShortConv): out(c * conv(b * x)) with b, c, x = in(h)."""

    conv: ConvSpec
    bias: bool = False  # of both projections and the convolution

    @property
    def cache_needs(self) -> tuple[CacheNeed, ...]:
        """The convolution's last inputs."""
        return (CacheNeed("state", pieces=(self.conv.state_bytes,)),)


@dataclass(frozen=True, slots=True)
class StateSpaceSpec:
    """A selective state space, Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): a projection gives a gate, the inputs x, b
    and c, which pass a convolution, and a time step a head; the scan's output is gated, normed and projected.

    Heads share b and c by groups. Time steps are softplus(step + bias), inside `limits`.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    taps: int  # of the convolution
    norm_eps: float  # of the norm after the gate, over the channels of each group
    limits: tuple[float, float] = (0.0, float("inf"))
    conv_bias: bool = True
    bias: bool = False  # of both projections

    @property
    def inner(self) -> int:
        """Channels of x and of the gate."""
        return self.heads * self.head_dim

    @property
    def conv(self) -> ConvSpec:
        """The convolution of x, b and c, which come after the gate."""
        return ConvSpec(self.inner + 2 * self.groups * self.state, self.taps, first=self.inner, silu=True)

    @property
    def first_step(self) -> int:
        """The first of the time steps' columns in the projection."""
        return self.inner + self.conv.width

    @property
    def cache_needs(self) -> tuple[CacheNeed, ...]:
        """The convolution's last inputs, then every head's state."""
        head = _FLOAT * self.head_dim * self.state
        return (CacheNeed("state", pieces=(self.conv.state_bytes, *(head,) * self.heads)),)


@dataclass(frozen=True, slots=True)
class DenseMlpSpec:
    """down(act(gate(x)) * up(x)) when gated, else down(act(up(x)))."""

    width: int
    activation: Activation
    gated: bool = True
    bias: bool = False


Mixer = AttentionSpec | LatentSpec | ShortConvSpec | StateSpaceSpec
Body = Mixer | DenseMlpSpec


# --- assembly --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """scale * post_norm(body(norm(x)))."""

    body: Body
    norm: NormSpec | None = None
    post_norm: NormSpec | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """x = after_norm(skip_scale * x + post_norm(sum of branches(norm(x))))."""

    branches: tuple[BranchSpec, ...]
    norm: NormSpec | None = None  # shared by all branches
    post_norm: NormSpec | None = None
    after_norm: NormSpec | None = None
    skip_scale: float = 1.0
    skip: Literal["input", "normed"] = "input"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Blocks in order. Equal layers should be the same object, so that printing and recording can group them."""

    blocks: tuple[BlockSpec, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Token embedding. `positions` = rows of a learned position table, indexed by the plain position (any offset in
    the checkpoint is dropped at load). `token_types`: rows of a table that tells a sequence's texts apart. `project`:
    the table is `width` wide and a matrix brings it to `hidden`."""

    vocab: int
    width: int
    scale: float = 1.0
    positions: int | None = None
    norm: NormSpec | None = None
    project: bool = False
    token_types: int | None = None


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """Logits = softcap(scale * (x @ table^T + bias)). `project`: a matrix brings `hidden` back to the table's width."""

    tied: bool
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None
    project: bool = False


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """One layer of what is computed of pooled states: norm(act(x @ w^T + bias)), `width` wide.

    `name`: of its weights, after "pooler.". `tanh` goes before the norm, too, in place of an activation.
    """

    name: str
    width: int
    bias: bool = True
    activation: Activation | None = None
    tanh: bool = False
    norm: NormSpec | None = None


@dataclass(frozen=True, slots=True)
class Plain:
    """The usual residual: one stream, [tokens, hidden]."""


ResidualSpec = Plain


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole decoder, or an encoder: one without a head, whose hidden states are the answer."""

    hidden: int
    layers: tuple[LayerSpec, ...]
    embedding: EmbeddingSpec
    final_norm: NormSpec | None
    head: HeadSpec | None
    max_positions: int
    residual: ResidualSpec = Plain()
    pooled_head: tuple[DenseSpec, ...] = ()  # computed of hidden states that stand for a text; see spec/pooling.py

    @property
    def pooled_width(self) -> int:
        """Numbers that come of a pooled state."""
        inner = self.embedding.width if self.embedding.project else self.hidden
        return self.pooled_head[-1].width if self.pooled_head else inner

    @property
    def vocab(self) -> int:
        """Number of logits."""
        return self.embedding.vocab

    @property
    def whole(self) -> bool:
        """A token's state depends on those behind it: a text is computed in one step, and nothing of it is kept."""
        return any(not attention.causal for attention in self.attentions)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Every AttentionSpec that occurs, once."""
        bodies = (
            branch.body for layer in dict.fromkeys(self.layers) for block in layer.blocks for branch in block.branches
        )
        return tuple(dict.fromkeys(body for body in bodies if isinstance(body, AttentionSpec)))

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """Every RopeSpec that occurs, once."""
        bodies = (
            branch.body for layer in dict.fromkeys(self.layers) for block in layer.blocks for branch in block.branches
        )
        found = (body.rope for body in bodies if isinstance(body, AttentionSpec | LatentSpec))
        return tuple(dict.fromkeys(rope for rope in found if rope is not None))


def sequential(mixer: Body, mlp: Body, norm: NormSpec, post_norm: NormSpec | None = None) -> LayerSpec:
    """The usual layer: x += post_norm(mixer(norm(x))); x += post_norm(mlp(norm(x)))."""
    return LayerSpec(
        (
            BlockSpec((BranchSpec(mixer, norm, post_norm),)),
            BlockSpec((BranchSpec(mlp, norm, post_norm),)),
        )
    )


def parallel(mixer: Body, mlp: Body, norm: NormSpec, own: bool = False) -> LayerSpec:
    """x += mixer(n) + mlp(n), with one shared norm, or with each branch's `own`."""
    if own:
        return LayerSpec((BlockSpec((BranchSpec(mixer, norm), BranchSpec(mlp, norm))),))
    return LayerSpec((BlockSpec((BranchSpec(mixer), BranchSpec(mlp)), norm=norm),))
