"""Forms of answers as grammars: what passes and what does not, for every kind of form; what is wrong or too costly."""

import contextlib
import json
import time

import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.sampling_params import SamplingParams
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.inputs.keywords import misspelt
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.inputs.structured import grammar_of
from octavo.text.grammar import GrammarCompiler, GrammarLimits, _LibraryMatcher
from tests.serving.scripted_engine import VOCAB, ByteTokenizer
from tests.text.walk import first_wrong

TOKENIZER = ByteTokenizer()
COMPILER = GrammarCompiler(lambda: TOKENIZER, VOCAB)
# Properties that are called as keywords are.
NAMES = {
    "type": "object",
    "properties": {
        "x-guidance": {"type": "integer"},
        "properties": {"type": "integer"},
        "minLength": {"type": "integer"},
        "enum": {"type": "object", "properties": {"a": {}}},
    },
    "required": ["x-guidance"],
}
CLOSED = '{"x-guidance": 1, "enum": {%s: 2}}'
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v", "kids"],
            "additionalProperties": False,
        }
    },
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f="],
}
NEW_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [{"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {"const": 1}}, "end": "</f>"}],
    },
}


def wrong_at(text: str, **form: object) -> int | None:
    grammar = grammar_of(StructuredOutputsParams(**form), 4096).text  # type: ignore[arg-type]
    return first_wrong(COMPILER, TOKENIZER, grammar, text)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"json": TREE}, '{"v": 1, "kids": [{"v": 2, "kids": []}]}', '{"v": 1, "kids": [3]}'),
        ({"json": json.dumps({"enum": ['č"\\\n', 3]})}, '"č\\"\\\\\\n"', '"c"'),
        ({"json": {"const": None}}, "null", "0"),
        ({"json": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}, '"x"', "[1]"),
        ({"json": {}}, "[{}, 1.5e3, true]", "tru "),
        ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}, '{"a": 1, "b": "more"}', '{"a": "x"}'),
        (
            {"json": {"type": "object", "properties": {"a": {}}}, "disable_additional_properties": True},
            '{"a": 1}',
            '{"a": 1, "b": 2}',
        ),
        ({"json": NAMES}, '{"x-guidance": 1}', '{"x-guidance": "a"}'),
        ({"json": NAMES}, '{"x-guidance": 1, "minLength": 900000}', '{"x-guidance": 1, "minLength": "a"}'),
        ({"json": NAMES, "disable_additional_properties": True}, '{"x-guidance": 1, "properties": 3}', CLOSED % '"b"'),
        ({"json": NAMES, "disable_additional_properties": True}, CLOSED % '"a"', '{"x-guidance": 1, "q": 1}'),
        ({"json": {"type": "array"}, "disable_any_whitespace": True}, "[1,2]", "[1, 2]"),
        ({"json": {"type": "array"}, "whitespace_pattern": "_"}, "[1,_2]", "[1, 2]"),
        ({"json": {"type": "array"}}, "[1,\n  2]", "[1,\n" + " " * 100 + "2]"),
        ({"json": {"type": "string", "maxLength": 3000}}, '"' + "a" * 3000 + '"', '"' + "a" * 3001 + '"'),
        ({"json": {"type": "string", "pattern": "^[a-z]+$"}}, '"abc"', '"aBc"'),
        ({"json_object": True}, '{"a": [1]}', "[1]"),
        ({"regex": r"[a-z]+/\d{2}"}, "ab/12", "ab/1x"),
        ({"regex": r"^a\/[/]b$"}, "a//b", "^a//b"),
        ({"regex": "a+?b*[]x]"}, "aab]", "aab["),
        ({"choice": ["yes", "no", 'č"\\\n\t\x07/']}, 'č"\\\n\t\x07/', "maybe"),
        ({"choice": ["a", "ab", "a"]}, "ab", "abc"),
        ({"grammar": 'start: "x" d+\nd: /[0-3]/'}, "x31", "x34"),
        ({"grammar": 'root ::= "x" d+\nd ::= [0-3]'}, "x31", "x34"),
        ({"structural_tag": TAG}, "say <b> and <f=a>12</f>, done", "say <f=a>x</f>"),
        ({"structural_tag": json.dumps(TAG)}, "<f=a>1</f><f=a>2</f>", "<f=b>1</f>"),
        ({"structural_tag": NEW_TAG}, "so <f=a>1</f>", "so <f=a>2</f>"),
    ],
)
def test_each_form_lets_through_what_it_says(form: dict[str, object], good: str, bad: str) -> None:
    assert wrong_at(good, **form) is None
    assert wrong_at(bad, **form) is not None


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({"regex": "foo**"}, "nothing to repeat"),
        ({"regex": "(+a)"}, "nothing to repeat"),
        ({"regex": "a{2}{3}"}, "nothing to repeat"),
        ({"regex": "[a-"}, "unclosed"),
        ({"regex": "(?<=x)a"}, "look-behind"),
        ({"regex": "(" * 60_000 + "a" + ")" * 60_000}, "nested"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"json": {"$ref": "#/nope"}}, "/nope"),
        ({"json": {"pattern": "^+[a-z]$"}}, "json.pattern"),
        ({"json": {"properties": {"a": {"pattern": "\\d(["}}}}, "unclosed"),
        ({"json": {"not": {}}}, "not"),
        ({"json": "not json"}, "not JSON"),
        ({"json": "3"}, "must be an object"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"json": {"type": "array", "minItems": 10**9}}, "json.minItems"),
        ({"json": {"type": "object", "properties": {"a": {"minLength": 10**9}}}}, "json.properties.a.minLength"),
        ({"grammar": "start: foo"}, "foo"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "nested"),
        ({"structural_tag": {"structures": [], "triggers": ["<"]}}, "at least one"),
        ({"structural_tag": {"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["<"]}}, "trigger"),
    ],
)
def test_wrong_forms_are_refused_with_the_reason(form: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word):
        COMPILER.check(grammar_of(StructuredOutputsParams(**form), 4096).text)  # type: ignore[arg-type]


def test_a_schema_nested_thousands_deep_is_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(InvalidRequestError, match="deep"):
        grammar_of(StructuredOutputsParams(json=schema), 4096)


class Library:
    """A matcher of the library whose masks take so long, at work or not."""

    def __init__(self, seconds: float, works: bool) -> None:
        self._seconds, self._works = seconds, works

    def unsafe_compute_mask_ptr(self, _words: int, _size: int) -> None:
        if not self._works:
            time.sleep(self._seconds)
            return
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass

    def is_error(self) -> bool:
        return False


@pytest.mark.parametrize("works", [False, True])
def test_only_the_time_that_a_mask_is_worked_at_counts(works: bool) -> None:
    matcher = _LibraryMatcher(Library(0.06, works), 0, 0, GrammarLimits(mask_seconds=0.05))  # type: ignore[arg-type]
    matcher.fill(0)
    assert ("took too long" in matcher.error) == works


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "(a|b)*a(a|b){30}"},
        {"regex": "(((a{100}){100}){100}){100}"},
        {"json": {"type": "string", "maxLength": 100_000}},
        {"json": {"type": "string", "minLength": 4_000}},
        {"grammar": "start: start start | /a/"},
        {"json": {"enum": [f"v{i}" for i in range(40_000)]}},
        {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}},
    ],
)
def test_costly_forms_end_soon_one_way_or_the_other(form: dict[str, object]) -> None:
    compiler = GrammarCompiler(lambda: TOKENIZER, VOCAB)
    began = time.process_time()
    with contextlib.suppress(InvalidRequestError):
        compiler.check(grammar_of(StructuredOutputsParams(**form), 4096).text)  # type: ignore[arg-type]
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json": {}, "regex": "a"},
        {"regex": ""},
        {"regex": 3},
        {"choice": "ab"},
        {"choice": []},
        {"choice": [""]},
        {"choice": ["a", 1]},
        {"json": 3},
        {"json_object": False},
        {"json": {}, "disable_any_whitespace": "yes"},
    ],
)
def test_exactly_one_form_of_the_right_type(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        StructuredOutputsParams(**fields)  # type: ignore[arg-type]


def test_sampling_params_take_the_object_or_its_fields() -> None:
    form = StructuredOutputsParams(regex="a")
    assert SamplingParams(structured_outputs=form).structured_outputs is form
    given: dict[str, object] = {"structured_outputs": {"choice": ["a"]}}
    assert SamplingParams(**given).structured_outputs == StructuredOutputsParams(choice=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="'regexp'"):
        SamplingParams(structured_outputs={"regexp": "a"})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
        SamplingParams(structured_outputs=form, allowed_token_ids=[1])


def test_a_grammar_may_begin_after_something_else() -> None:
    grammar = grammar_of(StructuredOutputsParams(json={"type": "integer"}), 100)
    later = grammar.after('before: thought ws\nthought[lazy]: /(.|\\n)*/ "</think>"\nws: /\\s{0,4}/').text
    assert first_wrong(COMPILER, TOKENIZER, later, "hm {}\n</think>\n\n7") is None
    assert first_wrong(COMPILER, TOKENIZER, later, "hm</think>x") == len("hm</think>")
    assert first_wrong(COMPILER, TOKENIZER, later, "7") == 1


def test_compiled_grammars_are_kept_up_to_a_number() -> None:
    compiler = GrammarCompiler(lambda: TOKENIZER, VOCAB, GrammarLimits(kept=3))
    texts = [grammar_of(StructuredOutputsParams(choice=[f"c{i}"]), 9).text for i in range(10)]
    for text in texts:
        compiler.check(text)
    kept = vars(compiler)["_kept"]
    assert list(kept) == texts[-3:]
    before = kept[texts[-2]]
    compiler.check(texts[-2])
    assert kept[texts[-2]] is before
    assert list(kept)[-1] == texts[-2]


def test_a_request_carries_its_grammar_and_ends_with_it() -> None:
    limits = InputLimits(64, VOCAB)
    inputs = InputProcessor(TOKENIZER, None, limits, grammars=COMPILER)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a"]), ignore_eos=True)
    request = inputs.prepare("hi", params, "x")
    assert first_wrong(COMPILER, TOKENIZER, request.sampling.grammar, "a") is None
    assert not request.stopping.ignore_eos
    with pytest.raises(UnsupportedError, match="structured output"):
        InputProcessor(TOKENIZER, None, limits).prepare("hi", params, "x")


def test_preparing_in_a_thread_tells_when_it_is_done() -> None:
    compiler = GrammarCompiler(lambda: TOKENIZER, VOCAB)
    good = grammar_of(StructuredOutputsParams(choice=["a"]), 9).text
    assert compiler.prepare(good, 5.0)
    assert compiler.prepare(good)
    bad = '{"grammars": [{"lark_grammar": "start: nothing"}]}'
    assert compiler.prepare(bad, 5.0)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="nothing"):
            compiler.open(bad)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("propertys", "properties"),
        ("Required", "required"),
        ("min_items", "minItems"),
        ("anyof", "anyOf"),
        ("ref", "$ref"),
        ("defs", "$defs"),
        ("additionalProperty", "additionalProperties"),
        ("maximun", "maximum"),
    ],
)
def test_a_misspelt_keyword_is_found_wherever_a_schema_is(key: str, meant: str) -> None:
    said = "is no keyword of JSON Schema and has no effect; "
    for schema, place in (
        ({key: 1}, "s"),
        ({"properties": {"enum": {key: 1}}}, "s.properties.enum"),
        ({"items": {"anyOf": [{}, {"not": {key: 1}}]}}, "s.items.anyOf[1].not"),
        ({"$defs": {"a": {"additionalProperties": {key: 1}}}}, "s.$defs.a.additionalProperties"),
    ):
        assert misspelt(schema, "s") == [f"{place}.{key} {said}{meant!r} is one"]


def test_what_is_no_keyword_on_purpose_is_not_told() -> None:
    data = {"propertys": 1}
    for schema in (
        {"x-mine": 1, "example": 1, "nullable": True, "discriminator": {}, "author": "me"},
        {"properties": {"propertys": {}, "Type": {}}, "required": ["propertys"]},
        {"const": data, "default": data, "examples": [data], "enum": [data]},
        {"k" * 100: 1},
        True,
        [data],
    ):
        assert misspelt(schema, "s") == []
    assert len(misspelt({"$defs": {str(n): {"propertys": 1} for n in range(99)}}, "s")) == 8
