"""Answers that go in circles end, at the same token however the engine cut them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.flow.request import GenerationRequest, Repetition, Sampling, Stopping
from octavo.flow.result import FinishReason, SequenceOutput
from octavo.outputs.processor import OutputProcessor
from octavo.outputs.repetition import RepetitionWatch
from tests.serving.scripted_engine import ByteTokenizer


def end_of(tokens: list[int], wish: Repetition) -> int | None:
    """Looks at every end of the text anew."""
    for end in range(1, len(tokens) + 1):
        for size in range(wish.shortest, wish.longest + 1):
            tail = tokens[max(0, end - size * wish.count) : end]
            if len(tail) == size * wish.count and tail == tail[:size] * wish.count:
                return end
    return None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=60),
    longest=st.integers(1, 5),
    shortest=st.integers(1, 5),
    count=st.integers(2, 4),
)
def test_the_first_pattern_with_enough_copies_is_found(tokens, longest, shortest, count) -> None:
    wish = Repetition(longest, min(shortest, longest), count)
    watch = RepetitionWatch(wish)
    found = next((number for number, token in enumerate(tokens, 1) if watch.push(token)), None)
    assert found == end_of(tokens, wish)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_an_answer_ends_where_it_goes_in_circles(step: int) -> None:
    outputs = OutputProcessor(ByteTokenizer())
    outputs.add(GenerationRequest("x", (1,), Sampling(), Stopping(99), repetition=Repetition(4, 2, 3)))
    tokens, deltas = tuple(b"so abcabcabcabcabc and"), []
    for at in range(0, len(tokens), step):
        deltas += outputs.push([SequenceOutput("x", 0, tokens[at : at + step])])
    assert "".join(delta.text for delta in deltas) == "so abcabcabc"
    assert deltas[-1].finish_reason is FinishReason.REPETITION
    assert sum(len(delta.token_ids) for delta in deltas) == 12
    assert outputs.take_cancels() == ["x"]
