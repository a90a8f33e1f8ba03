"""Grammars that make a model call tools, in the format it knows, and let it reason before what it is held to."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.errors import UnsupportedError
from octavo.outputs.answer.formats import PLAIN_LIST, Frame, ToolFormat
from octavo.outputs.answer.reasoning import ReasoningFormat
from octavo.text.grammar import Grammar, lark_text, marking_ids, repeat
from octavo.text.tokenizer import Tokenizer

_MOST_CALLS = 16
_ANYTHING = r"/(.|\n)*/"
_BUDGET = "thinking_token_budget"

Literal = Callable[[str], str]


def enforced(form: ToolFormat | None) -> ToolFormat:
    """How enforced calls are written: as the model writes them, or as a plain JSON list."""
    return form if form is not None and (form.frame is not None or form.whole is not None) else PLAIN_LIST


def calls_grammar(form: ToolFormat, tools: Sequence[tuple[str, object]], many: bool, tokenizer: Tokenizer) -> Grammar:
    """One call or (`many`) several, of these tools: names with the schemas of their arguments.

    Args:
        form: of `enforced`.
    """
    literal = _literal_of(tokenizer)
    parts = tuple((f"arguments{number}", schema) for number, (_, schema) in enumerate(tools))
    if form.frame is None:  # a message to a function ends the answer
        bodies = [
            literal(f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>") + f" @{part}"
            for (name, _), (part, _) in zip(tools, parts, strict=True)
        ]
        return Grammar("start: " + " | ".join(bodies), parts)
    frame = form.frame
    bodies = [
        f"{literal(_head(frame, name))} @{part} {literal('}')}"
        for (name, _), (part, _) in zip(tools, parts, strict=True)
    ]
    more = f"({literal(frame.between)} call){{0,{_MOST_CALLS - 1}}}" if many else ""
    lines = [
        f"start: {literal(frame.opening)} call {more} {literal(frame.closing)}",
        f"call: {literal(frame.before)} ({' | '.join(bodies)}) {literal(frame.after)}",
    ]
    return Grammar("\n".join(lines), parts)


def can_guard(form: ToolFormat | None) -> bool:
    """Whether calls that the model chooses to make can be held to their schemas: a marker must announce them."""
    return form is not None and form.frame is not None and bool(_announced(form.frame, form))


def guarded_calls(
    form: ToolFormat, tools: Sequence[tuple[str, object]], markers: Sequence[str], tokenizer: Tokenizer
) -> Grammar:
    """Anything; but once a call is announced, one of these tools is called as its schema says.

    Args:
        form: one that `can_guard`.
        markers: others that may stand in the text.
    """
    assert form.frame is not None
    literal, trigger = _literal_of(tokenizer), _announced(form.frame, form)
    frame = replace(
        form.frame,
        opening=form.frame.opening.removeprefix(trigger),
        before=form.frame.before.removeprefix(trigger),
    )
    grammar = calls_grammar(replace(form, frame=frame), tools, bool(frame.opening), tokenizer).renamed("announced")
    mark = literal(trigger)
    free = free_text([marker for marker in markers if marker != trigger], tokenizer).renamed("text")
    lead = f"lead: text {mark}" if mark.startswith("<[") else f"lead[lazy]: {_ANYTHING} {mark}"
    return Grammar("\n".join(["start: (lead announced)* text", lead, free.lark, grammar.lark]), grammar.parts)


def _announced(frame: Frame, form: ToolFormat) -> str:
    """The marker that calls in this frame begin with; empty where there is none."""
    first = frame.opening or frame.before
    return next((marker for marker in form.markers if first.startswith(marker)), "")


def reasoning_rules(
    form: ReasoningFormat, opened: bool, tokenizer: Tokenizer, to_user: bool = True, budget: int | None = None
) -> str:
    """What may come before a grammar begins, for `Grammar.after`.

    Args:
        opened: the answer begins inside its reasoning.
        to_user: what follows is said to the user, not to a tool.
        budget: most tokens of reasoning; then its end is drawn.

    Raises:
        UnsupportedError: a budget where the end of reasoning is not one token.
    """
    literal = _literal_of(tokenizer)
    if form.whole:
        if budget is not None:
            raise UnsupportedError("thinking_token_budget is not supported for this model's channels", _BUDGET)
        thought = f"{literal('<|channel|>analysis<|message|>')} {_ANYTHING} {literal('<|end|><|start|>assistant')}"
        final = literal("<|channel|>final<|message|>") if to_user else ""
        return f"before: ({thought})? {final}"
    begin, end = literal(form.begin[0]), literal(form.end[0])
    is_token = end.startswith("<[")
    if budget is not None and not is_token:
        raise UnsupportedError("thinking_token_budget: this model does not end its reasoning with one token", _BUDGET)
    rules = [f"before: {'thought gap' if opened else f'({begin} thought gap)?'}", r"gap: /\s{0,4}/"]
    if not is_token:
        rules.append(f"thought[lazy]: {_ANYTHING} {end}")
    elif budget is None:
        rules.append(f"thought: {_ANYTHING} {end}")
    else:
        rules += [f"thought: budget {end}", f"budget[max_tokens={budget}]: {_ANYTHING}" if budget else 'budget: ""']
    return "\n".join(rules)


def free_text(markers: Sequence[str], tokenizer: Tokenizer) -> Grammar:
    """Anything, with these markers, also where they are special tokens."""
    literal = _literal_of(tokenizer)
    marks = [found for marker in markers if (found := literal(marker)).startswith("<[") and " " not in found]
    return Grammar(f"start: {repeat(['words', *dict.fromkeys(marks)])}\nwords: /(.|\\n)+/")


def _head(frame: Frame, name: str) -> str:
    return '{"name": ' + lark_text(name) + f', "{frame.key}": '


def _literal_of(tokenizer: Tokenizer) -> Literal:
    """Writes a text for Lark; special tokens in it stand for themselves, not for their letters."""
    special = {token: i for i in marking_ids(tokenizer) if (token := tokenizer.token(i))}

    def literal(text: str) -> str:
        pieces: list[str] = []
        while text:
            at, token = min(((text.find(t), t) for t in special if t in text), default=(len(text), ""))
            if at:
                pieces.append(lark_text(text[:at]))
            if token:
                pieces.append(f"<[{special[token]}]>")
            text = text[at + len(token) :]
        return " ".join(pieces)

    return literal
