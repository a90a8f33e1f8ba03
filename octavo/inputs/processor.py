"""Prompts and parameters to requests that are valid by construction: the only way into the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.beam_search_params import BeamSearchParams
from octavo.flow.generation_config import defaults_from, end_ids
from octavo.flow.logits_rules import NEVER, LogitsRule, Pattern, WrittenRule, read_rules
from octavo.flow.repetition_params import RepetitionDetectionParams
from octavo.flow.request import GenerationRequest, Repetition, Sampling, Shaping, Stopping
from octavo.flow.sampler_order import pack
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.limits import InputLimits, check_priority, short_salt
from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.prompt import Prompt, ReadPrompt, read_prompt
from octavo.inputs.structured import grammar_of
from octavo.text.chat_template import ChatTemplate
from octavo.text.grammar import Grammar, GrammarCompiler
from octavo.text.tokenizer import Tokenizer, known_tokens

_MASK = (1 << 64) - 1
# As in llama.cpp.
_BREAKERS = ("\n", ":", '"', "*")
_KEPT_BREAKERS = 256
_LONGEST_BAD_WORD = 64  # tokens
_ROOM = 16  # tokens left to an answer of which nothing is said
_CUT_TEXT = 1 << 16  # characters
_LONG_TEXT = 8  # characters a token beyond which a text is measured before it is tokenized


class InputProcessor:
    """Owner: the frontend. Safe to share between threads.

    Args:
        tokenizer: None serves token ids only.
        chat_template: None where the model has none.
        limits: of this model.
        defaults: generation_config.json, or what the GGUF file says: sampling defaults and end-of-text ids.
        seed: requests that bring no seed get seeds that follow from this one and from their order.
        grammars: None refuses structured output.
        pooled: the way into a model that does not generate: every prompt is refused.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        limits: InputLimits,
        defaults: Mapping[str, Any] | None = None,
        seed: int = 0,
        grammars: GrammarCompiler | None = None,
        pooled: PoolingProcessor | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._pooled = pooled
        self.chat_template = chat_template
        self.limits = limits
        self._defaults = defaults_from(defaults or {})
        own = tokenizer.eos_token_ids if tokenizer else ()
        ends = (*own, *end_ids((defaults or {}).get("eos_token_id")))
        self._eos = frozenset(token_id for token_id in ends if 0 <= token_id < limits.vocab)
        self._known = known_tokens(tokenizer, limits.vocab, self._eos) if tokenizer else 0
        self._seed = seed
        self._grammars = grammars
        self._holders: dict[str, frozenset[int]] = {}  # tokens that hold a text
        self._order = count()

    def default_params(self, **given: Any) -> SamplingParams:
        """Parameters where what is given wins over the model's defaults, and these over ours; None is "not given".

        Raises:
            InvalidRequestError: a value out of range, also one from the model's files.
        """
        return SamplingParams(**{**self._defaults, **{k: v for k, v in given.items() if v is not None}})

    def tokenize(self, text: str, add_special_tokens: bool = True, output: int | None = None) -> list[int]:
        """Token ids of a text, refused early when it cannot fit the context.

        Args:
            output: tokens that are asked for behind it, as the error tells.

        Raises:
            InvalidRequestError: no tokenizer, or not Unicode.
            PromptTooLongError: more characters than the context's tokens can stand for.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer (skip_tokenizer_init): give token ids", "prompt")
        most = self.limits.max_model_len
        if len(text) > _LONG_TEXT * most and len(text) > most * self.tokenizer.longest_token():
            raise self.limits.too_long(f"more than {most}", output or 1)
        return self.tokenizer.encode(text, add_special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        """The prompt text of a conversation; options as in `ChatTemplate.render`.

        Tokenize it with add_special_tokens=False: the template writes special tokens itself.

        Raises:
            InvalidRequestError: no template, or as the template says.
        """
        if self.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template; give one with --chat-template (chat_template in Python), "
                "or use plain completion",
                "messages",
            )
        return self.chat_template.render(messages, **options)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str,
        *,
        arrival: float = 0.0,
        priority: int = 0,
        cache_salt: str = "",
        add_special_tokens: bool = True,
    ) -> GenerationRequest:
        """A request for the engine.

        Args:
            prompt: text, token ids, {"prompt": ...} or {"prompt_token_ids": ...}.
            params: None takes the model's defaults. Not altered.
            request_id: must be unique among live requests.
            arrival: reading of the engine's monotonic clock, in seconds.
            priority: lower is sooner.
            cache_salt: requests share cached prefixes only with those of the same salt.
            add_special_tokens: for a text: put a BOS before it where the model wants one.

        Raises:
            InvalidRequestError: what is wrong and what would be right; PromptTooLongError among them.
            UnsupportedError: what Octavo does not have.
        """
        if self._pooled is not None:
            raise self._pooled.refuse_generation()
        read = read_prompt(prompt)
        check_priority(priority)
        # Callers may have changed a field since it was made; a copy is checked again.
        checked = self.default_params() if params is None else _copied(params)
        self.limits.check_params(checked)
        ids = self._prompt_ids(read, checked, add_special_tokens)
        self.limits.check_prompt(ids, checked.max_tokens)
        return self._request(
            checked,
            ids,
            id=request_id,
            arrival=arrival,
            priority=priority,
            cache_salt=short_salt(cache_salt or read.cache_salt),
            cache=read.cache,
        )

    def _request(self, params: SamplingParams, ids: Sequence[int], **origin: Any) -> GenerationRequest:
        """Of a prompt that fits; `origin`: the fields that the parameters say nothing of."""
        max_tokens = self.limits.output_length(len(ids), params)
        sampling, stopping = self._sampling(params), self._stopping(params, max_tokens)
        self.limits.check_drawable(sampling, stopping)
        request = GenerationRequest(
            **origin,
            prompt_token_ids=tuple(ids),
            sampling=sampling,
            stopping=stopping,
            n=params.n,
            stop=tuple(params.stop or ()),
            repetition=_repetition(params.repetition_detection),
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            detokenize=params.detokenize and self.tokenizer is not None,
        )
        form = params.structured_outputs
        return request if form is None else self.constrain(request, grammar_of(form, self.characters(max_tokens)))

    def characters(self, tokens: int) -> int:
        """No answer of so many tokens has more characters than this."""
        return tokens * (self.tokenizer.longest_token() if self.tokenizer is not None else 1)

    def _prompt_ids(self, read: ReadPrompt, params: SamplingParams, add_special_tokens: bool) -> Sequence[int]:
        """A prompt's tokens, cut where the parameters say so; special tokens around a text are kept."""
        most, context = params.truncate_prompt_tokens, self.limits.max_model_len
        if most is None:
            if read.ids is not None:
                return read.ids
            return self.tokenize(read.text or "", add_special_tokens, params.max_tokens)
        if most > context:
            raise InvalidRequestError(
                f"truncate_prompt_tokens {most} is more than the {context} tokens that this model takes",
                "truncate_prompt_tokens",
            )
        if most == -1:
            most = max(1, context - (_ROOM if params.max_tokens is None else params.max_tokens))
        side = params.truncation_side or "left"
        if read.ids is not None:
            return read.ids[-most:] if side == "left" else read.ids[:most]
        if self.tokenizer is None:
            return self.tokenize("")  # says that there is none
        text, bound = read.text or "", max(context * self.tokenizer.longest_token(), _CUT_TEXT)
        text = text[-bound:] if side == "left" else text[:bound]  # no more is worth to be tokenized
        return self.tokenizer.encode_parts([text], add_special_tokens, most, side).ids

    def prepare_beams(
        self, prompt: Prompt, params: BeamSearchParams, request_id: str, **options: Any
    ) -> GenerationRequest:
        """A request for beam search; `options` as in `prepare`.

        Raises:
            InvalidRequestError: as `prepare`.
        """
        request = self.prepare(prompt, params.sampling_params(), request_id, **options)
        return replace(request, beam=params.beam)

    def _sampling(self, params: SamplingParams) -> Sampling:
        vocab = self.limits.vocab
        words = self._bad_words(params.bad_words or ())
        bias = {**(params.logit_bias or {}), **{word[0]: NEVER for word in words if len(word) == 1}}
        self._check_drawable(params.allowed_token_ids, "allowed_token_ids")
        return Sampling(
            known_tokens=self._known,
            temperature=0.0 if params.greedy else float(params.temperature),
            top_k=params.top_k if params.top_k < vocab else 0,
            top_p=float(params.top_p),
            min_p=float(params.min_p),
            repetition_penalty=float(params.repetition_penalty),
            presence_penalty=float(params.presence_penalty),
            frequency_penalty=float(params.frequency_penalty),
            seed=self._fresh_seed() if params.seed is None else params.seed & _MASK,
            logprobs=self._listed(params.logprobs),
            prompt_logprobs=self._listed(params.prompt_logprobs),
            logit_bias=tuple(sorted(bias.items())),
            allowed_token_ids=tuple(sorted(set(params.allowed_token_ids or ()))),
            bad_words=tuple(sorted(word for word in words if len(word) > 1)),
            shaping=self._shaping(params),
            rules=tuple(map(self._rule, read_rules(params.logits_rules or ()))),
        )

    def _listed(self, count: int | None) -> int | None:
        """How many log-probabilities are listed, when so many are asked for: a padded vocabulary has fewer tokens."""
        return min(count, self._known) if count is not None and self._known else count

    def _check_drawable(self, ids: Sequence[int] | None, name: str) -> None:
        if self._known and ids and min(ids) >= self._known:
            raise InvalidRequestError(
                f"{name}: the tokenizer has no token for any of these ids, its own are below {self._known}", name
            )

    def _rule(self, rule: WrittenRule) -> LogitsRule:
        """A rule with its texts as tokens, as the tokenizer cuts them by themselves and behind a space."""
        tokens = [ids for pattern in rule.tokens for ids in self._forms(pattern)]
        single = sorted({ids[0] for ids in tokens if len(ids) == 1})
        for pattern in rule.tokens:
            if all(len(ids) > 1 for ids in self._forms(pattern)):
                raise InvalidRequestError(
                    f"logits_rules: {str(pattern)[:64]!r} is several tokens; an action is about single ones",
                    "logits_rules",
                )
        self.limits.check_ids(single, "logits_rules")
        if rule.kind == "allow":
            self._check_drawable(single, "logits_rules")
        values = {"bias": rule.value, "ban": NEVER}
        return LogitsRule(
            from_step=rule.from_step,
            until_step=rule.until_step,
            after=self._all_forms(rule.after),
            seen=self._all_forms(rule.seen),
            not_seen=self._all_forms(rule.not_seen),
            bias=tuple((token, values[rule.kind]) for token in single) if rule.kind in values else (),
            allow=tuple(single) if rule.kind == "allow" else (),
            scale=tuple((token, rule.value) for token in single) if rule.kind == "scale" else (),
        )

    def _all_forms(self, patterns: Sequence[Pattern]) -> tuple[tuple[int, ...], ...]:
        return tuple(ids for pattern in patterns for ids in self._forms(pattern))

    def _forms(self, pattern: Pattern) -> list[tuple[int, ...]]:
        if not isinstance(pattern, str):
            return [pattern]
        if self.tokenizer is None:
            raise InvalidRequestError("logits_rules: texts need a tokenizer; use token ids", "logits_rules")
        found = [tuple(self.tokenize(form, add_special_tokens=False)) for form in (pattern, " " + pattern.lstrip())]
        return [ids for ids in dict.fromkeys(found) if ids]

    def _shaping(self, params: SamplingParams) -> Shaping:
        breakers: set[int] = set()
        if params.dry_multiplier > 0.0:
            texts = params.dry_sequence_breakers
            for text in _BREAKERS if texts is None else texts:
                breakers |= self._tokens_with(text)
        return Shaping(
            typical_p=float(params.typical_p),
            top_n_sigma=float(params.top_n_sigma),
            xtc_probability=float(params.xtc_probability),
            xtc_threshold=float(params.xtc_threshold),
            dynatemp_range=float(params.dynatemp_range),
            dynatemp_exponent=float(params.dynatemp_exponent),
            dry_multiplier=float(params.dry_multiplier) if params.dry_penalty_last_n else 0.0,
            dry_base=float(params.dry_base),
            dry_allowed_length=params.dry_allowed_length,
            dry_window=params.dry_penalty_last_n,
            dry_breakers=tuple(sorted(breakers)),
            sampler_order=0 if params.samplers is None else pack(params.samplers, params),
            mirostat=params.mirostat,
            mirostat_tau=float(params.mirostat_tau),
            mirostat_eta=float(params.mirostat_eta),
        )

    def _tokens_with(self, text: str) -> frozenset[int]:
        """The tokens whose bytes hold this text; the last few answers are kept."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            return frozenset()
        found = self._holders.get(text)
        if found is None:
            wanted, count = text.encode("utf-8", "replace"), min(tokenizer.vocab_size, self.limits.vocab)
            found = frozenset(token for token in range(count) if wanted in tokenizer.token_bytes(token))
            if len(self._holders) >= _KEPT_BREAKERS:
                self._holders.pop(next(iter(self._holders)), None)
            self._holders[text] = found
        return found

    def _stopping(self, params: SamplingParams, max_tokens: int) -> Stopping:
        ends = set(params.stop_token_ids or ())
        if params.skip_special_tokens and self.tokenizer is not None:
            # A special token that is not shown can be no part of the text: its name as a stop text means its id.
            found = {self.tokenizer.id_of(text) for text in params.stop or ()}
            ends |= self.tokenizer.special_ids & found
        return Stopping(max_tokens, params.min_tokens, frozenset(ends), self._eos, params.ignore_eos)

    def _bad_words(self, words: Sequence[str]) -> set[tuple[int, ...]]:
        """The tokens of words that must not appear, at a text's start and after a space."""
        if words and self.tokenizer is None:
            raise InvalidRequestError("bad_words needs a tokenizer; use logit_bias with token ids", "bad_words")
        found: set[tuple[int, ...]] = set()
        for word in words:
            for form in (word, " " + word.lstrip()):
                ids = tuple(self.tokenize(form, add_special_tokens=False))
                if len(ids) > _LONGEST_BAD_WORD:
                    raise InvalidRequestError(
                        f"bad_words: {form[:64]!r} is {len(ids)} tokens; at most {_LONGEST_BAD_WORD} are allowed",
                        "bad_words",
                    )
                found.add(ids)
        return found - {()}

    def constrain(self, request: GenerationRequest, grammar: Grammar) -> GenerationRequest:
        """The request, its answers held to a grammar, which is compiled here and now.

        Raises:
            InvalidRequestError: the grammar is wrong or too costly; says why.
            UnsupportedError: this model's answers cannot be constrained.
        """
        if self._grammars is None:
            raise UnsupportedError("structured output is not supported here", "structured_outputs")
        self._grammars.check(grammar.text)
        # At its end a grammar allows nothing but the end.
        stopping = replace(request.stopping, ignore_eos=False)
        return replace(request, sampling=replace(request.sampling, grammar=grammar.text), stopping=stopping)

    def _fresh_seed(self) -> int:
        """The next seed: splitmix64 (Steele et al., 2014) of the configured seed and the request's number."""
        value = (self._seed * 0xD1342543DE82EF95 + (next(self._order) + 1) * 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)


def _repetition(wish: RepetitionDetectionParams | None) -> Repetition | None:
    if wish is None or not wish.max_pattern_size:
        return None
    return Repetition(wish.max_pattern_size, max(1, wish.min_pattern_size), wish.min_count)


def _copied(params: SamplingParams) -> SamplingParams:
    if not isinstance(cast("object", params), SamplingParams):
        raise InvalidRequestError(f"sampling parameters must be SamplingParams, got {type(params).__name__}")
    return params.clone()
