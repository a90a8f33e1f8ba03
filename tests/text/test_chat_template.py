"""Chat templates: what they may use, which contents they get, how they are kept within bounds."""

import copy
import datetime
import time

import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.text.chat_template import ChatTemplate, TemplateLimits
from tests.text.vocabularies import smol_metadata

USER = {"role": "user", "content": "hi"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PARTS_ONLY = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
)


def text_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def render(source, *messages, **options):
    limits = TemplateLimits(seconds=0.3, probe_seconds=0.2)
    return ChatTemplate(source, {"bos_token": "<s>"}, limits).render(messages or [USER], **options)


def test_the_demo_model_s_template():
    template = ChatTemplate(smol_metadata()["tokenizer.chat_template"])
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    with_system = template.render([{"role": "system", "content": "be brief"}, USER], add_generation_prompt=False)
    assert with_system == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{% if true %}\n  x\n{% endif %}\n", "<s>  x\n"),
        ("  {% if true %}y{% endif %}", "y"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{{ {'b': '<\u010d>', 'a': [1]} | tojson }}", '{"b": "<\u010d>", "a": [1]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ messages[0].content.upper() }}{{ '%s-%d' % ('x', 3) }}{{ '{:>4}'.format(7) }}", "HIx-3   7"),
        ("{{ undefined_thing is defined }}{{ tools is none }}", "FalseTrue"),
    ],
)
def test_what_templates_may_use(source, expected):
    assert render(source) == expected


def test_strftime_now_is_today():
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.datetime.now().year + offset) for offset in (-1, 0)}


def test_variables_and_tools_reach_the_template():
    tools = [{"type": "function", "function": {"name": "get_time"}}]
    source = "{% if tools %}{{ tools[0].function.name }}{% endif %}/{{ enable_thinking }}"
    assert render(source, tools=tools, enable_thinking=False) == "get_time/False"


def test_of_several_templates_tools_choose():
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    assert render(named) == "plain"
    assert render(named, tools=[{"name": "f"}]) == "tools"
    assert render({"default": "plain"}, tools=[{"name": "f"}]) == "plain"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (PLAIN, text_parts("a", "b"), "[user]a\nb\n"),
        (PLAIN, "a", "[user]a\n"),
        (PARTS_ONLY, "a", "<a>"),
        (PARTS_ONLY, text_parts("a", "b"), "<a><b>"),
        (EITHER, "a", "a"),
        (EITHER, text_parts("a", "b"), "<a><b>"),
        (PLAIN, None, "[user]\n"),
        (PLAIN, [], "[user]\n"),
        (PLAIN, [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}, "c"], "[user]a\nno\nc\n"),
    ],
)
def test_contents_take_the_form_that_the_template_reads(source, content, expected):
    assert render(source, {"role": "user", "content": content}, add_generation_prompt=False) == expected


def test_agent_history_with_null_content_and_tool_arguments():
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        {"role": "tool", "content": "12:00", "tool_call_id": "call_1"},
    ]
    before = copy.deepcopy(history)
    source = PLAIN + "{{ messages[1].tool_calls[0].function.arguments.city }}{{ messages[1].name is defined }}"
    rendered = render(source, *history)
    assert rendered == "[user]hi\n[assistant]\n[tool]12:00\n[assistant]OsloFalse"
    assert history == before


@pytest.mark.parametrize("arguments", ["", "null", None, "{}", "  "])
def test_empty_tool_arguments_are_an_empty_object(arguments):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert render("{{ messages[0].tool_calls[0].function.arguments | length }}", message) == "0"


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", "3", '"x"', "[" * 100_000, '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "{'a': 1}"]
)
def test_wrong_tool_arguments_are_refused(arguments):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.tool_calls\[0\]\.function\.arguments"):
        render(PLAIN, message)


def test_a_call_that_was_cut_off_is_refused_with_a_way_out():
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"city": "Oslo"}', '{"city": "Os')]
    message = {"role": "assistant", "tool_calls": calls}
    with pytest.raises(InvalidRequestError, match=r"tool_calls\[1\].*leave this call out, or send '\{\}'"):
        render(PLAIN, message)
    message["tool_calls"] = [calls[0], {"function": {"name": "f", "arguments": "{}"}}]
    assert render(PLAIN, message)


@pytest.mark.parametrize("text", ["The capital of France is ", "Yes.", "", "  two\n"])
def test_continuing_the_final_message_keeps_it_whole(text):
    messages = [USER, {"role": "assistant", "content": "Yes."}, USER, {"role": "assistant", "content": text}]
    rendered = render(PLAIN, *messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "[user]hi\n[assistant]Yes.\n[user]hi\n[assistant]" + text


def test_continuing_through_a_template_that_trims():
    source = "{% for m in messages %}{{ m.content | trim }}<end>{% endfor %}"
    message = {"role": "assistant", "content": "half an answer "}
    assert render(source, message, add_generation_prompt=False, continue_final_message=True) == "half an answer"


def test_continuing_the_last_part_of_a_content_list():
    message = {"role": "assistant", "content": text_parts("a", "b ")}
    assert render(PARTS_ONLY, message, add_generation_prompt=False, continue_final_message=True) == "<a><b "


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ([USER], {"continue_final_message": True}, "exclude each other"),
        ([USER], {"continue_final_message": True, "add_generation_prompt": False}, "assistant"),
        ([], {}, "empty"),
        ("hi", {}, "list"),
        ([{"content": "x"}], {}, "role"),
        ([{"role": "user", "content": 3}], {}, "content"),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, "text"),
        (["hi"], {}, "object"),
        ([USER] * 100_000, {}, "too many"),
    ],
)
def test_wrong_conversations_are_refused(messages, options, words):
    with pytest.raises(InvalidRequestError, match=words):
        ChatTemplate(PLAIN).render(messages, **options)


def test_images_are_refused_by_name():
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
    with pytest.raises(UnsupportedError, match="image_url"):
        render(PLAIN, message)


def test_a_refusing_template_says_why():
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].clear() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.encode('nonsense') }}",
    ],
)
def test_hostile_and_faulty_templates_end_in_a_clear_error(source):
    with pytest.raises(InvalidRequestError, match="chat template"):
        render(source)


class Halting:
    """While it is written, the machine does something else."""

    def __str__(self):
        time.sleep(0.05)
        return "x"


def test_only_the_time_that_a_template_works_counts():
    template = ChatTemplate("{% for i in range(3) %}{{ halting }}{% endfor %}", limits=TemplateLimits(seconds=0.04))
    assert template.render([USER], halting=Halting()) == "xxx"


def test_long_output_is_cut_off():
    template = ChatTemplate("{% for i in range(9999) %}0123456789{% endfor %}", limits=TemplateLimits(output=5000))
    with pytest.raises(InvalidRequestError, match="longer than 5000"):
        template.render([USER])


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% unknown_tag %}", "x" * ((1 << 20) + 1), "{{" + "(" * 5000])
def test_sources_that_are_no_template(source):
    with pytest.raises(InvalidRequestError, match="chat template"):
        ChatTemplate(source)


def test_no_template_names_the_option():
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        ChatTemplate("")
