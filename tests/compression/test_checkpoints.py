"""Rounded checkpoints as other engines read them: names, layouts and configuration, dequantized by plain code here."""

import itertools
import json
import shutil
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from octavo.cli.main import main
from octavo.compression.parameters import Parameters
from octavo.compression.run import QuantizeOptions, Rounding
from octavo.errors import ConfigError, UnsupportedError
from octavo.model.source import open_model
from tests.compression.models import make, opened

WIDE = ["--samples", "6", "--length", "32", "--no-progress"]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def quantize(model, output, method, *more):
    return main(["quantize", str(model), "--method", method, "--output", str(output), *WIDE, *more])


def read(directory):
    """Every tensor of a directory, and its configuration."""
    tensors = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return tensors, json.loads((directory / "config.json").read_text())


def nibbles(words, bits):
    return torch.stack([(words >> (bits * i)) & ((1 << bits) - 1) for i in range(32 // bits)], dim=-1)


def dequantized(tensors, config, module):
    """The weight [out, in] of a module by the formats' own descriptions."""
    if config["quant_method"] == "compressed-tensors":
        return tensors[f"{module}.weight"].float() * tensors[f"{module}.weight_scale"].float()
    words, zeros, scales = (tensors[f"{module}.{name}"] for name in ("qweight", "qzeros", "scales"))
    bits = config["bits"]
    zeros = nibbles(zeros, bits)
    if config["quant_method"] == "awq":
        back = [AWQ_ORDER.index(i) for i in range(8)]
        codes, zeros = nibbles(words, bits)[..., back].flatten(1), zeros[..., back].flatten(1)
        group = torch.arange(len(codes)) // config["group_size"]
    else:
        codes = nibbles(words.T.contiguous(), bits).flatten(1).T
        less = {"gptq": 1, "gptq_v2": 0}[config["checkpoint_format"]]
        zeros, group = zeros.flatten(1) + less, tensors[f"{module}.g_idx"].long()
    return ((codes - zeros[group]) * scales.float()[group]).T


def as_octavo_reads(directory):
    """Every projection of a Llama's layers, by module."""
    _, parameters = opened(directory)
    parts = {"mixer.qkv": ("q", "k", "v"), "mixer.out": ("o",), "mlp.gate_up": ("gate", "up"), "mlp.down": ("down",)}
    found = {}
    for layer, (name, projections) in itertools.product(range(2), parts.items()):
        matrix = torch.from_numpy(parameters.matrix(f"layers.{layer}.{name}"))
        sizes = [64, 32, 32] if len(projections) == 3 else [len(matrix) // len(projections)] * len(projections)
        kind = "self_attn" if name.startswith("mixer") else "mlp"
        for projection, rows in zip(projections, matrix.split(sizes), strict=True):
            found[f"model.layers.{layer}.{kind}.{projection}_proj"] = rows
    return found


METHODS = {
    "awq": ("awq", []),
    "awq-symmetric": ("awq", ["--symmetric", "--group-size", "64"]),
    "gptq": ("gptq", []),
    "gptq-order": ("gptq", ["--act-order", "--no-symmetric", "--group-size", "32"]),
    "gptq8-rows": ("gptq", ["--bits", "8", "--group-size", "-1"]),
    "int8": ("int8", []),
    "int8-plain": ("int8", ["--alpha", "0"]),
    "fp8": ("fp8", []),
}
# The largest relative error (RMS) of a matrix of normal numbers, by bits; scaling makes it different, not worse.
ERRORS = {"awq": 0.2, "gptq": 0.25, "gptq8-rows": 0.02, "int8": 0.02, "int8-plain": 0.02, "fp8": 0.05}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make("llama-biased-tied-llama3", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("name", METHODS)
def test_matrices_are_what_they_were_but_for_rounding(name, llama, tmp_path):
    method, flags = METHODS[name]
    assert quantize(llama, tmp_path / "out", method, "--no-measure", *flags) == 0
    (before, _), (after, config) = read(llama), read(tmp_path / "out")
    quantization = config["quantization_config"]
    assert config["architectures"] == ["LlamaForCausalLM"]
    modules = [key.removesuffix(".weight") for key in before if "_proj.weight" in key]
    assert len(modules) == 2 * 7
    own = as_octavo_reads(tmp_path / "out")
    for module in modules:
        found, wanted = dequantized(after, quantization, module), before[f"{module}.weight"].float()
        # Moved factors are undone: by the norm before, or the rows of values and up projections.
        ratio = (found * wanted).sum(0) / wanted.square().sum(0)
        rows = (found * wanted).sum(1) / wanted.square().sum(1)
        moved = found / ratio if rows.std() < ratio.std() else found / rows[:, None]
        error = (moved - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert torch.allclose(found, own[module], atol=1e-6), "read by Octavo"
        if name in ("awq", "awq-symmetric", "int8") and module.endswith(("v_proj", "up_proj")):
            continue  # scaled both ways
        assert error < ERRORS.get(name, ERRORS.get(method))
    for key in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"):
        assert torch.equal(before[key], after[key])
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (llama / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["matrices_rounded"] == 14


@pytest.mark.parametrize("name", ["awq", "int8"])
def test_scaled_models_still_answer_alike(name, tmp_path):
    """The whole model, its rounded matrices put back as plain ones: nothing was scaled on one side only."""
    method, flags = METHODS[name]
    model = make("qwen3", tmp_path / "model", torch.float32)
    assert quantize(model, tmp_path / "out", method, "--no-measure", *flags) == 0
    tensors, config = read(tmp_path / "out")
    quantization = config.pop("quantization_config")
    from transformers import AutoModelForCausalLM

    wanted = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    back = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    state = {key: value.float() for key, value in tensors.items() if key in wanted.state_dict()}
    for key in wanted.state_dict():
        if key.endswith("_proj.weight"):
            state[key] = dequantized(tensors, quantization, key.removesuffix(".weight"))
    back.load_state_dict(state)
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        one, other = wanted(ids).logits[0], back(ids).logits[0]
    error = (one - other).square().mean().sqrt() / one.std()
    assert error < {"awq": 0.35, "int8": 0.03}[name]


def test_a_polite_kill_leaves_nothing_and_says_so(llama, tmp_path, monkeypatch, capsys):
    @contextmanager
    def bar(steps, shown):
        yield lambda what, done: signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("octavo.cli.quantize._bar", bar)
    assert quantize(llama, tmp_path / "out", "fp8", "--no-measure") == 143
    assert capsys.readouterr().err == "\nterminated; nothing was left there\n"
    assert list(tmp_path.iterdir()) == []


def test_configurations(llama, tmp_path):
    """What vLLM and Transformers look for."""
    found = {}
    for name in ("awq", "awq-symmetric", "gptq-order", "gptq8-rows", "int8", "fp8"):
        method, flags = METHODS[name]
        assert quantize(llama, tmp_path / name, method, "--no-measure", *flags) == 0
        found[name] = read(tmp_path / name)[1]["quantization_config"]
    assert found["awq"] == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 64,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }
    assert found["awq-symmetric"]["zero_point"], "written out"
    order = found["gptq-order"]
    assert (order["bits"], order["group_size"], order["sym"], order["desc_act"]) == (4, 32, False, False)
    assert order["static_groups"]
    assert order["checkpoint_format"] == "gptq_v2"
    assert found["gptq8-rows"]["checkpoint_format"] == "gptq"
    assert (found["gptq8-rows"]["bits"], found["gptq8-rows"]["group_size"]) == (8, -1)
    with pytest.raises(ConfigError, match=r"quantized already \(GPTQ: 4 bits, groups of 32, with zero points\)"):
        Rounding(open_model(tmp_path / "gptq-order"), QuantizeOptions("fp8"))
    for name, kind in (("int8", "int"), ("fp8", "float")):
        assert found[name]["format"] == f"{kind}-quantized"
        assert found[name]["ignore"] == ["lm_head"]
        group = found[name]["config_groups"]["group_0"]
        assert (group["weights"]["strategy"], group["weights"]["type"]) == ("channel", kind)
        assert (group["input_activations"]["strategy"], group["input_activations"]["dynamic"]) == ("token", True)


def test_shards_and_what_is_kept(tmp_path):
    model = make("qwen2", tmp_path / "model", shard="60KB")
    more = ["--no-measure", "--max-shard-size", "40000", "--keep", "*.down_proj", "--group-size", "32"]
    assert quantize(model, tmp_path / "out", "gptq", *more) == 0
    (before, _), (after, config) = read(model), read(tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(after)
    assert len(set(index["weight_map"].values())) == len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert torch.equal(before["model.layers.1.mlp.down_proj.weight"], after["model.layers.1.mlp.down_proj.weight"])
    skipped = config["quantization_config"]["dynamic"]
    assert set(skipped) == {f"-:^model\\.layers\\.{i}\\.mlp\\.down_proj$" for i in range(2)}


def test_turned_matrices_of_gpt2(tmp_path):
    """GPTQ's layout has room for them; compressed-tensors' has none."""
    model = make("gpt2", tmp_path / "model")
    assert quantize(model, tmp_path / "out", "gptq", "--no-measure") == 0
    (before, _), (after, config) = read(model), read(tmp_path / "out")
    found = dequantized(after, config["quantization_config"], "transformer.h.1.mlp.c_fc")
    wanted = before["transformer.h.1.mlp.c_fc.weight"].float().T
    assert (found - wanted).square().mean().sqrt() < 0.25 * wanted.std()
    assert quantize(model, tmp_path / "no", "fp8", "--no-measure") == 2
    assert not (tmp_path / "no").exists()


def test_what_is_refused(llama, tmp_path, capsys):
    assert quantize(llama, tmp_path / "out", "fp8", "--no-measure") == 0
    source = open_model(llama)
    assert quantize(llama, tmp_path / "out", "fp8") == 2
    assert "not empty" in capsys.readouterr().err
    for options, words in (
        (QuantizeOptions("awq", bits=8), "awq has 4"),
        (QuantizeOptions("gptq", bits=3), "4 and 8"),
        (QuantizeOptions("awq", group_size=-1), "needs groups"),
        (QuantizeOptions("gguf", type="Q9"), "there are Q4_0"),
    ):
        with pytest.raises(ConfigError, match=words):
            Rounding(source, options)
    for odd in (48, 7):
        with pytest.raises(UnsupportedError, match="groups of"):
            Rounding(source, QuantizeOptions("awq", group_size=odd)).prepare(*_text(source))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("int8", "--group-size", "32"), "--group-size is of awq and gptq; int8"),
        (("awq", "--act-order"), "--act-order is of gptq"),
        (("gguf", "--keep", "*"), "--keep is of"),
        (("gptq", "--no-calibration"), "--no-calibration is of gguf"),
        (("gptq", "--group-size", "0"), "--group-size 0: a positive number"),
        (("fp8", "--keep", "*.nowhere"), r"--keep *.nowhere fits no module"),
    ],
)
def test_no_flag_is_passed_over(flags, words, llama, tmp_path, capsys):
    assert quantize(llama, tmp_path / "out", *flags, "--no-measure") == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [("awq",), ("gptq",), ("int8",), ("fp8",), ("gguf",), ("gguf", "--type", "Q8_0")])
def test_damaged_and_huge_numbers_are_not_rounded_away(flags, llama, tmp_path, capsys):
    """A NaN would become some number in whole numbers and 8-bit floats; a scale beyond float16 would be an infinity."""
    model = tmp_path / "model"
    shutil.copytree(llama, model)
    tensors = load_file(model / "model.safetensors")
    weight = tensors["model.layers.1.mlp.down_proj.weight"]
    for value, words in ((float("nan"), "down_proj.weight holds a NaN"), (3e38, "too large for the float16 scales")):
        weight[3, 5] = value
        save_file(tensors, model / "model.safetensors", {"format": "pt"})
        if value == 3e38 and flags[0] in ("int8", "fp8"):
            continue  # which have scales in the model's own type
        assert quantize(model, tmp_path / "out", *flags, "--no-measure") in (1, 2)
        assert words in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _text(source):
    from octavo.compression.calibration_text import CalibrationText
    from octavo.kernels.cpu.library import load_library
    from octavo.kernels.cpu.team import ThreadTeam

    library, ids = load_library(), np.full((2, 16), 5, np.int32)
    return CalibrationText(ids, ids), library, ThreadTeam(library, 1)


GGUF = ("llama-biased-tied-llama3", "mistral-window", "llama-yarn", "qwen2", "qwen3", "gemma3", "granite", "gpt2")


@pytest.mark.parametrize("name", GGUF)
def test_gguf_files_hold_the_same_model(name, tmp_path):
    """Read back, every matrix is near what it was, every vector the same, whatever the file's order of rows."""
    model = make(name, tmp_path / "model")
    assert quantize(model, tmp_path / "out", "gguf", "--type", "Q8_0", "--no-measure") == 0
    (source, before), (_, after) = opened(model), opened(next((tmp_path / "out").glob("*.gguf")))
    for plan in before.plan.matrices:
        one, other = before.matrix(plan.name), after.matrix(plan.name)
        assert np.abs(one - other).max() < 0.011 * np.abs(one).max(), plan.name
    for plan in before.plan.vectors:
        assert np.allclose(before.vector(plan.name), after.vector(plan.name), atol=1e-6), plan.name
    assert source.spec.vocab == 256


def test_gguf_files_of_any_type_and_a_file_as_source(tmp_path):
    """Mixed types, calibrated; and a file of plain numbers rounded again, its tokenizer taken along."""
    model = make("qwen3", tmp_path / "model")
    assert quantize(model, tmp_path / "out", "gguf", "--type", "Q4_K_M", "--no-measure") == 0
    path = next((tmp_path / "out").glob("*.gguf"))
    source = open_model(path)
    formats = {tensor.format for tensor in source.tensors.values()}
    assert formats == {"f32", "q5_0", "q8_0"}  # rows of 64 and 128: no blocks of 256
    assert source.chat_template == "{{ messages[0].content }}"
    assert source.gguf_metadata["tokenizer.ggml.pre"] == "gpt-2"
    with pytest.raises(ConfigError, match="quantized already"):
        Rounding(source, QuantizeOptions("gguf"))


def test_families_without_a_gguf_form_are_refused(tmp_path):
    source = open_model(make("lfm2", tmp_path / "model"))
    with pytest.raises(UnsupportedError, match=r"no GGUF form.*--method int8, fp8, awq and gptq"):
        Rounding(source, QuantizeOptions("gguf"))


def test_what_a_gguf_file_cannot_say_is_refused_before_anything_is_rounded(tmp_path):
    source, done = open_model(make("qwen2-window", tmp_path / "model")), []
    rounding = Rounding(source, QuantizeOptions("gguf", type="Q8_0")).prepare()
    with pytest.raises(UnsupportedError, match=r"layer 1.*another model; --method int8, fp8, awq and gptq"):
        rounding.run(tmp_path, lambda what, count: done.append(what))
    assert done == []


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_families_with_turned_matrices_are_told_what_takes_them(method, tmp_path):
    source = open_model(make("gpt2", tmp_path / "model"))
    with pytest.raises(UnsupportedError, match=r"nothing to round.*turned.*but awq, gptq and gguf can"):
        Rounding(source, QuantizeOptions(method)).prepare(*_text(source))


def test_a_report_measures_both(tmp_path, capsys):
    model = make("qwen3", tmp_path / "model")
    assert quantize(model, tmp_path / "out", "gguf", "--type", "Q8_0", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    before, after = report["perplexity"].values()
    assert after == pytest.approx(before, rel=0.05)
    assert after != before
    assert 0.5 < report["same_first_choice"] <= 1
    assert report["bytes"]["after"] < 0.7 * report["bytes"]["before"]
    assert min(report["tokens_per_second"].values()) > 0
    assert report["problem"] is None
    source = open_model(next((tmp_path / "out").glob("*.gguf")))
    assert Parameters(source).matrix("embed").shape == (256, 64)
