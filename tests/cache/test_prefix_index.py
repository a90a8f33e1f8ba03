"""The longest prefix is the one a brute-force search finds, whichever blocks are missing in whichever group."""

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.prefix import tails_of
from octavo.cache.prefix_index import PrefixIndex
from tests.fakes import FULL, window

KEYS = [bytes([index]) for index in range(10)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2, 3, 20]), st.sets(st.integers(0, 9))), min_size=1, max_size=3),
    st.integers(0, 10),
)
def test_longest_equals_brute_force(groups, limit):
    index = PrefixIndex(tails_of([FULL if tail is None else window(tail + 1) for tail, _ in groups], 1))
    for group, (_, present) in enumerate(groups):
        for position in present:
            assert index.insert(group, KEYS[position], 100 * group + position)

    def usable(length):
        return all(
            set(range(0 if tail is None else max(0, length - tail), length)) <= present for tail, present in groups
        )

    expected = max(length for length in range(limit + 1) if usable(length))
    assert index.longest(KEYS.__getitem__, limit) == expected


def test_a_second_block_of_equal_contents_is_not_findable():
    index = PrefixIndex(tails_of([FULL], 1))
    assert index.insert(0, b"k", 1)
    assert not index.insert(0, b"k", 2)
    assert 2 not in index
    index.remove(1)
    assert index.longest(lambda _: b"k", 1) == 0
    assert index.insert(0, b"k", 2)
    assert index.block(0, b"k") == 2
