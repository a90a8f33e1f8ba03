"""Rules of a request's own for what is drawn next: a small closed form, data and no code. See docs/sampling.md."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from octavo.errors import InvalidRequestError

MOST_RULES = 64
MOST_TOKENS = 4096  # of one rule's action
MOST_PATTERN = 32  # tokens of a condition
LARGEST = 100.0  # of a bias, as in logit_bias
SMALLEST_SCALE, LARGEST_SCALE = 0.01, 100.0  # of one rule
_MOST_SCALE = 1e6  # of all rules together, and its inverse: no logit becomes infinite
NEVER = -1e9  # added to what is banned: all of it banned, something can still be drawn
_WIDTH = 4  # bytes of a token id

_WHEN = {"from_step", "until_step", "after", "seen", "not_seen"}
_RANGES = {"bias": (-LARGEST, LARGEST), "scale": (SMALLEST_SCALE, LARGEST_SCALE)}  # of `value`
_DO = ("bias", "scale", "ban", "allow")

# A text, or token ids.
Pattern = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogitsRule:
    """One rule, ready to be applied. All of its conditions must hold for the next token of the answer.

    from_step, until_step: tokens that the answer has, at least and at most. after: it ends with one of these. seen: it
    holds one of these. not_seen: it holds none of these. scale: what logits are multiplied by, by token id. bias: added
    to them after that. allow: nothing else may be drawn; empty: anything.
    """

    from_step: int = 0
    until_step: int = 1 << 40
    after: tuple[tuple[int, ...], ...] = ()
    seen: tuple[tuple[int, ...], ...] = ()
    not_seen: tuple[tuple[int, ...], ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    allow: tuple[int, ...] = ()
    scale: tuple[tuple[int, float], ...] = ()

    def holds(self, answer: bytes) -> bool:
        """For the next token of an answer, given as 32-bit integers in the machine's order."""
        if not self.from_step <= len(answer) // _WIDTH <= self.until_step:
            return False
        if self.after and not any(answer.endswith(_packed(ids)) for ids in self.after):
            return False
        if self.seen and not any(_holds(answer, ids) for ids in self.seen):
            return False
        return not any(_holds(answer, ids) for ids in self.not_seen)


@dataclass(frozen=True, slots=True)
class Effect:
    """What rules do to one draw: factors of logits and what is added, by token; what alone may be drawn, if not all."""

    scale: dict[int, float]
    bias: dict[int, float]
    allowed: list[int]


def in_effect(rules: Iterable[LogitsRule], answer: bytes, allowed: Iterable[int] = ()) -> Effect:
    """What the rules that hold do together.

    Args:
        allowed: what alone may be drawn without them; empty: anything.
    """
    scale: dict[int, float] = {}
    bias: dict[int, float] = {}
    only = set(allowed)
    for rule in rules:
        if not rule.holds(answer):
            continue
        for token, value in rule.scale:
            scale[token] = min(max(scale.get(token, 1.0) * value, 1.0 / _MOST_SCALE), _MOST_SCALE)
        for token, value in rule.bias:
            bias[token] = bias.get(token, 0.0) + value
        if rule.allow:
            # Where nothing would be left, the later rule wins.
            only = (only & set(rule.allow)) or set(rule.allow)
    return Effect(scale, bias, sorted(only))


@dataclass(frozen=True, slots=True)
class WrittenRule:
    """One rule as it was written, checked: patterns may be texts."""

    from_step: int
    until_step: int
    after: tuple[Pattern, ...]
    seen: tuple[Pattern, ...]
    not_seen: tuple[Pattern, ...]
    kind: str
    tokens: tuple[Pattern, ...]
    value: float


def read_rules(given: object) -> tuple[WrittenRule, ...]:
    """Rules as a request writes them.

    Raises:
        InvalidRequestError: names the rule and the field that is wrong.
    """
    if not isinstance(given, (list, tuple)):
        raise _wrong("", "must be a list of rules")
    rules = cast("Sequence[object]", given)
    if len(rules) > MOST_RULES:
        raise _wrong("", f"has {len(rules)} rules, at most {MOST_RULES} are allowed")
    return tuple(_rule(rule, f"[{number}]") for number, rule in enumerate(rules))


def _rule(given: object, place: str) -> WrittenRule:
    if not isinstance(given, Mapping):
        raise _wrong(place, "must be an object with when (optional), do and tokens")
    rule = cast("Mapping[str, Any]", given)
    if unknown := sorted(map(str, rule.keys() - {"when", "do", "tokens", "value"})):
        raise _wrong(place, f"has a field {unknown[0][:32]!r}; there are when, do, tokens and value")
    when: Any = rule.get("when") or {}
    if not isinstance(when, Mapping):
        raise _wrong(f"{place}.when", "must be an object")
    conditions = cast("Mapping[str, Any]", when)
    if unknown := sorted(map(str, conditions.keys() - _WHEN)):
        raise _wrong(f"{place}.when", f"has a field {unknown[0][:32]!r}; there are {', '.join(sorted(_WHEN))}")
    kind = rule.get("do")
    if kind not in _DO:
        raise _wrong(f"{place}.do", f"must be one of {', '.join(_DO)}, got {str(kind)[:32]!r}")
    tokens = _patterns(rule.get("tokens"), f"{place}.tokens", MOST_TOKENS)
    if not tokens:
        raise _wrong(f"{place}.tokens", "must name at least one token")
    return WrittenRule(
        from_step=_step(conditions.get("from_step"), 0, f"{place}.when.from_step"),
        until_step=_step(conditions.get("until_step"), 1 << 40, f"{place}.when.until_step"),
        after=_patterns(conditions.get("after"), f"{place}.when.after", MOST_PATTERN),
        seen=_patterns(conditions.get("seen"), f"{place}.when.seen", MOST_PATTERN),
        not_seen=_patterns(conditions.get("not_seen"), f"{place}.when.not_seen", MOST_PATTERN),
        kind=str(kind),
        tokens=tokens,
        value=_value(rule.get("value"), str(kind), f"{place}.value"),
    )


def _patterns(given: object, place: str, most: int) -> tuple[Pattern, ...]:
    """Texts, token ids, or lists of token ids."""
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        raise _wrong(place, "must be a list of texts, token ids or lists of token ids")
    items = cast("Sequence[object]", given)
    if len(items) > most:
        raise _wrong(place, f"has {len(items)} entries, at most {most} are allowed")
    return tuple(_pattern(item, f"{place}[{number}]") for number, item in enumerate(items))


def _pattern(item: object, place: str) -> Pattern:
    if isinstance(item, str) and item:
        return item
    ids = cast("Sequence[object]", item) if isinstance(item, (list, tuple)) else (item,)
    if not 0 < len(ids) <= MOST_PATTERN or not all(type(token) is int for token in ids):
        raise _wrong(place, f"must be a text, a token id, or 1 to {MOST_PATTERN} token ids")
    return tuple(cast("Iterable[int]", ids))


def _step(given: object, default: int, place: str) -> int:
    if given is None:
        return default
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise _wrong(place, "must be a whole number, 0 or more")
    return given


def _value(given: object, kind: str, place: str) -> float:
    if kind not in _RANGES:
        if given is not None:
            raise _wrong(place, "goes with do: bias and do: scale only")
        return 0.0
    least, most = _RANGES[kind]
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not least <= given <= most:
        raise _wrong(place, f"must be a number from {least:g} to {most:g}")
    return float(given)


def _packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def _holds(answer: bytes, ids: Sequence[int]) -> bool:
    wanted, at = _packed(ids), -1
    while (at := answer.find(wanted, at + 1)) >= 0:
        if at % _WIDTH == 0:
            return True
    return False


def _wrong(place: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"logits_rules{place} {what}", "logits_rules")
