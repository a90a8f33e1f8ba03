"""Grammars over a model's tokens, by llguidance: compiled within limits, kept for the next request, opened per answer.

A grammar is llguidance's own text: a JSON object {"grammars": [{"lark_grammar": ...} or {"json_schema": ...}, ...]}.
The library is loaded with the first one.
"""

import copy
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.errors import InvalidRequestError, UnsupportedError, UserError
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_PARAM = "structured_outputs"
_START = re.compile(r"^start\s*:", re.MULTILINE)
_MOST_NESTED = 200  # parentheses of a regular expression or grammar
# Some tokenizers have them as added tokens that are not special.
_REASONING_MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]")
_MOST_REASON = 400  # characters of the library's message that are told


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """What one grammar may cost. Fuel and items are llguidance's units: some 50 and 20 thousand a millisecond."""

    characters: int = 128 * 1024
    grammar_size: int = 200_000  # symbols
    lexer_fuel: int = 500_000  # of all lexemes
    step_fuel: int = 100_000  # of one mask
    step_items: int = 50_000
    states: int = 100_000  # of the lexer; some nine a character of a bounded text
    mask_seconds: float = 0.25  # the most that one mask may take, of the thread's own time
    kept: int = 32  # compiled grammars


@dataclass(frozen=True, slots=True)
class Grammar:
    """A Lark text with a rule `start`, and the JSON schemas and grammars that it refers to as `@name`."""

    lark: str
    parts: "tuple[tuple[str, object], ...]" = ()

    @property
    def text(self) -> str:
        """What `GrammarCompiler` takes."""
        listed: list[dict[str, object]] = [{"name": "answer", "lark_grammar": self.lark}]
        listed += [{"name": name, "json_schema": schema} for name, schema in self.parts]
        return json.dumps({"grammars": listed}, ensure_ascii=False)

    def renamed(self, name: str) -> "Grammar":
        """The same, its rule `start` by another name: a part of a larger grammar."""
        return Grammar(_START.sub(f"{name}:", self.lark, count=1), self.parts)

    def or_else(self, other: "Grammar") -> "Grammar":
        """This or the other; names of parts must differ, and both have one line a rule."""
        lark = f"start: first | second\n{self.renamed('first').lark}\n{other.renamed('second').lark}"
        return Grammar(lark, self.parts + other.parts)

    def after(self, lark: str) -> "Grammar":
        """What `lark` says in its rule `before` (it must have no rule `start`), and then this.

        Rules of both stand side by side, so names must differ.
        """
        return Grammar(f"start: before answer\n{lark}\n{self.renamed('answer').lark}", self.parts)


class Matcher(Protocol):
    """Where one answer stands in its grammar. Mutable; one owner."""

    @property
    def error(self) -> str:
        """Why it cannot go on; empty while it can."""
        ...

    def fill(self, words: int) -> None:
        """Write which tokens may come next to the bitmask at this address, and see to its error."""
        ...

    def advance(self, token: int, ends: bool) -> None:
        """A token was drawn. ends: it is an end-of-text or stop token."""
        ...


class GrammarCompiler:
    """Compiles grammars for one model. Safe to share between threads; compiles one at a time, without Python's lock.

    Args:
        tokenizer: gives the model's tokenizer, when the first grammar comes.
        vocab: number of logits.
    """

    def __init__(
        self, tokenizer: Callable[[], Tokenizer | None], vocab: int, limits: GrammarLimits | None = None
    ) -> None:
        self.words = (vocab + 31) // 32  # of a bitmask
        self._load = tokenizer
        self._vocab = vocab
        self._limits = limits or GrammarLimits()
        self._compiling = threading.Lock()
        self._keeping = threading.Lock()  # held for a moment only
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher | UserError] = OrderedDict()  # the last used last
        self._pool: ThreadPoolExecutor | None = None
        self._coming: dict[str, Future[None]] = {}

    def check(self, grammar: str) -> None:
        """Compile it, unless that was done.

        Raises:
            InvalidRequestError: it is wrong, or too costly; says why.
            UnsupportedError: the model's tokenizer cannot be constrained.
        """
        self._compiled(grammar)

    def open(self, grammar: str) -> Matcher:
        """The start of an answer.

        Raises:
            InvalidRequestError, UnsupportedError: as `check`.
        """
        return _LibraryMatcher(self._compiled(grammar).deep_copy(), self._eos(), 4 * self.words, self._limits)

    def prepare(self, grammar: str, seconds: float = 0.0) -> bool:
        """Compile it in a thread; true once that is over, well or not. Waits up to `seconds` for it."""
        if self._find(grammar) is not None:
            return True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar")
        future = self._coming.get(grammar)
        if future is None:
            future = self._coming[grammar] = self._pool.submit(self.check, grammar)
        try:
            future.exception(timeout=seconds)
        except StillRunning:
            return False
        del self._coming[grammar]
        return True

    def _compiled(self, grammar: str) -> "LLMatcher":
        found = self._find(grammar)
        if found is None:
            with self._compiling:
                found = self._find(grammar)
                if found is None:
                    found = self._compile_or_fail(grammar)
                    self._keep(grammar, found)
        if isinstance(found, UserError):
            raise copy.copy(found)  # whoever catches it may name its field otherwise
        return found

    def _find(self, grammar: str) -> "LLMatcher | UserError | None":
        with self._keeping:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
            return found

    def _keep(self, grammar: str, compiled: "LLMatcher | UserError") -> None:
        with self._keeping:
            self._kept[grammar] = compiled
            while len(self._kept) > self._limits.kept:
                self._kept.popitem(last=False)

    def _compile_or_fail(self, grammar: str) -> "LLMatcher | UserError":
        try:
            return self._compile(grammar)
        except UserError as error:
            return error

    def _compile(self, grammar: str) -> "LLMatcher":
        limits = self._limits
        if len(grammar) > limits.characters:
            raise InvalidRequestError(
                f"the grammar has {len(grammar)} characters; {limits.characters} are allowed", _PARAM
            )
        from llguidance import LLMatcher

        vocabulary = self._tokens()
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=self._library_limits())
        if matcher.is_error():
            raise InvalidRequestError(f"structured output: {_reason(matcher.get_error())}", _PARAM)
        # What explodes mostly does so at the first mask.
        probe, began = matcher.deep_copy(), time.thread_time()
        probe.compute_bitmask()
        if probe.is_error() and "NoExtension" in probe.get_error():
            raise InvalidRequestError("structured output: no text at all has this form", _PARAM)
        if probe.is_error():
            raise InvalidRequestError(f"structured output is too costly: {_reason(probe.get_error())}", _PARAM)
        if time.thread_time() - began > limits.mask_seconds:
            raise InvalidRequestError("structured output is too costly: one mask takes too long", _PARAM)
        return matcher

    def _library_limits(self) -> "LLParserLimits":
        from llguidance import LLParserLimits

        limits = self._limits
        return LLParserLimits(
            initial_lexer_fuel=limits.lexer_fuel,
            step_lexer_fuel=limits.step_fuel,
            step_max_items=limits.step_items,
            max_lexer_states=limits.states,
            max_grammar_size=limits.grammar_size,
            verbose_errors=False,
        )

    def _tokens(self) -> "LLTokenizer":
        if self._vocabulary is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            tokenizer = self._load()
            if tokenizer is None:
                raise UnsupportedError("structured output needs a tokenizer (not skip_tokenizer_init)", _PARAM)
            eos = [token for token in tokenizer.eos_token_ids if token < self._vocab]
            if not eos:
                raise UnsupportedError("structured output needs a tokenizer that has an end-of-text token", _PARAM)
            wrapper = TokenizerWrapper(_Vocabulary(tokenizer, self._vocab, eos[0]))
            self._vocabulary = LLTokenizer(wrapper, n_vocab=self._vocab, eos_token=eos[:1])
        return self._vocabulary

    def _eos(self) -> int:
        assert self._vocabulary is not None
        return self._vocabulary.eos_token


class _LibraryMatcher:
    """A Matcher over llguidance's."""

    __slots__ = ("_bytes", "_eos", "_longest", "_matcher", "error")

    def __init__(self, matcher: "LLMatcher", eos: int, size: int, limits: GrammarLimits) -> None:
        self._matcher = matcher
        self._eos = eos
        self._bytes = size
        self._longest = limits.mask_seconds
        self.error = ""

    def fill(self, words: int) -> None:
        if self.error:
            return
        began = time.thread_time()
        try:
            self._matcher.unsafe_compute_mask_ptr(words, self._bytes)
        except Exception as error:  # of the library's own; it must not end the step of others
            self._fail(str(error))
            return
        if self._matcher.is_error():
            self._fail(self._matcher.get_error())
        elif time.thread_time() - began > self._longest:
            self._fail("a mask took too long")

    def advance(self, token: int, ends: bool) -> None:
        if self.error:
            return
        matcher = self._matcher
        if ends and matcher.is_accepting():
            token = self._eos
        if not matcher.consume_token(token):
            self._fail(matcher.get_error())

    def _fail(self, reason: str) -> None:
        self.error = f"structured output failed: {_reason(reason)}"


class _Vocabulary:
    """A tokenizer as llguidance's wrapper takes it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos: int) -> None:
        self.eos_token_id = eos
        self.bos_token_id = tokenizer.bos_token_id
        count = min(tokenizer.vocab_size, vocab)
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token) for token in range(count)]
        self.special_token_ids = sorted(token for token in marking_ids(tokenizer) if token < count)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """How the tokenizer cuts a text; refuses bytes, as the wrapper finds out."""
        return self._tokenizer.encode(text, add_special_tokens=False)


def _reason(message: str) -> str:
    """The library's message without the source that it quotes."""
    plain = " ".join(message.split("<non-verbose/>")[0].split("\n   1 |")[0].split())
    return plain if len(plain) <= _MOST_REASON else plain[:_MOST_REASON] + "..."


def marking_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that a grammar takes for themselves, and that no text consists of: special ones and marks of reasoning."""
    found = {tokenizer.id_of(mark) for mark in _REASONING_MARKS}
    return tokenizer.special_ids | (tokenizer.added_ids & found)


def lark_text(text: str) -> str:
    """A text as Lark writes one."""
    return json.dumps(text, ensure_ascii=False)


def lark_regex(regex: str) -> str:
    """A regular expression as Lark writes one. `\\d` stands for ASCII digits, as in JSON Schema."""
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(regex)}/"


def lark_tree(grammar: str) -> str:
    """A grammar in Lark's syntax; GBNF (with `::=`) is translated.

    Raises:
        InvalidRequestError: it is nested too deeply, or GBNF that cannot be read.
    """
    _check_nesting(grammar, "grammar")
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:
        raise InvalidRequestError(f"structured output: grammar: {_reason(str(error))}", _PARAM) from None


def repeat(names: Sequence[str]) -> str:
    """Any number of any of these rules."""
    return f"({' | '.join(names)})*"


def check_regex(regex: str, where: str) -> None:
    """Refuse what the library would take, but no other reader of regular expressions does.

    Raises:
        InvalidRequestError: nested too deeply, a repetition of a repetition, or of nothing.
    """
    _check_nesting(regex, where)
    repeatable, in_class, at = False, False, 0
    while at < len(regex):
        character = regex[at]
        at += 2 if character == "\\" else 1
        if in_class:
            in_class = character != "]"
            repeatable = not in_class
            continue
        in_class = character == "["
        if in_class:  # a first ']' is one of the class
            at += regex.startswith("^", at)
            at += regex.startswith("]", at)
        counted = _COUNT.match(regex, at - 1) if character == "{" else None
        if character in "*+?" or counted is not None:
            if not repeatable:
                raise InvalidRequestError(
                    f"structured output: {where}: nothing to repeat before {character!r} at position {at - 1}", _PARAM
                )
            at = counted.end() if counted is not None else at
            at += regex.startswith("?", at)  # as few as possible
            repeatable = False
        else:
            repeatable = character not in "^|("
            if character == "(":
                at += len(_GROUP.match(regex, at).group())  # type: ignore[union-attr]


_COUNT = re.compile(r"\{\d*,?\d*\}")
_GROUP = re.compile(r"(\?(P?<\w+>|[a-zA-Z-]*:|[a-zA-Z-]+(?=\))|))?")


def _check_nesting(text: str, where: str) -> None:
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > _MOST_NESTED:
        raise InvalidRequestError(f"structured output: {where}: more than {_MOST_NESTED} nested parentheses", _PARAM)
