"""Reasoning and tool calls told apart from content: every format, and every way to cut its text."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.answer.feed import AnswerEvent
from octavo.outputs.answer.formats import ALIASES, FORMATS
from octavo.outputs.answer.parser import AnswerParser, AnswerShape, joined, read_answer
from octavo.outputs.answer.reasoning import REASONING
from tests.calls import count_calls

ADD = ("add", {"a": 2, "b": [2, {"c": "}]"}]})
TIME = ("get_time", {"city": 'Šibenik "x" \\ \n'})
DS = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001


def as_json(call: tuple[str, object], key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False)


# Texts that hold both calls, by format.
TEXTS = {
    "hermes": [
        f"<tool_call>{as_json(ADD)}</tool_call><tool_call>{as_json(TIME)}</tool_call>",
        f"<tool_call>\n{as_json(ADD)}\n</tool_call>\n<tool_call>\n{as_json(TIME)}\n",
        f'<tool_call>{{"arguments": {json.dumps(ADD[1])}, "name": "add"}}</tool_call>'
        f"<tool_call>[{as_json(TIME)}]</tool_call>",
        f'<tool_call>{{"type": "function", "function": {as_json(ADD)}}}</tool_call>'
        f"<tool_call>{as_json(TIME)}</tool_call>",
    ],
    "llama3_json": [
        f"{as_json(ADD, 'parameters')}; {as_json(TIME, 'parameters')}",
        f"<|python_tag|>{as_json(ADD, 'parameters')};{as_json(TIME)}",
    ],
    "mistral": [
        f"[TOOL_CALLS] [{as_json(ADD)}, {as_json(TIME)}]",
        f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD[1])}[TOOL_CALLS]get_time[CALL_ID]abc123456[ARGS]{json.dumps(TIME[1])}",
        f"[TOOL_CALLS]add{json.dumps(ADD[1])}[TOOL_CALLS]get_time{json.dumps(TIME[1])}",
    ],
    "pythonic": [
        """[add(a=2, b=[2, {"c": '}]'}]), get_time(city='Šibenik "x" \\\\ \\n')]""",
        """<|python_start|>[add(a=2,b=[2,{"c":"}]"}]),get_time(city='Šibenik "x" \\\\ \\n')]<|python_end|>""",
    ],
    "deepseek_v3": [
        f"<｜tool▁calls▁begin｜>{DS[0]}function{DS[1]}add\n```json\n{json.dumps(ADD[1])}\n```{DS[2]}\n"  # noqa: RUF001
        f"{DS[0]}function{DS[1]}get_time\n```json\n{json.dumps(TIME[1])}\n```{DS[2]}<｜tool▁calls▁end｜>",  # noqa: RUF001
        f"{DS[0]}add{DS[1]}{json.dumps(ADD[1])}{DS[2]}{DS[0]}get_time{DS[1]}{json.dumps(TIME[1])}{DS[2]}",
    ],
    "granite": [f"<|tool_call|>[{as_json(ADD)}, {as_json(TIME)}]", f"<tool_call>[{as_json(ADD)},{as_json(TIME)}]"],
    "gemma": [
        "<start_function_call>call:add{a:2,b:[2,{c:<escape>}]<escape>}]}<end_function_call>"
        '<start_function_call>call:get_time{city:<escape>Šibenik "x" \\ \n<escape>}<end_function_call>',
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n"
        + json.dumps(ADD[1]["b"])
        + "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n<parameter=city>\n"
        + TIME[1]["city"]
        + "\n</parameter>\n</function>\n</tool_call>",
    ],
    "openai": [
        f"<|channel|>commentary to=functions.add <|constrain|>json<|message|>{json.dumps(ADD[1])}<|call|>"
        f"<|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{json.dumps(TIME[1])}",
        f"to=functions.add<|channel|>commentary json<|message|>{json.dumps(ADD[1])}<|call|>"
        f"<|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{json.dumps(TIME[1])}",
    ],
    "json": [f"[{as_json(ADD, 'parameters')}, {as_json(TIME, 'parameters')}]"],
}
CASES = [(name, text) for name, texts in TEXTS.items() for text in texts]


def shape(name: str, **options: object) -> AnswerShape:
    return AnswerShape(tools=FORMATS[name], **options)  # type: ignore[arg-type]


def cut(text: str, wanted: AnswerShape, lengths: Sequence[int]) -> list[AnswerEvent]:
    parser, at, events = AnswerParser(wanted), 0, list[AnswerEvent]()
    for length in [*lengths, len(text)]:
        events += parser.push(text[at : at + length])
        at += length
    return joined([*events, *parser.finish()])


def calls_of(events: Sequence[AnswerEvent]) -> list[tuple[str, object]]:
    found = [(event.number, event.text) for event in events if event.kind == "call"]
    assert [index for index, _ in found] == list(range(len(found)))
    arguments = {event.number: event.text for event in events if event.kind == "arguments"}
    return [(name, json.loads(arguments[index])) for index, name in found]


def content_of(events: Sequence[AnswerEvent], kind: str = "content") -> str:
    return "".join(event.text for event in events if event.kind == kind)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_calls_are_read_whatever_the_cut(name: str, text: str) -> None:
    whole = read_answer(text, shape(name))
    assert calls_of(whole) == [ADD, TIME]
    assert content_of(whole) == ""
    for step in (1, 2, 3, 7, 20):
        assert cut(text, shape(name), [step] * (len(text) // step)) == whole
    (only,) = calls_of(read_answer(text, shape(name, most_calls=1)))
    assert only == ADD


@pytest.mark.parametrize(("name", "text"), CASES)
@pytest.mark.parametrize("before", ["Sure.\n", "<b> [1] {x} ", ""])
def test_cut_off_anywhere_the_stream_is_still_the_whole(name: str, text: str, before: str) -> None:
    text = before + text
    for end in range(0, len(text), 3):
        part = text[:end]
        assert cut(part, shape(name), [1] * end) == read_answer(part, shape(name)), part


ALPHABET = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>", "<|python_tag|>", "<|tool_call|>", *DS),
    *('{"name": "f", "arguments": ', "{}", '{"a": 1}', '"', "{", "}", "[", "]", "(", ")", ",", ";", ":", "=", "\\"),
    *("f(", "a=1", "'", "<", "<tool", " ", "\n", "text", "Š", "[ARGS]", "call:f", "<start_function_call>", "<escape>"),
    *("<|channel|>", "<|message|>", "analysis", "to=functions.f", "<|end|>", "<function=f>", "<parameter=a>", "```"),
    *("</parameter>", "</function>", "Here is my thought process:", "Here is my response:", "[THINK]", "null"),
]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.sampled_from(ALPHABET), max_size=14),
    tools=st.sampled_from([None, *FORMATS]),
    reasoning=st.sampled_from([None, *REASONING]),
    opened=st.booleans(),
    lengths=st.lists(st.integers(1, 9), max_size=60),
)
def test_streamed_is_unstreamed_for_any_text_and_cut(pieces, tools, reasoning, opened, lengths) -> None:
    form = AnswerShape(
        REASONING[reasoning] if reasoning else None, opened, FORMATS[tools] if tools else None, most_calls=2
    )
    text = "".join(pieces)
    whole = read_answer(text, form)
    assert cut(text, form, lengths) == whole
    assert cut(text, form, [1] * len(text)) == whole
    if form.plain:
        assert content_of(whole) == text


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"openai"}))
@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "  a <tool_call> that is none, [TOOL_CALLS] neither\n",
        "[1, 2] and {x}",
        '{"answer": 42}',
        "<tool_call>nothing</tool_call> more <|tool_call|>",
        "<start_function_call>call:f(",
        "[f(a=1",
        "\n\n",
        '<tool_call>{"name": 3}',
    ],
)
def test_what_is_no_call_is_content_and_nothing_is_lost(name: str, text: str) -> None:
    events = read_answer(text, shape(name))
    assert not [event for event in events if event.kind == "call"]
    assert content_of(events) == text


def test_a_call_cut_off_is_the_same_call_in_both_and_its_markup_is_never_content() -> None:
    text = 'Sure.<tool_call>{"name":"get_time","arguments":{"city":"Os'
    assert read_answer(text, shape("hermes")) == [
        ("content", "Sure.", 0),
        ("call", "get_time", 0),
        ("arguments", '{"city":"Os', 0),
    ]
    assert content_of(read_answer("Sure.<tool_c", shape("hermes"))) == "Sure.<tool_c"
    for end in range(len(as_json(ADD)) + 11, 200):
        assert content_of(read_answer(f"<tool_call>{as_json(ADD)}</tool_call>"[:end], shape("hermes"))) == ""
    after = f"<tool_call>{as_json(ADD)}</tool_call>\n<tool_call>" + '{"name'
    assert content_of(read_answer(after, shape("hermes"))) == ""
    assert content_of(read_answer(after[:-15], shape("hermes"))) == ""


def test_words_around_calls_are_kept_without_their_white_space() -> None:
    text = f"First.\n\n<tool_call>{as_json(ADD)}</tool_call>\n\nThen.\n"
    assert content_of(read_answer(text, shape("hermes"))) == "First.Then."
    assert content_of(read_answer("  a\n", shape("hermes"))) == "  a\n"


@pytest.mark.parametrize(
    ("name", "opened", "text", "reasoning", "content"),
    [
        ("qwen3", False, "<think>abc</think>final", "abc", "final"),
        ("qwen3", False, "\n<think>\nabc\n</think>\n\nfinal\n", "abc", "final\n"),
        ("qwen3", True, "abc</think>\nfinal", "abc", "final"),
        ("qwen3", True, "<think>abc</think>final", "abc", "final"),
        ("qwen3", False, "no thought </think> here", "", "no thought </think> here"),
        ("qwen3", True, "cut off in thou", "cut off in thou", ""),
        ("qwen3", True, "cut off in </thi", "cut off in </thi", ""),
        ("qwen3", False, "  <thi", "", "  <thi"),
        ("mistral", False, "[THINK]abc[/THINK]final", "abc", "final"),
        ("granite", False, "Here's my thought process: abc\n\nHere is my response: final", "abc", "final"),
        (
            "openai_gptoss",
            False,
            "<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>final<|message|>final",
            "abc",
            "final",
        ),
        ("openai_gptoss", False, "just words", "", "just words"),
    ],
)
def test_reasoning_is_told_apart(name: str, opened: bool, text: str, reasoning: str, content: str) -> None:
    form = AnswerShape(REASONING[name], opened)
    whole = read_answer(text, form)
    assert (content_of(whole, "reasoning"), content_of(whole)) == (reasoning, content)
    assert cut(text, form, [1] * len(text)) == whole


def test_reasoning_comes_before_calls() -> None:
    form = AnswerShape(REASONING["qwen3"], True, FORMATS["hermes"])
    text = f"I add.\n</think>\n\nSo:\n<tool_call>{as_json(ADD)}</tool_call>"
    whole = read_answer(text, form)
    assert content_of(whole, "reasoning") == "I add."
    assert content_of(whole) == "So:"
    assert calls_of(whole) == [ADD]
    harmony = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + TEXTS["openai"][0]
    assert content_of(read_answer(harmony, shape("openai")), "reasoning") == "hm"
    assert calls_of(read_answer(harmony, shape("openai"))) == [ADD, TIME]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("<assistant>", [False, True]), ("<think>\n", [True, True]), ("<think>\n\n</think>\n\n", [False, False])],
)
def test_the_prompt_tells_whether_an_answer_begins_in_reasoning(prompt: str, opened: list[bool]) -> None:
    assert [REASONING[name].opened_by(prompt) for name in ("qwen3", "deepseek_r1")] == opened


HOSTILE = [
    "[search(" + ", ".join(f"a{i}=1" for i in range(60)),
    "<tool_call>" * 9_000,
    '<tool_call>{"name": "' * 5_000,
    '<tool_call>{"x":"<tool_call>' * 4_000,
    "[TOOL_CALLS]" * 9_000,
    "[" * 100_000,
    "[f(a=" + "(" * 90_000,
    "{" * 100_000,
    '{"name": ' * 12_000,
    "<start_function_call>call:f{a:" * 4_000,
    "<start_function_call>call:f" + "{a:" * 30_000,
    "<function=" * 10_000,
    "<tool_call><function=f>" + "<parameter=a>" * 8_000,
    "\\" * 100_000,
    "<" * 100_000,
    " " * 100_000,
]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_hostile_texts_take_linear_time(name: str) -> None:
    def calls(text: str) -> int:
        """That reading it takes."""
        return count_calls(lambda: read_answer(text, AnswerShape(REASONING["qwen3"], False, FORMATS[name])))

    for text in HOSTILE:
        assert calls(text[:20_000]) < 2.2 * calls(text[:10_000]) + 1000, text[:40]
        read_answer(text, AnswerShape(REASONING["qwen3"], False, FORMATS[name]))


def test_other_servers_names_are_known() -> None:
    assert set(ALIASES.values()) <= set(FORMATS)
    assert not set(ALIASES) & set(FORMATS)
