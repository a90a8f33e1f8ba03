"""Token texts for log-probabilities: joined they are the answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import gemma, smol

from octavo.outputs.logprobs import token_text, token_texts


@pytest.mark.parametrize("tokenizer", [smol, gemma])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 500) | st.integers(0, 49151), max_size=30))
def test_token_texts_join_to_the_text(tokenizer, ids):
    texts = token_texts(tokenizer(), ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer().decode(ids, skip_special_tokens=False)


def test_a_character_counts_for_the_token_that_completes_it():
    assert token_texts(smol(), [19556, 10813, 242, 218]) == ["Hello", "", "", "\U0001f600"]
    assert token_texts(smol(), [19556, 10813]) == ["Hello", "\ufffd"]
    assert token_texts(smol(), smol().encode("\n1. Ada has 20"))[:3] == ["\n", "1", "."]


def test_one_token_for_itself():
    assert token_text(smol(), 905) == " world"
    assert token_text(smol(), 242) == "\ufffd"
