"""Stop texts: found however the text is cut, and nothing is held back without need."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.stop import StopMatcher


def run(stops, pieces, include=False):
    """Text shown after each piece, what finish() gave, and the stop text found."""
    matcher = StopMatcher(stops, include)
    shown = []
    for piece in pieces:
        text, found = matcher.push(piece)
        shown.append(text)
        if found is not None:
            return shown, "", found
    return shown, matcher.finish(), None


def expected(stops, text, include):
    """By trying every end: the first end of any stop text, the longest of those there."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            stop = max(matches, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=500, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_result_does_not_depend_on_the_cuts(data):
    letters = st.sampled_from("ab,")
    stops = data.draw(st.lists(st.text(letters, min_size=1, max_size=5), min_size=1, max_size=4))
    pieces = data.draw(st.lists(st.text(letters, max_size=6), max_size=12))
    include = data.draw(st.booleans())
    shown, rest, found = run(stops, pieces, include)
    assert ("".join(shown) + rest, found) == expected(stops, "".join(pieces), include)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_only_the_beginning_of_a_stop_text_is_held_back(data):
    letters = st.sampled_from("ab,")
    stops = data.draw(st.lists(st.text(letters, min_size=1, max_size=5), min_size=1, max_size=3))
    matcher, whole, shown = StopMatcher(stops), "", ""
    for piece in data.draw(st.lists(st.text(letters, max_size=4), max_size=10)):
        text, found = matcher.push(piece)
        if found is not None:
            return
        whole, shown = whole + piece, shown + text
        held = whole[len(shown) :]
        longest = max(n for stop in stops for n in range(len(stop)) if whole.endswith(stop[:n]))
        assert len(held) == longest


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stops", "include", "result"),
    [
        (["b,c"], False, ("ab,", "b,c")),
        (["b,c"], True, ("ab,b,c", "b,c")),
        (["b,cd", "b,b"], False, ("a", "b,b")),
        (["zzz"], False, ("ab,b,cdef", None)),
        (["f"], False, ("ab,b,cde", "f")),
        (["a"], False, ("", "a")),
        (["efg"], False, ("ab,b,cdef", None)),
    ],
)
def test_examples(size, stops, include, result):
    text = "ab,b,cdef"
    shown, rest, found = run(stops, [text[i : i + size] for i in range(0, len(text), size)], include)
    assert ("".join(shown) + rest, found) == result


def test_nothing_is_held_back_when_the_stop_text_is_shown_anyway():
    assert StopMatcher(["abc"], include=True).push("xab") == ("xab", None)


def test_text_that_cannot_begin_a_stop_text_passes_at_once():
    matcher = StopMatcher(["\nObservation:"])
    assert matcher.push("Thought: go") == ("Thought: go", None)
    assert matcher.push("\nObs") == ("", None)
    assert matcher.push("olete") == ("\nObsolete", None)
    assert matcher.finish() == ""


def test_unarmed_matches_do_not_count_but_their_beginnings_do():
    matcher = StopMatcher(["ab"])
    assert matcher.push("xab", armed=False) == ("xab", None)
    assert matcher.push("ya", armed=False) == ("y", None)
    assert matcher.push("b!") == ("", "ab")


def test_work_grows_with_the_text_and_not_with_its_square():
    matcher = StopMatcher(["a" * 2000 + "b"])
    shown = [matcher.push("a")[0] for _ in range(6000)]
    assert sum(map(len, shown)) == 4000
    assert matcher.finish() == "a" * 2000
