"""Incremental detokenizing: the same text for every way to cut the ids, and never half a character."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from tests.text.vocabularies import gemma, small_llama_metadata, smol

TOKENIZERS = {"smol": smol, "gemma": gemma}


def streamed(tokenizer, ids, sizes, **options):
    """The texts of each push, then the last one's of finish()."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    texts, at = [], 0
    for size in sizes:
        texts.append(detokenizer.push(ids[at : at + size]))
        at += size
    texts.append(detokenizer.push(ids[at:]))
    return [*texts, detokenizer.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_cut_gives_the_text_of_the_whole(name, data):
    tokenizer = TOKENIZERS[name]()
    # Half of the ids from the range of single bytes and rare pieces, where characters are split.
    low = st.integers(0, 500)
    ids = data.draw(st.lists(low | st.integers(0, tokenizer.vocab_size + 10), max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=20))
    skip = data.draw(st.booleans())
    text = "".join(streamed(tokenizer, ids, sizes, skip_special_tokens=skip))
    whole = text.removeprefix(" ") if tokenizer.strips_first_space else text
    assert whole == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_valid_text_never_shows_a_replacement_character(name):
    tokenizer = TOKENIZERS[name]()
    text = "\u010fa\U0001f600 \U0001f600\u4e16 \U0001f336\ufe0f e\u0301\U0001f468\u200d\U0001f469\u200d\U0001f467"
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = streamed(tokenizer, ids, [1] * len(ids))
    assert "".join(texts) == text
    assert not any("\ufffd" in piece for piece in texts)


@pytest.mark.parametrize("size", [1, 3])
def test_characters_over_several_tokens(size):
    ids = [143, 233, 81, 10813, 242, 218, 40303, 218, 7906, 240, 2]
    texts = streamed(smol(), ids, [size] * len(ids))
    assert "".join(texts) == "\u010fa\U0001f600 \U0001f600\u4e16"
    assert "\ufffd" not in "".join(texts)


def test_unfinished_character_is_one_replacement_at_the_end():
    assert streamed(smol(), [19556, 10813, 242], [1, 1, 1]) == ["Hello", "", "", "", "\ufffd"]


def test_lone_lead_byte_is_replaced_once_it_cannot_be_completed():
    assert streamed(smol(), [187, 19556, 2], [1, 1]) == ["", "\ufffdHello", "", ""]


def test_skipped_special_token_does_not_break_a_character():
    assert "".join(streamed(smol(), [10813, 1, 242, 2, 218], [1] * 5)) == "\U0001f600"


def test_continuation_keeps_the_first_space_and_a_whole_text_drops_it():
    tokenizer = tokenizer_from_metadata(small_llama_metadata())
    ids = tokenizer.encode("abc ab", add_special_tokens=False)
    assert "".join(streamed(tokenizer, ids, [1, 1])) == " abc ab"
    assert tokenizer.decode(ids) == "abc ab"


def test_special_tokens_are_shown_when_not_skipped():
    assert "".join(streamed(smol(), [1, 9690, 198, 2], [], skip_special_tokens=False)).startswith("<|im_start|>")
    assert "".join(streamed(smol(), [1, 2], [], skip_special_tokens=False, spaces_between_special_tokens=False)) == (
        "<|im_start|><|im_end|>"
    )


def test_ids_without_a_token_are_passed_over():
    assert "".join(streamed(smol(), [19556, 60_000, -5, 905], [1, 1, 1])) == "Hello world"


def test_long_random_stream_equals_the_whole():
    rng = random.Random(5)
    ids = [rng.randrange(49152) for _ in range(5000)]
    texts = streamed(smol(), ids, [rng.randint(1, 5) for _ in range(1000)])
    assert "".join(texts) == smol().decode(ids)
