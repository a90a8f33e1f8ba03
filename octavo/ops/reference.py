"""Every op in plain PyTorch: the meaning of the op, and the answer all kernels are tested against.

`linear` and `embed` take weights packed by `TorchPacker` (octavo/execution/torch/packer.py): a segment's `data` is a
tensor [rows, in]. State that an op needs beyond its arguments (the cache, the step's rows) is given to the constructor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from octavo.ops.interface import LayerCache, RopeTable, RowRules
from octavo.ops.reference_draws import apply_rules, draw, drawable
from octavo.ops.weight import PackedWeight
from octavo.spec.decoder import Activation as ActivationKind
from octavo.spec.decoder import AttentionSpec, ConvSpec, LatentSpec, QueryScaleSpec, StateSpaceSpec


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: tokens `first .. first + count` stand at context positions `start ..`."""

    first: int
    count: int
    start: int
    slot: int


@dataclass(slots=True)
class Drawn:
    """What `sample` leaves: tokens [R], log-probabilities of the raw logits [R, vocab], not finite rows, mu [R]."""

    tokens: list[int]
    logprobs: Tensor
    invalid: list[bool]
    mu: list[float]


class PagedStore(Protocol):
    """Keys and values behind the block tables."""

    def write(self, cache: LayerCache, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Store k, v [count, kv_heads, head_dim] at positions start.. of the slot's sequence."""
        ...

    def read(self, cache: LayerCache, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions start..end, [end - start, kv_heads, head_dim] each, float32."""
        ...

    def read_state(self, cache: LayerCache, piece: int, sequence: int, shape: tuple[int, int]) -> Tensor:
        """What sequence number `sequence` of the step left of a piece of a recurrent state; zeros at its start."""
        ...

    def write_state(self, cache: LayerCache, piece: int, sequence: int, values: Tensor) -> None:
        """What it leaves now."""
        ...


_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}

# A temperature under this is greedy, as in flow/sampling_params.py.


class ReferenceOps:
    """Ops[Tensor, Tensor, Tensor]. One instance a step: it knows the step's spans, rows and cache."""

    def __init__(
        self, spans: Sequence[Span] = (), rows: Sequence[RowRules] = (), store: PagedStore | None = None
    ) -> None:
        self._spans = spans
        self._rows = rows
        self._store = store
        self.drawn: Drawn | None = None

    # --- matrices ---

    def embed(self, ids: Tensor, table: PackedWeight) -> Tensor:
        return torch.cat([_tensor(s.data) for s in table.segments])[ids.long()].float()

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        parts: list[Tensor] = []
        for segment in weight.segments:
            w = _tensor(segment.data)
            rounded = x.bfloat16().float() if w.dtype == torch.bfloat16 else x
            parts.append(rounded @ w.float().T)
        y = torch.cat(parts, dim=-1)
        return y if bias is None else y + bias

    # --- norms and elementwise ---

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        y = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
        return y if weight is None else y * weight

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def act(self, x: Tensor, kind: ActivationKind) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def act_mul(self, gate_up: Tensor, kind: ActivationKind) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return _ACTIVATIONS[kind](gate) * up

    def softcap(self, x: Tensor, limit: float) -> Tensor:
        return limit * torch.tanh(x / limit)

    def select_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows.long()]

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    # --- attention ---

    def qkv_rope_cache(
        self,
        qkv: Tensor,
        spec: AttentionSpec,
        cache: LayerCache,
        positions: Tensor,
        rope: RopeTable | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> Tensor:
        assert self._store is not None, "attention needs a cache"
        tokens = qkv.shape[0]
        own = spec.own_kv_heads
        q, k, v = qkv.view(tokens, -1, spec.head_dim).split([spec.heads, own, own], dim=1)
        if spec.qk_norm is not None:
            q = self.rms_norm(q, q_norm, spec.qk_norm.eps)
            k = self.rms_norm(k, k_norm, spec.qk_norm.eps)
        if rope is not None:
            q, k = _rotate(q, rope, positions), _rotate(k, rope, positions)
        for span in self._spans if own else ():
            part = slice(span.first, span.first + span.count)
            self._store.write(cache, span.slot, span.start, k[part], v[part])
        return q.reshape(tokens, -1)

    def scale_by_position(self, x: Tensor, spec: QueryScaleSpec, positions: Tensor) -> Tensor:
        spans = torch.floor((positions.float() + 1) / spec.span)
        return x * (1 + spec.scale * torch.log1p(spans)).unsqueeze(1)

    def paged_attention(
        self,
        q: Tensor,
        spec: AttentionSpec,
        cache: LayerCache,
        sinks: Tensor | None = None,
        distances: Tensor | None = None,
    ) -> Tensor:
        assert self._store is not None, "attention needs a cache"
        out = torch.zeros_like(q)
        for span in self._spans:
            part = slice(span.first, span.first + span.count)
            end = span.start + span.count
            first = _first_key(spec, span.start)
            k, v = self._store.read(cache, span.slot, first, end)
            at = torch.arange(span.start, end), torch.arange(first, end)
            out[part] = _attend(q[part], k, v, spec, at, sinks, distances)
        return out

    # --- latent attention ---

    def head_linear(self, x: Tensor, weight: PackedWeight) -> Tensor:
        heads = x.view(x.shape[0], len(weight.segments), -1)[..., : weight.shape[1]].unbind(dim=1)
        parts = [
            self.linear(head, PackedWeight((segment.rows, weight.shape[1]), (segment,)))
            for head, segment in zip(heads, weight.segments, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    def latent_cache(
        self,
        q: Tensor,
        kv: Tensor,
        spec: LatentSpec,
        cache: LayerCache,
        positions: Tensor,
        rope: RopeTable | None,
        gain: Tensor | None,
    ) -> Tensor:
        assert self._store is not None, "attention needs a cache"
        tokens = q.shape[0]
        latent, key = kv.unsqueeze(1).split([spec.rank, spec.rope_dim], dim=-1)
        plain, turned = q.view(tokens, spec.heads, spec.head_dim).split([spec.nope, spec.rope_dim], dim=-1)
        latent = self.rms_norm(latent, gain, spec.latent_norm.eps)
        if rope is not None:
            key, turned = _rotate(key, rope, positions), _rotate(turned, rope, positions)
        kept = torch.cat([latent, key], dim=-1)
        for span in self._spans:
            part = slice(span.first, span.first + span.count)
            self._store.write(cache, span.slot, span.start, kept[part], kept[part, :, :0])
        return torch.cat([plain, turned], dim=-1).reshape(tokens, -1)

    def latent_attention(self, latent: Tensor, q: Tensor, spec: LatentSpec, cache: LayerCache) -> Tensor:
        assert self._store is not None, "attention needs a cache"
        out = torch.zeros_like(latent)
        turned = q.view(-1, spec.heads, spec.head_dim)[..., spec.nope :]
        queries = torch.cat([latent.view(-1, spec.heads, spec.rank), turned], dim=-1)
        for span in self._spans:
            part = slice(span.first, span.first + span.count)
            kept = self._store.read(cache, span.slot, 0, span.start + span.count)[0][:, 0]
            scores = torch.einsum("thd,sd->hts", queries[part], kept) * spec.scale
            visible = torch.arange(kept.shape[0]) <= torch.arange(span.start, span.start + span.count).unsqueeze(1)
            weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
            out[part] = torch.einsum("hts,sd->thd", weights, kept[:, : spec.rank]).reshape(span.count, -1)
        return out

    # --- recurrent layers ---

    def causal_conv(self, x: Tensor, spec: ConvSpec, cache: LayerCache, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert self._store is not None, "a recurrent layer needs a cache"
        parts = x[:, spec.first :].split(spec.width, dim=1)
        inputs = parts[0] * parts[2] if spec.gated else parts[0]
        taps, kept = weight.view(spec.taps, spec.width), spec.taps - 1
        out = torch.zeros_like(inputs)
        for number, span in enumerate(self._spans):
            part = slice(span.first, span.first + span.count)
            past = self._store.read_state(cache, 0, number, (kept, spec.width))
            seen = torch.cat([past, inputs[part]])
            out[part] = (seen.unfold(0, spec.taps, 1) * taps.T).sum(dim=-1)
            self._store.write_state(cache, 0, number, seen[len(seen) - kept :])
        out = out if bias is None else out + bias
        out = functional.silu(out) if spec.silu else out
        return out * parts[1] if spec.gated else out

    def state_scan(self, x: Tensor, steps: Tensor, spec: StateSpaceSpec, cache: LayerCache, rates: Tensor) -> Tensor:
        assert self._store is not None, "a recurrent layer needs a cache"
        a, d, bias = rates.view(3, spec.heads)
        inputs, b, c = x.split([spec.inner, spec.groups * spec.state, spec.groups * spec.state], dim=1)
        inputs = inputs.view(-1, spec.heads, spec.head_dim)
        b, c = (
            each.view(-1, spec.groups, spec.state).repeat_interleave(spec.heads // spec.groups, 1) for each in (b, c)
        )
        dt = functional.softplus(steps[:, spec.first_step : spec.first_step + spec.heads] + bias).clamp(*spec.limits)
        out = torch.zeros_like(inputs)
        for number, span in enumerate(self._spans):
            shape = (spec.state, spec.head_dim)
            heads = range(spec.heads)
            h = torch.stack([self._store.read_state(cache, 1 + head, number, shape) for head in heads])
            for t in range(span.first, span.first + span.count):
                added = torch.einsum("hn,hp->hnp", b[t], dt[t, :, None] * inputs[t])
                h = torch.exp(dt[t] * a)[:, None, None] * h + added
                out[t] = torch.einsum("hnp,hn->hp", h, c[t]) + d[:, None] * inputs[t]
            for head in heads:
                self._store.write_state(cache, 1 + head, number, h[head])
        return out.view(-1, spec.inner)

    def gated_norm(self, x: Tensor, gates: Tensor, weight: Tensor | None, spec: StateSpaceSpec) -> Tensor:
        gated = x * functional.silu(gates[:, : spec.inner])
        normed = self.rms_norm(gated.view(len(x), spec.groups, -1), None, spec.norm_eps).view_as(x)
        return normed if weight is None else normed * weight

    # --- sampling ---

    def process_logits(self, logits: Tensor) -> Tensor:
        """What each row's rules do to it: `apply_rules`."""
        out = self._without_unknown(logits)
        for row, rules in zip(out, self._rows, strict=True):
            apply_rules(row, rules)
        return out

    def _without_unknown(self, logits: Tensor) -> Tensor:
        out = logits.clone()
        for row, rules in zip(out, self._rows, strict=True):
            row[rules.sampling.known_tokens or len(row) :] = -math.inf
        return out

    def sample(self, logits: Tensor, raw: Tensor) -> None:
        raw = self._without_unknown(raw)
        invalid = [not bool(drawable(row)) for row in raw]
        rows = zip(logits, self._rows, invalid, strict=True)
        draws = [(0, 0.0) if bad else draw(row, at.sampling, at.output_index, at.mu) for row, at, bad in rows]
        tokens, mu = [token for token, _ in draws], [state for _, state in draws]
        self.drawn = Drawn(tokens, torch.log_softmax(raw, dim=-1), invalid, mu)


def _tensor(data: object) -> Tensor:
    assert isinstance(data, Tensor), "weights of the reference are packed by TorchPacker"
    return data


def _rotate(x: Tensor, rope: RopeTable, positions: Tensor) -> Tensor:
    """x [T, heads, head_dim]; pairs (i, i + width/2) of the first `width` elements.  Source: arXiv:2104.09864."""
    cos = _tensor(rope.cos)[positions.long()].unsqueeze(1)  # [T, 1, width/2]
    sin = _tensor(rope.sin)[positions.long()].unsqueeze(1)
    half = rope.width // 2
    left, right, rest = x[..., :half], x[..., half : rope.width], x[..., rope.width :]
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], dim=-1)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: AttentionSpec,
    at: tuple[Tensor, Tensor],
    sinks: Tensor | None,
    distances: Tensor | None,
) -> Tensor:
    """q [count, heads*head_dim]; k, v [keys, kv_heads, head_dim]; `at`: the positions of queries and of keys."""
    count, group = q.shape[0], spec.heads // spec.kv_heads
    queries = q.view(count, spec.kv_heads, group, spec.head_dim)
    scores = torch.einsum("tkgd,skd->kgts", queries, k) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    query_at, key_at = at[0].unsqueeze(1), at[1].unsqueeze(0)
    if spec.alibi is not None:
        slopes = torch.tensor(spec.alibi).view(spec.kv_heads, group, 1, 1)
        scores = scores + slopes * (key_at - query_at)
    if spec.distances is not None and distances is not None:
        buckets = torch.tensor([[spec.distances.bucket(int(far)) for far in row] for row in key_at - query_at])
        leant = distances.view(spec.distances.buckets, spec.kv_heads, group)[buckets]
        scores = scores + leant.permute(2, 3, 0, 1)
    visible = key_at <= query_at if spec.causal else torch.ones(len(at[0]), len(at[1]), dtype=torch.bool)
    if spec.window is not None:
        visible &= (key_at > query_at - spec.window) & (key_at < query_at + spec.window)
    if spec.chunk is not None:
        visible &= key_at >= query_at // spec.chunk * spec.chunk
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        sink = sinks.view(spec.kv_heads, group, 1, 1).expand(-1, -1, count, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[0]]
    return torch.einsum("kgts,skd->tkgd", weights, v).reshape(count, -1)


def _first_key(spec: AttentionSpec, position: int) -> int:
    """The first position that a query at `position`, or at a later one, sees."""
    first = 0 if spec.window is None else max(0, position - spec.window + 1)
    return first if spec.chunk is None else max(first, position // spec.chunk * spec.chunk)
