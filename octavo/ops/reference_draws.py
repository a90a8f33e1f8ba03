"""How a token is drawn, in plain PyTorch: the meaning of every sampling rule, and what native draws must agree with."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.flow.request import Sampling
from octavo.flow.sampler_order import Sampler, unpack
from octavo.ops.interface import RowRules
from octavo.ops.philox import uniform

_GREEDY_BELOW = 1e-5


def apply_rules(row: Tensor, rules: RowRules) -> None:
    """In place, on one row [vocab], what its request asks of logits before a token is drawn.

    In vLLM's order: permitted and allowed ids, bias (factors of a request's rules before it), repetition, frequency and
    presence penalties; then DRY.
    """
    sampling = rules.sampling
    if rules.permitted:
        row += _mask_of(rules.permitted, row.shape[0])
    if sampling.allowed_token_ids:
        row[~_marked(torch.tensor(sampling.allowed_token_ids), row.isnan())] = -math.inf
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


def draw(logits: Tensor, sampling: Sampling, output_index: int, mu: float = 0.0) -> tuple[int, float]:
    """One token from one row [vocab], and mirostat's state after it. Greedy ties go to the smaller id.

    Samplers narrow it down in their order (`flow/sampler_order.py`), each seeing what the one before left; those before
    the temperature see probabilities at temperature 1. The kept ones are walked in vocabulary order until they exceed
    the uniform number of (seed, output_index).
    """
    if sampling.temperature == 0.0:
        return int(torch.argmax(logits)), mu
    values = logits.double()
    keep, probabilities = values > -math.inf, torch.softmax(values, dim=-1)
    for sampler in unpack(sampling.shaping.sampler_order):
        if sampler is Sampler.TEMPERATURE:
            varies = sampling.shaping.dynatemp_range > 0.0
            temperature = _dynamic_temperature(values[keep], sampling) if varies else sampling.temperature
            if temperature < _GREEDY_BELOW:
                return int(torch.argmax(torch.where(keep, values, -math.inf))), mu
            probabilities = torch.softmax(torch.where(keep, values / temperature, -math.inf), dim=-1)
        else:
            keep = keep & _keeps(sampler, values, torch.where(keep, probabilities, 0.0), keep, sampling, output_index)
    kept = torch.where(keep, probabilities, 0.0)
    if not sampling.shaping.mirostat:
        return _walk(kept, uniform(sampling.seed, output_index)), mu
    surprise, shaping = -torch.log2(kept / kept.sum()), sampling.shaping
    token = _walk(_surprising(kept, surprise, shaping.mirostat, mu), uniform(sampling.seed, output_index))
    return token, mu - shaping.mirostat_eta * (float(surprise[token]) - shaping.mirostat_tau)


def _walk(kept: Tensor, number: float) -> int:
    return int(torch.nonzero((kept.cumsum(0) > number * kept.sum()) & (kept > 0))[0])


def _keeps(sampler: Sampler, values: Tensor, kept: Tensor, keep: Tensor, sampling: Sampling, output: int) -> Tensor:
    """What a sampler keeps. kept [vocab]: probabilities of what is left, 0 elsewhere, up to a factor.

    top-n-sigma: arXiv:2411.07641; typical: arXiv:2202.00666; min-p: arXiv:2407.01082; top-p: arXiv:1904.09751.
    """
    shaping = sampling.shaping
    if sampler is Sampler.TOP_N_SIGMA and shaping.top_n_sigma > 0.0:
        return values >= values[keep].max() - shaping.top_n_sigma * values[keep].std(correction=0)
    if sampler is Sampler.TYPICAL and shaping.typical_p < 1.0:
        return _typical(kept / kept.sum(), shaping.typical_p)
    if sampler is Sampler.MIN_P:
        return kept >= sampling.min_p * kept.max()
    order = torch.sort(torch.where(keep, kept, -1.0), descending=True, stable=True).indices
    if sampler is Sampler.TOP_K and sampling.top_k > 0:
        return _marked(order[: sampling.top_k], keep)
    if sampler is Sampler.TOP_P and sampling.top_p < 1.0:
        share = kept[order] / kept.sum()
        return _marked(order[share.cumsum(0) - share < sampling.top_p], keep)
    if sampler is Sampler.XTC and shaping.xtc_probability > uniform(sampling.seed, output, 1):
        return _without_top(kept, keep, shaping.xtc_threshold)
    return keep


def _surprising(kept: Tensor, surprise: Tensor, version: int, mu: float) -> Tensor:
    """What mirostat draws from (arXiv:2007.14966): 1 cuts by rank under Zipf's law (algorithm 1), 2 by surprise."""
    order = torch.sort(kept, descending=True, stable=True).indices[: int((kept > 0).sum())]
    count = _zipf_count(kept[order].tolist(), mu) if version == 1 else max(1, int((surprise <= mu).sum()))
    return torch.where(_marked(order[:count], kept > 0), kept, 0.0)


def _zipf_count(ranked: list[float], mu: float) -> int:
    """How many of the likeliest tokens make a surprise of mu bits, the exponent estimated from the first hundred."""
    falls = [(math.log((i + 2) / (i + 1)), math.log(ranked[i] / ranked[i + 1])) for i in range(len(ranked[1:100]))]
    exponent = sum(t * b for t, b in falls) / sum(t * t for t, _ in falls) if falls else 0.0
    if exponent < 1e-3:
        return len(ranked)
    excess = exponent - 1.0
    ratio = 1 / math.log(len(ranked)) if abs(excess) < 1e-9 else excess / (1 - len(ranked) ** -excess)
    return max(1, math.floor(min((ratio * 2.0**mu) ** (1 / exponent), len(ranked)) + 0.5))


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


def drawable(row: Tensor) -> Tensor:
    """Neither NaN nor +inf anywhere, and something above -inf."""
    return ~torch.isnan(row).any() & (row < math.inf).all() & (row > -math.inf).any()
