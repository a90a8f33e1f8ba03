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

from octavo.flow.request import Sampling
from octavo.ops.interface import LayerCache, RopeTable, RowRules
from octavo.ops.philox import uniform
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
    """What `sample` leaves: tokens [R], log-probabilities of the raw logits [R, vocab], rows that are not finite."""

    tokens: list[int]
    logprobs: Tensor
    invalid: list[bool]


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
_GREEDY_BELOW = 1e-5


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
        """Order as in vLLM: permitted and allowed ids, bias, repetition, frequency and presence penalties; then DRY.

        Factors of a request's rules come before biases.
        """
        out = logits.clone()
        for row, rules in zip(out, self._rows, strict=True):
            sampling = rules.sampling
            if rules.permitted:
                row += _mask_of(rules.permitted, row.shape[0])
            if sampling.allowed_token_ids:
                keep = torch.full_like(row, -math.inf)
                keep[list(sampling.allowed_token_ids)] = 0.0
                row += keep
            for token, factor in sampling.logit_scale:
                row[token] *= factor
            for token, bias in sampling.logit_bias:
                row[token] += bias
            row[list(rules.banned)] = -math.inf
            for word in sampling.bad_words:
                if list(word[:-1]) == list(rules.output)[len(rules.output) - len(word) + 1 :]:
                    row[word[-1]] += -1e9
            _penalize(row, rules)
            if sampling.shaping.dry_multiplier > 0.0:
                _discourage_repeats(row, rules)
        return out

    def sample(self, logits: Tensor, raw: Tensor) -> None:
        invalid = [not bool(_drawable(row)) for row in raw]
        tokens = [
            0 if bad else draw(row, rules.sampling, rules.output_index)
            for row, rules, bad in zip(logits, self._rows, invalid, strict=True)
        ]
        self.drawn = Drawn(tokens, torch.log_softmax(raw, dim=-1), invalid)


def draw(logits: Tensor, sampling: Sampling, output_index: int) -> int:
    """One token from one row [vocab]. Greedy ties go to the smaller id.

    In this order: top-n-sigma (arXiv:2411.07641), dynamic temperature, temperature, typical (arXiv:2202.00666), then in
    vLLM's order min-p (arXiv:2407.01082), top-k, top-p (arXiv:1904.09751), and XTC. Each sees what the one before left.
    The kept probabilities are walked in vocabulary order until they exceed the uniform number of (seed, output_index).
    """
    if sampling.temperature == 0.0:
        return int(torch.argmax(logits))
    shaping = sampling.shaping
    values = logits.double()
    keep = values > -math.inf
    if shaping.top_n_sigma > 0.0:
        keep &= values >= values[keep].max() - shaping.top_n_sigma * values[keep].std(correction=0)
    temperature = sampling.temperature
    if shaping.dynatemp_range > 0.0:
        temperature = _dynamic_temperature(values[keep], sampling)
    if temperature < _GREEDY_BELOW:
        return int(torch.argmax(logits))
    probabilities = torch.softmax(torch.where(keep, values / temperature, -math.inf), dim=-1)
    if shaping.typical_p < 1.0:
        keep &= _typical(probabilities, shaping.typical_p)
    keep &= probabilities >= sampling.min_p * probabilities[keep].max()
    order = torch.sort(torch.where(keep, probabilities, -1.0), descending=True, stable=True).indices
    if sampling.top_k > 0:
        keep &= _marked(order[: sampling.top_k], keep)
    if sampling.top_p < 1.0:
        share = torch.where(keep, probabilities, 0.0)[order]
        share = share / share.sum()
        keep &= _marked(order[share.cumsum(0) - share < sampling.top_p], keep)
    if shaping.xtc_probability > uniform(sampling.seed, output_index, 1):
        keep = _without_top(torch.where(keep, probabilities, 0.0), keep, shaping.xtc_threshold)
    kept = torch.where(keep, probabilities, 0.0)
    reached = kept.cumsum(0) > uniform(sampling.seed, output_index) * kept.sum()
    return int(torch.nonzero(reached & keep)[0])


def _marked(indices: Tensor, like: Tensor) -> Tensor:
    marks = torch.zeros_like(like)
    marks[indices] = True
    return marks


def _dynamic_temperature(values: Tensor, sampling: Sampling) -> float:
    """Between T - range and T + range, the higher the less the model is sure: by its entropy, as a part of the most."""
    shaping = sampling.shaping
    probabilities = torch.softmax(values, dim=-1)
    most = math.log(len(values)) if len(values) > 1 else 1.0
    part = float(torch.special.entr(probabilities).sum()) / most
    low = max(0.0, sampling.temperature - shaping.dynatemp_range)
    return low + (sampling.temperature + shaping.dynatemp_range - low) * part**shaping.dynatemp_exponent


def _typical(probabilities: Tensor, share: float) -> Tensor:
    """The tokens whose surprise is nearest to the expected one, until they have this share."""
    expected = torch.special.entr(probabilities).sum()
    order = torch.sort((-probabilities.log() - expected).abs(), stable=True).indices
    ranked = probabilities[order]
    return _marked(order[ranked.cumsum(0) - ranked < share], probabilities > 0)


def _without_top(kept: Tensor, keep: Tensor, threshold: float) -> Tensor:
    """Of the tokens above the threshold only the least likely stays (the one with the larger id, if two are)."""
    above = keep & (kept >= threshold * kept.sum())
    if not above.any():
        return keep
    least = torch.nonzero(above & (kept == kept[above].min()))[-1]
    return (keep & ~above) | _marked(least, keep)


def _discourage_repeats(row: Tensor, rules: RowRules) -> None:
    """In place ("DRY"): a token that would continue a repetition of length n >= allowed_length of the text's end loses
    multiplier * base ** (n - allowed_length). Repetitions do not reach over breakers."""
    shaping = rules.sampling.shaping
    text = [*rules.prompt, *rules.output]
    text = text if shaping.dry_window < 0 else text[len(text) - min(len(text), shaping.dry_window) :]
    reach = next((n for n, token in enumerate(reversed(text)) if token in shaping.dry_breakers), len(text))
    longest: dict[int, int] = {}
    for end in range(1, len(text)):
        length = 0
        while length < min(end, reach) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        longest[text[end]] = max(longest.get(text[end], 0), length)
    for token, length in longest.items():
        if length >= max(shaping.dry_allowed_length, 1):
            row[token] -= shaping.dry_multiplier * shaping.dry_base ** (length - shaping.dry_allowed_length)


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


def _penalize(row: Tensor, rules: RowRules) -> None:
    """In place. Repetition: CTRL, arXiv:1909.05858, section 4.1; frequency and presence: OpenAI API reference."""
    sampling = rules.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*rules.prompt, *rules.output}), dtype=torch.long)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        counts = torch.bincount(torch.tensor(list(rules.output), dtype=torch.long), minlength=row.shape[0])
        row -= sampling.frequency_penalty * counts
        row -= sampling.presence_penalty * (counts > 0)


def _mask_of(permitted: Sequence[int], vocab: int) -> Tensor:
    """0 for every token whose bit is set, -inf for all others: [vocab]."""
    words = torch.tensor(permitted, dtype=torch.int64)
    token = torch.arange(vocab)
    allowed = (words[token // 32] >> (token % 32)) & 1
    return torch.where(allowed == 1, 0.0, -math.inf)


def _drawable(row: Tensor) -> Tensor:
    """Neither NaN nor +inf anywhere, and something above -inf."""
    return ~torch.isnan(row).any() & (row < math.inf).all() & (row > -math.inf).any()
