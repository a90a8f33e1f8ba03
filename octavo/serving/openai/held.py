"""What an answer is held to beyond its form: tools that must be called, or called right; reasoning first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.inputs.structured import grammar_of, prepared_schema
from octavo.outputs.answer.enforce import calls_grammar, enforced, free_text, guarded_calls, reasoning_rules
from octavo.outputs.answer.parser import AnswerShape
from octavo.serving.openai.tools import ToolUse
from octavo.serving.state import ServerState
from octavo.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An answer that must be called, guarded, formed or bounded. `budget`: most tokens of reasoning."""

    state: ServerState
    use: ToolUse
    shape: AnswerShape
    form: StructuredOutputsParams | None
    budget: int | None

    def grammar(self) -> Callable[[], Grammar] | None:
        """What makes the grammar; None: there is none, or the form alone says it.

        Raises:
            InvalidRequestError: it should have a form and call tools as well; or a budget below 0.
            UnsupportedError: a budget where reasoning is not told apart.
        """
        if self.use.must and self.form is not None:
            raise InvalidRequestError(
                "tool_choice: a call is required, so the answer cannot have another form; use tool_choice 'auto'",
                "tool_choice",
            )
        self._check_budget()
        formed = self.form is not None and not self.shape.plain
        more = self.use.must or self.budget is not None or self.use.guards(self.shape.tools)
        return self._build if formed or more else None

    def _check_budget(self) -> None:
        budget = self.budget
        if budget is not None and budget < 0:
            raise InvalidRequestError(f"thinking_token_budget must be 0 or more, got {budget}", "thinking_token_budget")
        if budget is not None and self.shape.reasoning is None:
            raise UnsupportedError(
                "thinking_token_budget: this model's reasoning is not told apart (--reasoning-parser)",
                "thinking_token_budget",
            )

    def _build(self) -> Grammar:
        shape, tokenizer = self.shape, self.state.tokenizer
        if self.use.must:
            grammar = self._calls()
        elif self.form is None:
            grammar = self._free()
        else:
            grammar = grammar_of(self.form, self._longest)
            if shape.tools is not None and shape.tools.frame is not None:
                grammar = grammar.or_else(self._calls())
        if shape.reasoning is None:
            return grammar
        rules = reasoning_rules(shape.reasoning, shape.opened, tokenizer, to_user=not self.use.must, budget=self.budget)
        return grammar.after(rules)

    @property
    def _longest(self) -> int:
        return self.state.inputs.characters(self.state.inputs.limits.max_model_len)

    def _tools(self, only: frozenset[str]) -> list[tuple[str, object]]:
        """The tools with their schemas; those beyond `only` take any object."""
        return [
            (name, prepared_schema(_as_object(schema if name in only else None), None, self._longest, f"tools.{name}"))
            for name, schema in self.use.tools.items()
        ]

    def _calls(self) -> Grammar:
        tools = self._tools(frozenset(self.use.tools))
        return calls_grammar(enforced(self.state.formats.tools), tools, self.use.parallel, self.state.tokenizer)

    def _free(self) -> Grammar:
        """Words, and calls if there are tools."""
        shape, tokenizer = self.shape, self.state.tokenizer
        marks = [mark for mark in shape.markers if shape.reasoning is None or mark not in shape.reasoning.marks]
        if shape.tools is not None and self.use.guards(shape.tools):
            return guarded_calls(shape.tools, self._tools(self.use.strict), marks, tokenizer)
        return free_text(marks, tokenizer)


def _as_object(schema: Any) -> dict[str, Any]:
    """Arguments are an object, whatever a schema leaves unsaid."""
    given: dict[str, Any] = dict(schema or {})
    return given if "type" in given or "$ref" in given else {"type": "object", **given}
