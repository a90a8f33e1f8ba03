"""Output directories that appear whole or not at all, and texts that models are calibrated with."""

import errno
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from octavo.compression.calibration_text import cut, read_texts
from octavo.compression.output_directory import check_target, output_directory
from octavo.errors import ConfigError, InvalidRequestError
from octavo.model.checkpoint.gguf_writer import GgufWriter, TensorInfo
from octavo.model.checkpoint.safetensors_writer import SafetensorsWriter


def write(target, overwrite, error):
    """A model of one file; or half of one, when there is an error."""
    with output_directory(target, overwrite, 0) as directory:
        (directory / "model").write_text("new")
        if target.exists():
            assert (target / "model").read_text() == "old"
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_what_fails_leaves_nothing(error, tmp_path):
    with pytest.raises(error):
        write(tmp_path / "out", False, error)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_named(tmp_path):
    words = r"out: No space left on device after a part of about 7"
    with pytest.raises(ConfigError, match=words), output_directory(tmp_path / "out", False, 7 << 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_the_old_one(tmp_path):
    old = tmp_path / "out"
    old.mkdir()
    (old / "model").write_text("old")
    (old / "report.json").write_text("{}")
    with pytest.raises(OSError):  # noqa: PT011
        write(old, True, OSError)
    assert (old / "model").read_text() == "old"
    write(old, True, None)
    assert (old / "model").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_places_that_are_taken(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    for place, words in (("file", "no directory"), ("full", "--overwrite")):
        with pytest.raises(ConfigError, match=words), output_directory(tmp_path / place, False, 0):
            pass
    with pytest.raises(ConfigError, match="are free"), output_directory(tmp_path / "new", False, 1 << 60):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"file", "full"}


def test_only_what_was_written_so_is_replaced(tmp_path):
    """A model, a home directory or a mount is not given up for --overwrite."""
    model = tmp_path / "all" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no report\.json"):
        check_target(tmp_path / "all", True)
    (tmp_path / "all" / "report.json").write_text("{}")
    check_target(tmp_path / "all", True)
    (tmp_path / "link").symlink_to(model)
    for source in (model, tmp_path / "link", model / "config.json"):
        with pytest.raises(ConfigError, match="holds the model that is read"):
            check_target(tmp_path / "all", True, source)
    with pytest.raises(ConfigError, match="mount point"):
        check_target(Path("/"), True)


def test_what_a_killed_run_left_goes_with_the_next(tmp_path):
    left, other = tmp_path / ".out.abc.partial", tmp_path / ".out.2.abc.partial"
    for path in (left, other):
        path.mkdir()
        (path / "weights").write_text("half")
    with output_directory(tmp_path / "out", False, 0) as first:
        assert not left.exists()
        assert first.is_dir()
        with output_directory(tmp_path / "out", False, 0) as second:  # the first is still written to
            assert first.is_dir()
            (second / "report.json").write_text("{}")
        shutil.rmtree(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", other.name}


def test_safetensors_in_shards_are_what_the_library_reads(tmp_path):
    values = {f"tensor.{i}": np.full((3, 5), i, np.float32) for i in range(5)}
    writer = SafetensorsWriter(tmp_path, 130, list(values))
    for name, array in values.items():
        writer.add(name, "f32", array.shape, array)
    files = writer.finish()
    assert [path.name for path in files] == [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    found = {name: array for path in files for name, array in load_file(path).items()}
    assert set(found) == set(values)
    assert all(np.array_equal(found[name], values[name]) for name in values)


def test_a_gguf_tensor_must_be_complete(tmp_path):
    writer = GgufWriter(tmp_path / "a", {"general.architecture": "x"}, [TensorInfo("t", "f32", (2, 8))])
    writer.add(np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="not complete"):
        writer.finish()
    writer = GgufWriter(tmp_path / "b", {}, [TensorInfo("t", "f32", (2, 8))])
    with pytest.raises(ValueError, match="takes 64 bytes"):
        writer.add(np.zeros(17, np.float32))
    writer.close()


class _Bytes:
    """A tokenizer of bytes that begins every text with 1."""

    eos_token_ids = (2,)

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + list(text.encode())


def test_windows_share_nothing_and_begin_as_texts_do():
    texts = ["".join(chr(97 + (i * 7 + j) % 26) for j in range(40)) for i in range(40)]
    text = cut(texts, _Bytes(), 8, 33)
    assert text.calibration.shape == (8, 33)
    assert text.held_out.shape == (6, 33)
    assert (text.calibration[:, 0] == 1).all()
    whole = [t for each in texts for t in [*each.encode(), 2]]
    places = [whole.index(window[1], 0) for window in text.held_out.tolist()]
    assert places
    joined = {tuple(window) for window in text.calibration.tolist()} & {tuple(w) for w in text.held_out.tolist()}
    assert not joined
    with pytest.raises(ConfigError, match="two windows of 512"):
        cut(["short"], _Bytes(), 4, 512)


def test_lines_of_json(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [{"text": "a"}, {"prompt": "b", "completion": "c"}, {"messages": [{"role": "user", "content": "d"}]}]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    assert read_texts(path, lambda messages: f"<{messages[0]['content']}>") == ["a", "bc", "<d>"]
    with pytest.raises(ConfigError, match="line 3 has messages"):
        read_texts(path, None)
    path.write_text('{"text": "a\\ud800b"}')
    assert read_texts(path, None) == ["a?b"]

    def refuse(messages):
        raise InvalidRequestError("messages[0] must be an object")

    path.write_text('\n{"messages": [1]}')
    with pytest.raises(ConfigError, match=r"line 2: messages\[0\] must be"):
        read_texts(path, refuse)
    for line, words in (("{", "line 1 is not JSON"), ("[]", "line 1 has no"), ('{"x": 1}', "line 1 has no")):
        path.write_text(line)
        with pytest.raises(ConfigError, match=words):
            read_texts(path, None)
    with pytest.raises(ConfigError, match="No such file"):
        read_texts(tmp_path / "none.txt", None)


def test_of_a_huge_text_only_as_much_is_tokenized_as_is_needed():
    """The excerpts are from all over it."""
    seen = []

    class Counting(_Bytes):
        def encode(self, text, add_special_tokens=True):
            seen.append(text)
            return super().encode(text, add_special_tokens)

    huge = "".join(chr(97 + letter) * 200_000 for letter in range(20))
    text = cut([huge], Counting(), 8, 33)
    assert text.calibration.shape == (8, 33)
    assert sum(map(len, seen)) < 1_100_000
    assert {each[0] for each in seen if each} == set(map(chr, range(97, 117)))


def test_lines_end_at_line_feeds_alone(tmp_path):
    """What else ends a line of text may stand in JSON, and a mark of the byte order before it."""
    path = tmp_path / "texts.jsonl"
    path.write_text('\ufeff{"text": "a\u2028b\x85c"}\r\n{"text": "d"}\n', encoding="utf-8", newline="")
    assert read_texts(path, None) == ["a\u2028b\x85c", "d"]


def test_the_text_that_comes_along_is_long_enough():
    texts = read_texts(None, None)
    assert len(texts) == 4
    assert sum(map(len, texts)) > 200_000
    assert all(text.isascii() for text in texts)


def test_an_empty_list_of_a_gguf_file_is_of_texts(tmp_path):
    """As llama.cpp wants the merges of a tokenizer that has none."""
    writer = GgufWriter(tmp_path / "a", {"tokenizer.ggml.merges": []}, [])
    writer.finish()
    array, text, count = 9, 8, 0
    assert b"merges" + struct.pack("<IIQ", array, text, count) in (tmp_path / "a").read_bytes()
