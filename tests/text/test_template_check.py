"""What is told of chat templates: nothing of good ones, and the one fault of each bad one."""

import pytest

from octavo.text.chat_template import ChatTemplate
from octavo.text.template_check import check_template, thinking_switch

GOOD = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def changed(old: str, new: str) -> ChatTemplate:
    assert old in GOOD
    return ChatTemplate(GOOD.replace(old, new))


def refusing(condition: str, message: str = "no!") -> ChatTemplate:
    return changed("<{{ m.role }}>", "{% if " + condition + " %}{{ raise_exception('" + message + "') }}{% endif %}")


def test_a_good_template_has_no_faults() -> None:
    assert check_template(ChatTemplate(GOOD)) == []
    assert thinking_switch(ChatTemplate(GOOD)) is None


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (refusing("m.role == 'system'", "system role is not supported"), "system messages are refused (system role"),
        (changed("{{ m.content }}", "{{ '' if m.role == 'system' else m.content }}"), "system messages are not shown"),
        (
            refusing("not loop.first and m.role == 'user' and loop.previtem.role == 'user'"),
            "two user messages in a row are refused (no!)",
        ),
        (changed("{{ m.content }}", "{{ m.content or None }}"), "null"),
        (
            refusing("m.tool_calls and not m.content"),
            "an earlier turn that only called a tool (content null) is refused",
        ),
        (changed("{{ tools | tojson }}", ""), "tools are not shown"),
        (refusing("tools"), "chats with tools are refused"),
        (changed("{{ m.content }}", "{{ m.content[:20] }}"), "lists of parts"),
        (changed("{{ m.content }}", "{{ m.content | upper }}"), "user messages are not shown"),
        (changed("{% if add_generation_prompt %}<assistant>{% endif %}", ""), "add_generation_prompt changes nothing"),
        (refusing("m.role == 'assistant'"), "an answer cannot be continued"),
        (
            changed("{{ m.content }}", "{{ m.content.replace('paper', 'x') }}"),
            "an answer that is to be continued is changed",
        ),
        (changed("<assistant>", "{{ raise_exception('never') }}"), "no chat can be rendered (never)"),
    ],
)
def test_a_fault_is_told(template: ChatTemplate, told: str) -> None:
    findings = check_template(template)
    if told == "null":
        assert any("shown as 'None'" in line for line in findings)
    else:
        assert any(told in line for line in findings), findings
    assert all("\n" not in line and len(line) < 300 for line in findings)


def test_tools_can_be_left_out() -> None:
    assert check_template(refusing("tools"), tools=False) == []


def test_the_switch_of_reasoning_is_found() -> None:
    switched = changed(
        "<assistant>", "<assistant>{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    )
    assert thinking_switch(switched) == "enable_thinking"
    assert check_template(switched) == []
    assert thinking_switch(changed("<assistant>", "{# enable_thinking #}<assistant>")) is None
