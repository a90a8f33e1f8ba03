"""What a caller may ask of sampling: vLLM's names, defaults and ranges, checked when the object is made."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.generation_config import end_ids
from octavo.flow.logits_rules import read_rules
from octavo.flow.repetition_params import RepetitionDetectionParams
from octavo.flow.sampler_order import FILTERS, left_out, read_samplers
from octavo.flow.structured_outputs import StructuredOutputsParams, read_structured_outputs

GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM
_MOST_BREAKERS = 64
_MOST_DIGITS = 64  # of a number that a text holds
LARGEST_BIAS = 100.0  # OpenAI's range of a logit bias is +-100; others are brought into it

# Names that older clients send. They never did what people expect here, so they are refused rather than passed over.
_REMOVED = {
    "best_of": "use n and choose among the answers",
    "use_beam_search": "use LLM.beam_search with BeamSearchParams",
    "early_stopping": "use LLM.beam_search with BeamSearchParams",
    "length_penalty": "use LLM.beam_search with BeamSearchParams",
    "beam_width": "use LLM.beam_search with BeamSearchParams",
    "logits_processors": "use logit_bias, allowed_token_ids or bad_words",
    "guided_decoding": "use structured_outputs=StructuredOutputsParams(...), which has the same fields",
}
# Real options of vLLM that Octavo does not have: anything but the neutral value is refused.
_MISSING: dict[str, object] = {
    "prompt_logprob_start": None,
    "prompt_logprob_token_ids": None,
    "logprob_token_ids": None,
    "flat_logprobs": False,
    "stream_interval": None,
    "extra_args": None,
    "skip_reading_prefix_cache": None,
    "thinking_token_budget": None,
    "watermarking": None,
    "trace_decode_token_ids": None,
    "routed_experts_prompt_start": None,
}


class RequestOutputKind(Enum):
    """What each output of a running request holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # nothing before the end


@dataclass(slots=True)
class SamplingParams:
    """How to continue one prompt.

    Args:
        n: number of independent answers.
        presence_penalty: subtracted from the logit of each token the answer has, -2..2.
        frequency_penalty: subtracted once per occurrence in the answer, -2..2.
        repetition_penalty: 0.0001..10000; over 1 discourages tokens of prompt and answer (CTRL, arXiv:1909.05858).
        temperature: 0..2; 0 takes the likeliest token, and top_p, top_k, min_p are then off.
        top_p: (0, 1]; smallest set of tokens with at least this probability.
        top_k: number of likeliest tokens to draw from; 0 and -1 are off.
        min_p: 0..1; drops tokens less likely than this share of the likeliest.
        seed: any 64-bit integer; None and -1 take a fresh one. The same seed and prompt give the same answer.
        stop: texts that end the answer.
        stop_token_ids: tokens that end the answer.
        ignore_eos: go on after the end-of-text token.
        max_tokens: longest answer; None is all that the context has room for.
        min_tokens: no end before this many tokens; at most max_tokens.
        logprobs: log-probabilities of the drawn token and of this many likeliest; 0 is the drawn one alone, -1 all.
        prompt_logprobs: likewise for the tokens of the prompt.
        detokenize: false: no text, token ids only.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: keep the spaces that the tokenizer's decoder puts between them.
        include_stop_str_in_output: the text ends with the stop text rather than before it.
        output_kind: what outputs of an unfinished request hold.
        logit_bias: token id -> number added to its logit, -100..100.
        allowed_token_ids: only these tokens are drawn.
        bad_words: texts that no answer has, as the tokenizer cuts them by themselves or behind a space.
        logits_rules: rules of one's own for what may be drawn when; see docs/sampling.md.
        repetition_detection: end an answer that goes in circles; also an object of RepetitionDetectionParams' fields.
        structured_outputs: the form that the answer must have; also an object of StructuredOutputsParams' fields.
        typical_p: (0, 1]; keeps the tokens whose surprise is nearest to the expected one, up to this share; 1 is off.
        top_n_sigma: keeps logits within so many standard deviations of the largest; 0 and -1 are off.
        xtc_probability, xtc_threshold: with this probability, of the tokens above the threshold only the least likely
            is kept.
        dynatemp_range, dynatemp_exponent: the temperature varies by so much, with the entropy to this power.
        dry_multiplier, dry_base, dry_allowed_length: a token that continues a repetition of n >= allowed_length tokens
            loses multiplier * base ** (n - allowed_length); 0 is off.
        dry_penalty_last_n: tokens at the end that are looked at for repetitions; -1 is all, 0 none.
        mirostat: 1 or 2 keeps the surprise near mirostat_tau bits a token, in place of filters; mirostat_eta: how fast.
        samplers: names of those that are applied, in their order, or a text of them; see docs/sampling.md.
        dry_sequence_breakers: texts that no repetition reaches over (default: line ends, ":", '"' and "*").
        truncate_prompt_tokens: longer prompts are cut to so many tokens; -1: to what leaves room for the answer.
        truncation_side: which end of a prompt is cut off, "left" (the default) or "right".
        deterministic: the output tells what gives the same bits again (`RequestOutput.receipt`; `LLM.replay`).

    Raises:
        InvalidRequestError: a value out of range (it is a ValueError too); `param` names the field.
        UnsupportedError: an option of vLLM that Octavo does not have.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    logits_rules: Sequence[Mapping[str, Any]] | None = None
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: Sequence[str] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    deterministic: bool = False
    # Options of vLLM that are refused unless neutral; see _MISSING.
    prompt_logprob_start: object = field(default=None, repr=False)
    prompt_logprob_token_ids: object = field(default=None, repr=False)
    logprob_token_ids: object = field(default=None, repr=False)
    flat_logprobs: object = field(default=False, repr=False)
    stream_interval: object = field(default=None, repr=False)
    extra_args: object = field(default=None, repr=False)
    skip_reading_prefix_cache: object = field(default=None, repr=False)
    thinking_token_budget: object = field(default=None, repr=False)
    watermarking: object = field(default=None, repr=False)
    trace_decode_token_ids: object = field(default=None, repr=False)
    routed_experts_prompt_start: object = field(default=None, repr=False)

    def __new__(cls, *_: object, **given: object) -> "SamplingParams":
        """Name what is wrong with an unknown option before Python says only that it is unexpected."""
        for name in given:
            if name not in _NAMES:
                raise _unknown(name)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check every field and bring lists into one form."""
        for check in _CHECKS:
            check(self)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW

    @classmethod
    def from_optional(cls, **given: Any) -> "SamplingParams":
        """Like the constructor, but None means a field's default (max_tokens excepted: there None has a meaning)."""
        kept: dict[str, Any] = {name: v for name, v in given.items() if v is not None or name == "max_tokens"}
        return cls(**kept)

    def clone(self) -> "SamplingParams":
        """An independent copy."""
        return dataclasses.replace(self)

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Stop at every end-of-text id that a generation_config.json lists, unless `ignore_eos`.

        `eos_token_id`, the model's own, ends answers anyway and is left out.
        """
        ids = set(end_ids(generation_config.get("eos_token_id"))) - {eos_token_id}
        if ids and not self.ignore_eos:
            self.stop_token_ids = sorted(ids | set(self.stop_token_ids or ()))


def _unknown(name: str) -> Exception:
    if name in _REMOVED:
        return InvalidRequestError(f"{name} is not a sampling parameter any more: {_REMOVED[name]}", name)
    return InvalidRequestError(
        f"{name} is not a sampling parameter; the names are those of vLLM's SamplingParams", name
    )


def _number(
    name: str, low: float, high: float, words: str, *, open_low: bool = False
) -> Callable[[SamplingParams], None]:
    """A check that a field is a number of a range; NaN and booleans are none."""

    def check(params: SamplingParams) -> None:
        value: Any = getattr(params, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (open_low and value == low):
            raise InvalidRequestError(f"{name} must be {words}, got {value!r}", name)

    return check


def _integer(
    name: str, low: int, high: float, words: str, *, optional: bool = False
) -> Callable[[SamplingParams], None]:
    """A check that a field is an integer of a range, or None where that is allowed."""

    def check(params: SamplingParams) -> None:
        value: object = getattr(params, name)
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequestError(f"{name} must be {words}, got {value!r}", name)

    return check


def _flag(name: str) -> Callable[[SamplingParams], None]:
    def check(params: SamplingParams) -> None:
        if not isinstance(getattr(params, name), bool):
            raise InvalidRequestError(f"{name} must be true or false, got {getattr(params, name)!r}", name)

    return check


def _check_missing(params: SamplingParams) -> None:
    for name, neutral in _MISSING.items():
        value: object = getattr(params, name)
        if value is not neutral and value is not None and value != neutral:
            raise UnsupportedError(f"{name} is not supported yet; leave it out", name)


def _check_rules(params: SamplingParams) -> None:
    if params.logits_rules is not None:
        read_rules(params.logits_rules)


def _check_truncation(params: SamplingParams) -> None:
    if params.truncate_prompt_tokens == 0:
        raise InvalidRequestError(
            "truncate_prompt_tokens must be at least 1, or -1 for what leaves room for the answer",
            "truncate_prompt_tokens",
        )
    if params.truncation_side not in (None, "left", "right"):
        raise InvalidRequestError(
            f"truncation_side must be left or right, got {params.truncation_side!r:.100}", "truncation_side"
        )


def _check_seed(params: SamplingParams) -> None:
    if params.seed == -1:
        params.seed = None


def _check_min_tokens(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}", "min_tokens"
        )


def _check_stop(params: SamplingParams) -> None:
    if params.stop is None:
        params.stop = []
        return
    stop = [params.stop] if isinstance(params.stop, str) else list(_listed(params.stop, "stop", "texts"))
    for text in stop:
        if not isinstance(cast("object", text), str) or not text:
            raise InvalidRequestError(f"stop must hold texts that are not empty, got {text!r}", "stop")
    if stop and not params.detokenize:
        raise InvalidRequestError("stop needs detokenize=True; use stop_token_ids without text", "stop")
    params.stop = stop


def _check_ids(params: SamplingParams) -> None:
    params.stop_token_ids = _ids(params.stop_token_ids, "stop_token_ids")
    if params.allowed_token_ids is not None:
        params.allowed_token_ids = _ids(params.allowed_token_ids, "allowed_token_ids")
        if not params.allowed_token_ids:
            raise InvalidRequestError(
                "allowed_token_ids must not be empty; leave it out to allow all", "allowed_token_ids"
            )


def _check_bias(params: SamplingParams) -> None:
    if params.logit_bias is None:
        return
    if not isinstance(cast("object", params.logit_bias), Mapping):
        raise InvalidRequestError("logit_bias must be an object of token id -> number", "logit_bias")
    checked: dict[int, float] = {}
    for key, value in cast("Mapping[object, object]", params.logit_bias).items():
        token_id = _bias_id(key)
        if token_id < 0:
            raise InvalidRequestError(f"logit_bias has {key!r:.100}, which is not a token id", "logit_bias")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
            raise InvalidRequestError(f"logit_bias of token {token_id} must be a number, got {value!r}", "logit_bias")
        checked[token_id] = max(-LARGEST_BIAS, min(LARGEST_BIAS, float(value)))
    params.logit_bias = checked


def _bias_id(key: object) -> int:
    """A token id, also as JSON's keys write one; -1 for anything else."""
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS:
        return int(key)
    return key if isinstance(key, int) and not isinstance(key, bool) else -1


def _check_words(params: SamplingParams) -> None:
    if params.bad_words is None:
        params.bad_words = []
        return
    words = list(_listed(params.bad_words, "bad_words", "words"))
    if not all(isinstance(cast("object", word), str) and word.strip() for word in words):
        raise InvalidRequestError("bad_words must hold words that are not empty", "bad_words")
    params.bad_words = words


def _check_repetition(params: SamplingParams) -> None:
    given = cast("object", params.repetition_detection)
    if given is None or isinstance(given, RepetitionDetectionParams):
        return
    names = {item.name for item in dataclasses.fields(RepetitionDetectionParams)}
    if not isinstance(given, Mapping) or not names.issuperset(cast("Mapping[object, Any]", given)):
        raise InvalidRequestError(
            f"repetition_detection must be an object of {', '.join(sorted(names))}, got {given!r:.100}",
            "repetition_detection",
        )
    params.repetition_detection = RepetitionDetectionParams(**cast("Mapping[str, Any]", given))


def _check_breakers(params: SamplingParams) -> None:
    if params.dry_sequence_breakers is None:
        return
    breakers = list(_listed(params.dry_sequence_breakers, "dry_sequence_breakers", "texts"))
    if len(breakers) > _MOST_BREAKERS or not all(isinstance(cast("object", text), str) and text for text in breakers):
        raise InvalidRequestError(
            f"dry_sequence_breakers must hold at most {_MOST_BREAKERS} texts that are not empty",
            "dry_sequence_breakers",
        )
    params.dry_sequence_breakers = breakers


def _check_form(params: SamplingParams) -> None:
    if params.structured_outputs is None:
        return
    params.structured_outputs = read_structured_outputs(params.structured_outputs)
    if params.allowed_token_ids is not None:
        raise InvalidRequestError(
            "allowed_token_ids does not go with structured_outputs, which says what is allowed", "allowed_token_ids"
        )


def _check_samplers(params: SamplingParams) -> None:
    if params.samplers is not None:
        params.samplers = read_samplers(params.samplers)
        for name, off in left_out(params.samplers).items():
            setattr(params, name, off)


def _check_output_kind(params: SamplingParams) -> None:
    if not isinstance(cast("object", params.output_kind), RequestOutputKind):
        raise InvalidRequestError(f"output_kind must be a RequestOutputKind, got {params.output_kind!r}", "output_kind")


def _greedy_is_plain(params: SamplingParams) -> None:
    """Filters have no effect on the likeliest token; off, they cost nothing."""
    params.top_k, params.top_n_sigma = max(params.top_k, 0), max(params.top_n_sigma, 0.0)  # -1 is off
    if params.greedy:
        params.mirostat, params.dynatemp_range = 0, 0.0
    if params.greedy or params.mirostat:  # which cuts in their place
        for name, off in FILTERS.items():
            setattr(params, name, off)


def _listed(value: Any, name: str, what: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, (Sequence, set, frozenset)):
        raise InvalidRequestError(f"{name} must be a list of {what}, got {value!r}", name)
    return cast("Sequence[Any]", value)


def _ids(value: Sequence[int] | None, name: str) -> list[int]:
    if value is None:
        return []
    ids: list[int] = []
    for item in _listed(value, name, "token ids"):
        try:
            token_id = -1 if isinstance(item, bool) else operator.index(item)
        except TypeError:
            token_id = -1
        if token_id < 0:
            raise InvalidRequestError(f"{name} must hold token ids (integers from 0), got {item!r}", name)
        ids.append(token_id)
    return ids


_NAMES = frozenset(item.name for item in dataclasses.fields(SamplingParams))
_SEEDS = 1 << 63
_MOST_TOKENS = (1 << 31) - 1
_CHECKS: tuple[Callable[[SamplingParams], None], ...] = (
    _integer("n", 1, math.inf, "an integer from 1"),
    _number("presence_penalty", -2, 2, "a number from -2 to 2"),
    _number("frequency_penalty", -2, 2, "a number from -2 to 2"),
    _number("repetition_penalty", 1e-4, 1e4, "a number from 0.0001 to 10000"),
    _number("temperature", 0, 2, "a number from 0 to 2"),
    _number("top_p", 0, 1, "a number greater than 0 and at most 1", open_low=True),
    _integer("top_k", -1, math.inf, "an integer from 1, or 0 or -1 (off)"),
    _number("min_p", 0, 1, "a number from 0 to 1"),
    _number("typical_p", 0, 1, "a number greater than 0 and at most 1", open_low=True),
    _number("top_n_sigma", -1, 1e6, "a number from 0, or -1 (off)"),
    _number("xtc_probability", 0, 1, "a number from 0 to 1"),
    _number("xtc_threshold", 0, 1, "a number from 0 to 1"),
    _number("dynatemp_range", 0, 2, "a number from 0 to 2"),
    _number("dynatemp_exponent", 0, 100, "a number greater than 0 and at most 100", open_low=True),
    _number("dry_multiplier", 0, 1e4, "a number from 0 to 10000"),
    _number("dry_base", 1, 100, "a number from 1 to 100"),
    _integer("dry_allowed_length", 0, _MOST_TOKENS, "an integer from 0"),
    _integer("dry_penalty_last_n", -1, _MOST_TOKENS, "an integer from 0, or -1 (all)"),
    _integer("mirostat", 0, 2, "0 (off), 1 or 2"),
    _number("mirostat_tau", 0, 100, "a number of bits from 0 to 100"),
    _number("mirostat_eta", 0, 1, "a number from 0 to 1"),
    _integer("seed", -_SEEDS, 2 * _SEEDS - 1, "a 64-bit integer", optional=True),
    _integer("max_tokens", 1, math.inf, "an integer from 1", optional=True),
    _integer("min_tokens", 0, math.inf, "an integer from 0"),
    _integer("logprobs", -1, math.inf, "an integer from 0, or -1 (all)", optional=True),
    _integer("prompt_logprobs", -1, math.inf, "an integer from 0, or -1 (all)", optional=True),
    _flag("ignore_eos"),
    _flag("detokenize"),
    _flag("skip_special_tokens"),
    _flag("spaces_between_special_tokens"),
    _flag("include_stop_str_in_output"),
    _flag("deterministic"),
    _integer("truncate_prompt_tokens", -1, _MOST_TOKENS, "an integer from 1, or -1", optional=True),
    _check_truncation,
    _check_missing,
    _check_rules,
    _check_seed,
    _check_min_tokens,
    _check_stop,
    _check_ids,
    _check_bias,
    _check_words,
    _check_breakers,
    _check_repetition,
    _check_form,
    _check_output_kind,
    _check_samplers,
    _greedy_is_plain,
)
