"""A request as the engine sees it: token ids and parameters, valid by construction."""

from dataclasses import dataclass
from typing import Literal

from octavo.flow.logits_rules import LogitsRule
from octavo.flow.pooling import Pooling


@dataclass(frozen=True, slots=True)
class Shaping:
    """Samplers that few requests ask for; the defaults are off. What each does says `ops/reference_draws.py`.

    `dry_breakers`: tokens that no repetition reaches over. `dry_window`: of the last tokens, so many count; -1: all.
    `sampler_order`: as flow/sampler_order.py packs it; 0 is the usual one.
    """

    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = -1
    dry_breakers: tuple[int, ...] = ()
    sampler_order: int = 0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Ranges were checked by `inputs/limits.py`; here every value is final.

    temperature 0 is greedy. top_k 0 is off. Penalties follow the usual definitions: repetition over prompt and
    output (CTRL, arXiv:1909.05858, section 4.1), presence and frequency over the output (OpenAI API reference).
    The draw at output position `p` depends on (seed, p) alone: no other request, batch or restart changes it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None  # None: none; k: the sampled token and the k likeliest; -1: the whole vocabulary
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    known_tokens: int = 0  # ids from here on stand for no token: not drawn, not listed; 0: all do
    bad_words: tuple[tuple[int, ...], ...] = ()  # of several tokens: the last is not drawn behind the others
    shaping: Shaping = Shaping()
    rules: tuple[LogitsRule, ...] = ()
    grammar: str = ""  # what the answer must be, in the form of text/grammar.py; empty: anything
    logit_scale: tuple[tuple[int, float], ...] = ()  # factors, before biases; of one step's rules


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a sequence ends, as far as token ids tell. Stop strings are the outputs stage's business."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Beam:
    """Search for likely answers instead of drawing them.

    A hypothesis of log-probability p and length l (in generated tokens) scores p / l ** length_penalty.
    `early_stopping`: True ends the search with the `width`-th finished hypothesis, False as soon as no beam's present
    score is better than the worst of them, "never" only when no beam can become better.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class Repetition:
    """An answer ends when it ends with `count` copies of a pattern of `shortest` to `longest` tokens."""

    longest: int
    shortest: int = 1
    count: int = 2


@dataclass(frozen=True, slots=True)
class CacheWish:
    """What a request asks of the prefix cache. It changes no answer.

    Attributes:
        retention: seconds for which its prompt's blocks shall stay after their last use, as far as there is a budget.
        key: names prompts that begin alike; one that has a key is expected to come again.
        explain: tell how much of the prompt was found, and why not more.
    """

    retention: float = 0.0
    key: str = ""
    explain: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to be continued `n` times.

    `sample` streams are numbered 0..n-1; stream i draws with seed + i. With `beam` they are the n best hypotheses, best
    first, and each comes in one piece. `priority`: lower is sooner. `arrival` is a monotonic clock reading in seconds.
    `timeout` and `ttft_deadline` are the seconds from there to the end and to the first token. `tenant` is who shares
    the machine with others, and `tenant_weight` its share; 0 takes that of the configuration. `lag`: background work
    counts as if it had come so many seconds later, and gives its place up to whoever has less.
    `resumed`: it was taken on before, by an engine that has died; limits on what waits do not hold for it any more.
    With `pooling` nothing is generated: the prompt's hidden states are the answer.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    n: int = 1
    arrival: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    cache: CacheWish = CacheWish()
    beam: Beam | None = None
    timeout: float | None = None
    ttft_deadline: float | None = None
    tenant: str = ""
    tenant_weight: float = 0.0
    lag: float = 0.0
    pooling: Pooling | None = None
    resumed: bool = False
    # What the outputs stage needs; the engine carries but never reads it.
    stop: tuple[str, ...] = ()
    repetition: Repetition | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    shown_ids: frozenset[int] = frozenset()  # special tokens that are shown nonetheless
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
