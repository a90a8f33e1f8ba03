"""Tokenizers from model directories: the ids and special tokens that transformers gives for the same files."""

import json
import os

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer

from octavo.errors import CheckpointError, InvalidRequestError, UnsupportedError
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.tokenizer import known_tokens, load_tokenizer_file
from tests.text.vocabularies import random_texts, sentencepiece_bytes, small_llama_metadata


def trained(special=("<|endoftext|>", "<s>", "</s>")) -> Tokenizer:
    """A byte-level BPE of a few hundred tokens."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(random_texts(7, 200), trainer)
    return backend


def write(directory, backend=None, **files):
    if backend is not None:
        backend.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def agrees_with_transformers(directory):
    ours, theirs = load_tokenizer_file(directory), AutoTokenizer.from_pretrained(directory)
    for text in [*random_texts(8, 60), "a<s>b</s>c<|endoftext|>", "<tool>x</tool>"]:
        assert ours.encode(text) == theirs(text)["input_ids"], repr(text)
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        for skip in (True, False):
            ids = ours.encode(text)
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids[:1] == ((theirs.eos_token_id,) if theirs.eos_token_id is not None else ())
    return ours


BASE = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        {**BASE, "add_bos_token": True},
        {**BASE, "add_bos_token": True, "add_eos_token": True},
        {**BASE, "add_bos_token": False},
        {**BASE, "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True}},
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "add_bos_token": True},
        {**BASE, "additional_special_tokens": ["<tool>", "</tool>"]},
    ],
)
def test_bos_and_eos_rules(tmp_path, config):
    agrees_with_transformers(write(tmp_path, trained(), tokenizer_config=config))


@pytest.mark.parametrize("add_bos", [True, False])
def test_post_processor_of_the_file_holds_whatever_the_settings_say(tmp_path, add_bos):
    backend = trained()
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    config = {**BASE, "add_bos_token": add_bos}
    assert agrees_with_transformers(write(tmp_path, backend, tokenizer_config=config)).encode("a")[0] == 1


def test_added_tokens_of_the_configuration(tmp_path):
    plain = {"content": "<tool>", "special": False, "normalized": False}
    config = {**BASE, "added_tokens_decoder": {"400": plain, "401": {**plain, "content": "</tool>", "special": True}}}
    ours = agrees_with_transformers(write(tmp_path, trained(), tokenizer_config=config))
    assert (ours.id_of("<tool>"), ours.id_of("</tool>")) == (400, 401)
    assert 401 in ours.special_ids
    assert 400 not in ours.special_ids


def test_a_directory_may_have_any_name(tmp_path):
    directory = tmp_path / os.fsdecode(b"m\xff")
    directory.mkdir()
    ours = load_tokenizer_file(write(tmp_path, trained()))
    (directory / "tokenizer.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert load_tokenizer_file(directory).encode("a text") == ours.encode("a text")


def test_padding_and_truncation_of_training_are_dropped(tmp_path):
    backend = trained()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    ours = load_tokenizer_file(write(tmp_path, backend))
    assert ours.decode(ours.encode("a long enough text")) == "a long enough text"


@pytest.mark.parametrize("add_bos", [True, False])
def test_vocabulary_and_merges_files_as_in_opt_and_gpt2(tmp_path, add_bos):
    trained().model.save(str(tmp_path))
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    agrees_with_transformers(write(tmp_path, tokenizer_config={**config, "add_bos_token": add_bos}))


def test_vocabulary_and_merges_alone(tmp_path):
    trained().model.save(str(tmp_path))
    ours = load_tokenizer_file(tmp_path, {"eos_token_id": 0, "bos_token_id": 0})
    assert ours.encode("a<|endoftext|>")[-1] == 0
    assert ours.special_ids == {0}
    assert ours.eos_token_ids == (0,)


def test_eos_ids_of_the_model_configuration_come_after_the_tokenizer_s_own(tmp_path):
    directory = write(tmp_path, trained(), tokenizer_config=BASE)
    assert load_tokenizer_file(directory, {"eos_token_id": [7, 2]}).eos_token_ids == (2, 7)
    assert load_tokenizer_file(directory / "tokenizer.json", {}).eos_token_ids == (2,)


def test_sentencepiece_like_tokenizer_json(tmp_path):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab.update({f"<0x{byte:02X}>": 3 + byte for byte in range(256)})
    vocab.update({token: 259 + i for i, token in enumerate(["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"])})
    backend = Tokenizer(
        BPE(vocab, [("\u2581", "a"), ("a", "b"), ("\u2581a", "b")], unk_token="<unk>", byte_fallback=True)
    )
    marked = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(marked)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    ours = load_tokenizer_file(write(tmp_path, backend, tokenizer_config=BASE))
    assert ours.encode("ab a") == [1, vocab["\u2581ab"], vocab["\u2581a"]]
    assert ours.decode(ours.encode("ab a\u4e16 ")) == "ab a\u4e16 "
    assert ours.token_bytes(vocab["<0xE4>"]) == b"\xe4"


def test_sentencepiece_model_file(tmp_path):
    metadata = small_llama_metadata()
    data = sentencepiece_bytes(metadata, add_space_prefix=True)
    (tmp_path / "tokenizer.model").write_bytes(data)
    ours, same = load_tokenizer_file(tmp_path), tokenizer_from_metadata(metadata)
    for text in ["abc ab", " a\n", "\u4e16</s>"]:
        assert ours.encode(text) == same.encode(text)
        assert ours.decode(ours.encode(text)) == same.decode(same.encode(text))
    assert (ours.bos_token_id, ours.eos_token_ids, ours.special_ids) == (1, (2,), {0, 1, 2})
    for end in range(1, len(data), 97):
        (tmp_path / "tokenizer.model").write_bytes(data[:end])
        with pytest.raises((CheckpointError, UnsupportedError)):
            load_tokenizer_file(tmp_path)


def test_decoders_that_are_not_byte_level(tmp_path):
    backend = Tokenizer(WordLevel({"play": 0, "##ing": 1, "well": 2}, unk_token="play"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    assert load_tokenizer_file(write(tmp_path, backend)).decode([0, 1, 2]) == "playing well"
    backend.decoder = decoders.CTC()
    with pytest.raises(UnsupportedError, match="CTC"):
        load_tokenizer_file(write(tmp_path, backend))


def test_lone_surrogates_are_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match="Unicode"):
        load_tokenizer_file(write(tmp_path, trained())).encode("a\ud800")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"looked for tokenizer\.json"):
        load_tokenizer_file(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer_file(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "qwen.tiktoken").write_text("")
    with pytest.raises(UnsupportedError, match="tiktoken"):
        load_tokenizer_file(tmp_path)
    (tmp_path / "vocab.json").write_text("[]")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        load_tokenizer_file(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(CheckpointError, match=r"merges\.txt"):
        load_tokenizer_file(tmp_path)
    write(tmp_path, trained(), tokenizer_config=[])
    with pytest.raises(CheckpointError, match="tokenizer_config"):
        load_tokenizer_file(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config", {"added_tokens_decoder": [1]}),
        ("tokenizer_config", {"added_tokens_decoder": "x"}),
        ("tokenizer_config", {"added_tokens_decoder": {"a": {"content": "<x>"}}}),
        ("tokenizer_config", {"added_tokens_decoder": {"1": None}}),
        ("tokenizer_config", {"added_tokens_decoder": {"1": {"special": True}}}),
        ("tokenizer_config", {"added_tokens_decoder": {"1": {"content": "\ud800"}}}),
        ("tokenizer_config", {"eos_token": "\ud800"}),
        ("special_tokens_map", {"additional_special_tokens": 0.5}),
        ("added_tokens", {"<x>": "a"}),
        ("added_tokens", {"<x>": None}),
        ("added_tokens", {"<x>": 1e400}),
    ],
)
def test_junk_in_the_side_files_is_a_damaged_checkpoint(tmp_path, name, content):
    with pytest.raises(CheckpointError):
        load_tokenizer_file(write(tmp_path, trained(), **{name: content}))


def test_a_deep_side_file_is_a_damaged_checkpoint(tmp_path):
    write(tmp_path, trained())
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_tokenizer_file(tmp_path)


@pytest.mark.parametrize(("vocab", "merges"), [(b'{"a": 0}', b"\xff\xfe"), (b'{"a": 0, "b": 1}', b"a b")])
def test_what_the_library_panics_at_is_a_damaged_checkpoint(tmp_path, vocab, merges):
    (tmp_path / "vocab.json").write_bytes(vocab)
    (tmp_path / "merges.txt").write_bytes(merges)
    with pytest.raises(CheckpointError, match=r"merges\.txt"):
        load_tokenizer_file(tmp_path)


def test_a_vocabulary_with_gaps_is_known_to_its_end(tmp_path):
    backend = Tokenizer(BPE(vocab={"a": 0, "b": 1, "c": 9}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer_file(tmp_path)
    assert [known_tokens(tokenizer, vocab) for vocab in (10, 11, 300)] == [0, 10, 10]
    assert known_tokens(tokenizer, 300, [20, 3]) == 21
    assert (tokenizer.token(9), tokenizer.token(5), tokenizer.token(1 << 40), tokenizer.token(-1)) == ("c", *[None] * 3)
    assert tokenizer.decode([0, 9, 5, 1 << 40]) == "ac"
