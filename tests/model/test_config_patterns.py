"""Patterns of a checkpoint's configuration: as `re` has them, whatever they say in bounded time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CheckpointError
from octavo.model.checkpoint.quantized.patterns import Patterns

_PARTS = st.sampled_from(["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", "1", "^", "$", r"\b"])
_COUNTS = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{,2}", "{1,}"])
_PATTERNS = st.recursive(
    _PARTS,
    lambda inside: st.one_of(
        st.lists(inside, min_size=2, max_size=3).map("".join),
        st.lists(inside, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inside, _COUNTS).map(lambda both: f"(?:{both[0]}){both[1]}"),
        inside.map(lambda part: f"(?={part})"),
        inside.map(lambda part: f"(?!{part})"),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(_PATTERNS, st.text("ab.1", max_size=7))
def test_patterns_begin_what_they_begin_in_re(pattern, name):
    assert Patterns("config").begins(pattern, name) is (re.match(pattern, name) is not None)


@pytest.mark.parametrize(
    "pattern", [r"(a*)*b", r"(?:(?:a|a)+)+$b", r"(a|a)(a|a)(a|a)*b", ".*".join("a" * 12) + "b", "(?!(a+)+b).*c"]
)
def test_patterns_that_would_take_ages(pattern):
    """`re` would be busy with the first until the sun is out: what is asserted is an answer."""
    assert not Patterns("config", steps=1_000_000).begins(pattern, "a" * 200)


def test_steps_are_counted_over_all_names():
    patterns = Patterns("config: dynamic", "+:", steps=10_000)
    with pytest.raises(CheckpointError, match="config: dynamic: its patterns take too long"):  # noqa: PT012
        for number in range(1000):
            patterns.begins("+:.*x.*y", f"model.layers.{number}")
    plain = Patterns("config", steps=100)
    with pytest.raises(CheckpointError, match="take too long"):  # noqa: PT012
        for number in range(200):
            plain.begins("model", f"layer{number}")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("((", r"'\(\(' is no regular expression"),
        ("(" * 320 + "a" + ")*" * 320, "no regular expression|nested too deeply"),
        ("(" * 30 + "a" + ")*" * 30, "nested too deeply"),
        ("a" * 1001, "longer than 1000 characters"),
        (r"(a+)+\1", r"\\1 is not supported"),
        ("(?i)a+b+", r"\(\? is not supported"),
        ("(?<=a)b+c+", r"\(\? is not supported"),
    ],
)
def test_patterns_that_are_refused(pattern, words):
    with pytest.raises(CheckpointError, match=words):
        Patterns("config").begins(pattern, "a")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("+:.*\\.18\\..*gate.*", "model.layers.18.mlp.gate_proj", True),
        ("+:.*\\.18\\..*gate.*", "model.layers.17.mlp.gate_proj", False),
        ("+:model\\.layers\\.(?:[0-9]|1[0-5])\\..*(?P<which>up|down)_proj$", "model.layers.12.mlp.up_proj", True),
        ("+:(?i)MODEL", "model.layers.0", True),
        ("+:[)|(*]+x*|\\(b\\|", "(b|", True),
        ("+:[]^a]{2,}\\[?", "^]", True),
        ("+:a{}b{x|c*", "a{}b{x", True),
    ],
)
def test_patterns_of_files(pattern, name, expected):
    assert Patterns("config", "+:").begins(pattern, name) is expected
