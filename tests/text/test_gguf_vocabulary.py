"""Tokenizers from GGUF metadata give the ids of the originals: checked against SentencePiece and a plain BPE."""

from functools import cache
from itertools import pairwise

import pytest
import regex
import sentencepiece

from octavo.errors import CheckpointError, UnsupportedError
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.pieces import byte_alphabet
from octavo.text.tokenizer import known_tokens
from tests.text.vocabularies import (
    gemma,
    gemma_metadata,
    random_texts,
    sentencepiece_bytes,
    small_llama_metadata,
    smol,
    smol_metadata,
)


@cache
def smol_tables() -> tuple[dict, dict]:
    """Ids of tokens and ranks of merges."""
    metadata = smol_metadata()
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    return ids, {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}


def plain_bpe(text: str) -> list[int]:
    """SmolLM2's tokenization in the plainest form: digits alone, GPT-2's words, best merge first."""
    ids, ranks = smol_tables()
    letters = {byte: character for character, byte in byte_alphabet().items()}
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    result = []
    for part in regex.findall(r"\p{N}|\P{N}+", text):
        for word in regex.findall(words, part):
            symbols = [letters[byte] for byte in word.encode()]
            while len(symbols) > 1:
                rank, at = min((ranks.get(pair, 1 << 60), i) for i, pair in enumerate(pairwise(symbols)))
                if rank == 1 << 60:
                    break
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            result += [ids[symbol] for symbol in symbols]
    return result


def sentencepiece_model(metadata: dict, add_space_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """The original library on the same pieces."""
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(metadata, add_space_prefix))


@cache
def original_gemma() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece_model(gemma_metadata(), add_space_prefix=False)


def test_byte_level_ids_are_those_of_a_plain_bpe():
    for text in random_texts(1, 300):
        assert smol().encode(text) == plain_bpe(text), repr(text)


def test_known_ids_of_the_demo_model():
    assert smol().encode("Hello world") == [19556, 905]
    assert smol().encode("The capital of France is Paris") == [504, 3575, 282, 4649, 314, 7042]
    assert smol().encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert smol().eos_token_ids == (2,)
    assert smol().special_ids == frozenset(range(17))
    assert smol().special_tokens["bos_token"] == "<|im_start|>"


def test_sentencepiece_ids_are_those_of_the_original_library():
    original = original_gemma()
    # Literal U+2581 is told apart from a space by tokenizer.json, but not by the original library.
    for text in [text for text in random_texts(2, 400) if "\u2581" not in text]:
        assert gemma().encode(text, add_special_tokens=False) == original.encode(text), repr(text)


@pytest.mark.parametrize("character", [" ", "\n", "\t", "-"])
def test_runs_of_one_character_are_cut_as_in_the_original(character):
    original = original_gemma()
    for length in range(1, 70):
        text = "a" + character * length + "b"
        assert gemma().encode(text, add_special_tokens=False) == original.encode(text)


def test_gemma_starts_with_bos_and_ends_turns():
    assert gemma().encode("Hello world") == [2, 9259, 1902]
    assert gemma().encode("Hello", add_special_tokens=False) == [9259]
    assert gemma().eos_token_ids == (1, 106)
    assert gemma().bos_token_id == 2


@pytest.mark.parametrize("tokenizer", [smol, gemma])
def test_decoding_gives_the_text_back(tokenizer):
    for text in random_texts(3, 200):
        shown = text.replace("\u2581", " ") if tokenizer is gemma else text
        assert tokenizer().decode(tokenizer().encode(text)) == shown


def test_small_llama_vocabulary_against_the_original():
    metadata = small_llama_metadata()
    original = sentencepiece_model(metadata, add_space_prefix=True)
    tokenizer = tokenizer_from_metadata(metadata)
    for text in ["abc", "ab c", " abc", "a  b", "ca\u00e9b", "aabcabc", "\u4e16", ""]:
        assert tokenizer.encode(text) == [1, *original.encode(text)], repr(text)


def test_space_prefix_is_taken_back_when_a_whole_text_is_decoded():
    tokenizer = tokenizer_from_metadata(small_llama_metadata())
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
    plain = tokenizer_from_metadata(small_llama_metadata(add_space_prefix=False))
    assert plain.decode(plain.encode(" ab")) == " ab"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add_bos_token": False}, ["ab"]),
        ({"add_bos_token": True}, ["<s>", "ab"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "ab", "</s>"]),
        ({"add_eos_token": True, "add_bos_token": False}, ["ab", "</s>"]),
        ({}, ["<s>", "ab"]),
    ],
)
def test_bos_and_eos_follow_the_metadata(changes, expected):
    tokenizer = tokenizer_from_metadata(small_llama_metadata(add_space_prefix=False, **changes))
    assert [tokenizer.token(token_id) for token_id in tokenizer.encode("ab")] == expected


def test_bytes_of_tokens():
    tokenizer = tokenizer_from_metadata(small_llama_metadata())
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4"
    assert tokenizer.token_bytes(tokenizer.id_of("\u2581ab")) == b" ab"
    assert tokenizer.token_bytes(1 << 20) == tokenizer.token_bytes(-1) == b""
    assert smol().token_bytes(905) == b" world"
    assert b"".join(map(smol().token_bytes, [10813, 242, 218])) == "\U0001f600".encode()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": None}, CheckpointError, "no tokenizer"),
        ({"model": "rwkv"}, UnsupportedError, "rwkv"),
        ({"tokens": 3}, CheckpointError, "tokens"),
        ({"tokens": ["a", 1]}, CheckpointError, "tokens"),
        ({"scores": [1.0]}, CheckpointError, "scores"),
        ({"token_type": [1]}, CheckpointError, "token_type"),
        ({"scores": 1000}, CheckpointError, "scores"),
        ({"scores": "abc"}, CheckpointError, "scores"),
        ({"scores": ["x"] * len(small_llama_metadata()["tokenizer.ggml.tokens"])}, CheckpointError, "scores"),
        ({"token_type": 7}, CheckpointError, "token_type"),
        ({"token_type": ["x"] * len(small_llama_metadata()["tokenizer.ggml.tokens"])}, CheckpointError, "token_type"),
        ({"token_type": [1e400] * len(small_llama_metadata()["tokenizer.ggml.tokens"])}, CheckpointError, "token_type"),
        ({"tokens": ["x" * 2_000_000], "scores": [0.0], "token_type": [1]}, CheckpointError, "2000000 characters"),
        ({"eos_token_id": 10**6}, CheckpointError, "eos_token_id"),
        ({"bos_token_id": -1}, CheckpointError, "bos_token_id"),
        ({"model": "gpt2", "merges": ["a b c"]}, CheckpointError, "a b c"),
        ({"model": "gpt2", "merges": ["a zz"]}, CheckpointError, "merges"),
        ({"model": "gpt2", "merges": [], "pre": "never-heard-of"}, UnsupportedError, "never-heard-of"),
    ],
)
def test_damaged_metadata_is_named(changes, error, words):
    with pytest.raises(error, match=words):
        tokenizer_from_metadata(small_llama_metadata(**changes))


def test_rows_of_a_padded_vocabulary_are_no_tokens():
    metadata = small_llama_metadata()
    count = len(metadata["tokenizer.ggml.tokens"])
    padded = {
        **metadata,
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], *(f"[PAD{count + i}]" for i in range(3))],
        "tokenizer.ggml.scores": [*metadata["tokenizer.ggml.scores"], 0.0, 0.0, 0.0],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], 5, 5, 5],
    }
    tokenizer = tokenizer_from_metadata(padded)
    assert (tokenizer.vocab_size, known_tokens(tokenizer, count + 3)) == (count, count)
    assert tokenizer.encode("hello") == tokenizer_from_metadata(metadata).encode("hello")
    assert tokenizer_from_metadata({**padded, "tokenizer.ggml.padding_token_id": count + 1}).vocab_size == count + 2
    padded["tokenizer.ggml.token_type"][-1] = 1  # a token like others, whatever its name
    assert tokenizer_from_metadata(padded).vocab_size == count + 3
