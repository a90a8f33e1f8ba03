"""Enforced calls and reasoning where the model marks them with special tokens, and formats chosen by a template."""

from collections.abc import Sequence
from types import MappingProxyType

import pytest

from octavo.errors import ConfigError, UnsupportedError
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import SequenceOutput
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.inputs.structured import grammar_of
from octavo.outputs.answer.choose import choose_formats
from octavo.outputs.answer.enforce import calls_grammar, can_guard, enforced, free_text, guarded_calls, reasoning_rules
from octavo.outputs.answer.formats import FORMATS, PLAIN_LIST
from octavo.outputs.answer.parser import AnswerShape, read_answer
from octavo.outputs.answer.reasoning import REASONING
from octavo.outputs.processor import OutputProcessor
from octavo.text.grammar import GrammarCompiler
from tests.text.walk import first_wrong

MARKS = (
    "<|return|>",
    "<|end|>",
    "[TOOL_CALLS]",
    "[THINK]",
    "[/THINK]",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|constrain|>",
)
INTEGERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [("add", INTEGERS), ("sub", INTEGERS)]


class MarkedTokenizer:
    """Bytes, and special tokens from 256 on; <|return|> ends a text."""

    vocab_size = 256 + len(MARKS)
    eos_token_ids = (256,)
    bos_token_id = None
    special_ids = frozenset(range(256, 256 + len(MARKS)))
    added_ids = special_ids
    special_tokens = MappingProxyType({"eos_token": "<|return|>"})
    strips_first_space = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((mark for mark in MARKS if text.startswith(mark)), None)
            ids += [256 + MARKS.index(mark)] if mark else text[0].encode()
            text = text[len(mark) if mark else 1 :]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return MARKS[token_id - 256].encode() if token_id > 255 else bytes([token_id])

    def token(self, token_id: int) -> str | None:
        return MARKS[token_id - 256] if token_id > 255 else chr(token_id)

    def id_of(self, token: str) -> int | None:
        return 256 + MARKS.index(token) if token in MARKS else None

    def longest_token(self) -> int:
        return 14


TOKENIZER = MarkedTokenizer()
COMPILER = GrammarCompiler(lambda: TOKENIZER, TOKENIZER.vocab_size)


def passes(grammar: str, text: str) -> bool:
    return first_wrong(COMPILER, TOKENIZER, grammar, text) is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {"a": 2}}]',
            "x",
        ),
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}; {"name": "sub", "parameters": {"a": 2}}', "[]"),
        ("granite", '<|tool_call|>[{"name": "sub", "arguments": {"a": 1}}]', '[{"name": "sub"}]'),
        ("hermes", '<tool_call>\n{"name": "sub", "arguments": {"a": 1}}\n</tool_call>', "<tool_call></tool_call>"),
        ("pythonic", '[{"name": "sub", "parameters": {"a": 1}}]', "[sub(a=1)]"),
        ("openai", '<|channel|>commentary to=functions.sub <|constrain|>json<|message|>{"a": 1}', '{"a": 1}'),
    ],
)
def test_enforced_calls_are_in_the_format_that_is_read(name: str, good: str, bad: str) -> None:
    form = enforced(FORMATS[name])
    grammar = calls_grammar(form, TOOLS, True, TOKENIZER).text
    assert passes(grammar, good)
    assert not passes(grammar, bad)
    assert not passes(grammar, good.replace('"a"', '"b"'))
    names = [event.text for event in read_answer(good, AnswerShape(tools=form)) if event.kind == "call"]
    assert names[-1] == "sub"
    assert not passes(calls_grammar(form, TOOLS, False, TOKENIZER).text, good) or len(names) == 1


def test_a_format_without_a_frame_is_enforced_as_a_list() -> None:
    assert enforced(FORMATS["gemma"]) is enforced(None) is PLAIN_LIST
    assert enforced(FORMATS["mistral"]) is FORMATS["mistral"]


@pytest.mark.parametrize(
    ("name", "opened", "good", "bad"),
    [
        ("mistral", False, "[THINK]a {[/THINK]\n7", "[THINK]a[/THINK]x"),
        ("mistral", False, "7", "a[/THINK]7"),
        ("mistral", True, "a [/THINK]7", "7"),
        ("qwen3", False, "<think>a</think>7", "<think>7"),
        ("granite", False, "Here is my thought process: a Here is my response:\n7", "Here is 7"),
        (
            "openai_gptoss",
            False,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>7",
            "7",
        ),
        ("openai_gptoss", False, "<|channel|>final<|message|>7", "<|channel|>analysis<|message|>7"),
    ],
)
def test_reasoning_comes_first_and_the_form_after(name: str, opened: bool, good: str, bad: str) -> None:
    form = grammar_of(StructuredOutputsParams(json={"type": "integer"}), 100)
    grammar = form.after(reasoning_rules(REASONING[name], opened, TOKENIZER)).text
    assert passes(grammar, good)
    assert not passes(grammar, bad)
    told = read_answer(good, AnswerShape(REASONING[name], opened))
    assert "".join(event.text for event in told if event.kind == "content") == "7"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "hermes",
            'So: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call> and <tool_call>\n'
            '{"name": "sub", "arguments": {"a": 2}}\n</tool_call> done',
            '<tool_call>\n{"name": "add", "arguments": {"b": 1}}\n</tool_call>',
        ),
        ("hermes", "no call, <tool_c only", "a <tool_call> that is none"),
        ("mistral", 'So: [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "[TOOL_CALLS]add[ARGS]{}"),
        ("granite", "words", '<|tool_call|>[{"name": "mul", "arguments": {"a": 1}}]'),
    ],
)
def test_strict_tools_are_called_right_when_the_model_chooses_to(name: str, good: str, bad: str) -> None:
    form = FORMATS[name]
    assert can_guard(form)
    grammar = guarded_calls(form, TOOLS, form.markers, TOKENIZER).text
    assert passes(grammar, good)
    assert not passes(grammar, bad)
    assert not can_guard(FORMATS["pythonic"])
    assert not can_guard(FORMATS["llama3_json"])


@pytest.mark.parametrize(
    ("opened", "budget", "text", "allowed"),
    [
        (True, 3, "abc[/THINK]free words", True),
        (True, 3, "a[/THINK]free", True),
        (True, 3, "abcd[/THINK]", False),
        (True, 0, "[/THINK]free", True),
        (True, 0, "a[/THINK]", False),
        (False, 3, "free words, many", True),
        (False, 3, "[THINK]abc[/THINK][TOOL_CALLS][]", True),
        (False, 3, "[THINK]abcd[/THINK]", False),
    ],
)
def test_reasoning_ends_with_its_budget(opened: bool, budget: int, text: str, allowed: bool) -> None:
    free = free_text(("[TOOL_CALLS]", "<tool_call>"), TOKENIZER)
    rules = reasoning_rules(REASONING["mistral"], opened, TOKENIZER, budget=budget)
    assert passes(free.after(rules).text, text) == allowed


def test_a_budget_needs_an_end_that_is_one_token() -> None:
    for name in ("granite", "qwen3", "openai_gptoss"):
        with pytest.raises(UnsupportedError, match="thinking_token_budget"):
            reasoning_rules(REASONING[name], True, TOKENIZER, budget=4)


def test_special_tokens_that_answers_are_read_by_are_shown_and_others_are_not() -> None:
    outputs = OutputProcessor(TOKENIZER)
    shown = frozenset({258})
    request = GenerationRequest("x", (1,), Sampling(), Stopping(9), shown_ids=shown)
    outputs.add(request)
    ids = tuple(TOKENIZER.encode("a[TOOL_CALLS]b[THINK]c"))
    (delta,) = outputs.push([SequenceOutput("x", 0, ids)])
    assert delta.text == "a[TOOL_CALLS]bc"


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ tools }} <tool_call> <think></think>", "hermes", "qwen3"),
        ("{{ tools }} <tool_call><function=", "qwen3_coder", None),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<|python_tag|>", "llama3_json", None),
        ("<|start|>assistant<|channel|>", "openai", "openai_gptoss"),
        ("plain", None, None),
    ],
)
def test_formats_are_chosen_by_the_template(template: str, tools: str | None, reasoning: str | None) -> None:
    formats = choose_formats(template)
    assert (formats.tools and formats.tools.name) == tools
    assert (formats.reasoning and formats.reasoning.name) == reasoning
    assert ("the chat template has" in formats.told()) == bool(tools or reasoning)
    assert formats.shows_tools == ("tools" in template)


def test_formats_may_be_said() -> None:
    formats = choose_formats("<tool_call>", "qwen", "none")
    assert formats.tools is FORMATS["hermes"]
    assert formats.reasoning is None
    assert choose_formats("", "none", "deepseek_r1").reasoning is REASONING["deepseek_r1"]
    with pytest.raises(ConfigError, match="hermes"):
        choose_formats("", "hermse")
    with pytest.raises(ConfigError, match="reasoning_parser"):
        choose_formats("", "auto", "hermes")
