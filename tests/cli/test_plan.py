"""`octavo plan` is exact and reads headers; what cannot fit is refused before loading."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.cli.main import main
from octavo.cli.plan import make_plan
from octavo.config.engine import EngineConfig
from octavo.config.machine import Machine, read_machine
from octavo.engine import build
from octavo.engine.footprint import HeaderFootprint
from octavo.errors import ConfigError
from octavo.model.weight_plan import Slice, VectorPlan
from tests.model.files import TINY, tiny_tensors, write_model

MIB = 1 << 20
LAYERS, WINDOW = 6, 32
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "vocab_size": 50,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention"] * (LAYERS - 1) + ["full_attention"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}


def gemma_tensors() -> dict[str, Any]:
    layer = {
        **{f"self_attn.{name}_proj": (width, 64) for name, width in (("q", 64), ("k", 32), ("v", 32))},
        "self_attn.o_proj": (64, 64),
        **{f"self_attn.{name}_norm": (32,) for name in "qk"},
        **{f"{place}_layernorm": (64,) for place in ("input", "post_attention", "pre_feedforward", "post_feedforward")},
        **{f"mlp.{name}_proj": (96, 64) for name in ("gate", "up")},
        "mlp.down_proj": (64, 96),
    }
    shapes = {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens": (50, 64), "model.norm": (64,)}
    return {f"{name}.weight": np.full(shape, 0.01, np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("models")
    return {
        "llama": str(write_model(directory / "llama", tiny_tensors())),
        "gemma": str(write_model(directory / "gemma", gemma_tensors(), GEMMA)),
    }


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_the_plan_is_what_an_engine_takes(models: dict[str, str], name: str, backend: str) -> None:
    config = EngineConfig.from_options(
        model=models[name], backend=backend, kv_cache_size="4MiB", max_num_seqs=3, max_num_batched_tokens=48
    )
    plan = make_plan(config, 1, None)
    engine = build.build_engine(config)
    try:
        assert plan.fit.weight_bytes - plan.vector_bytes == engine.memory.weight_bytes
        assert plan.fit.blocks == engine.resolved.cache.num_blocks.value
        assert plan.fit.cache_bytes == engine.resolved.cache.cache_bytes.value
        assert sum(group.token_bytes for group in plan.groups) == engine.memory.token_bytes
        program = engine.backend.program
        assert program is None or plan.activation_bytes == sum(program.memory.sizes)
    finally:
        engine.close()


def test_windows_keep_only_their_window(models: dict[str, str]) -> None:
    config = EngineConfig.from_options(model=models["gemma"], max_num_seqs=2, max_num_batched_tokens=16)
    plan = make_plan(config, 1, None)
    full = [group for group in plan.groups if group.window is None]
    windows = [group for group in plan.groups if group.window is not None]
    assert [group.blocks for group in full] == [512 // 16]
    assert sum(group.layers for group in windows) == LAYERS - 1
    assert {group.blocks for group in windows} == {4}
    assert plan.fit.sequence_blocks == 32 + 4 * len(windows)


def test_no_weight_is_read(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(Slice, "read", refuse)
    monkeypatch.setattr(VectorPlan, "read", refuse)
    assert make_plan(EngineConfig.from_options(model=models["gemma"]), 4, 1 << 30).fit.sequences >= 4


def test_rope_tables_and_histories_end_with_the_longest_sequence(models: dict[str, str]) -> None:
    long, short = (
        make_plan(EngineConfig.from_options(model=models["llama"], max_model_len=length), 1, None)
        for length in (128, 32)
    )
    assert long.rope_bytes == 4 * short.rope_bytes
    assert long.table_bytes == 4 * short.table_bytes


def test_the_table(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", models["gemma"], "--max-model-len", "256", "--concurrency", "5", "--kv-cache-dtype", "float32"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    for text in (
        "gemma3, ",
        "f32 ",
        "rope tables",
        "KV cache in float32",
        "every token",
        f"the last {WINDOW} tokens",
        "--kv-cache-dtype float16",
        "--kv-cache-size 0.9",
        "--max-model-len 128",
        "fits: 5 sequences of 256 tokens at a time",
    ):
        assert text in shown, text


def test_json(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", models["llama"], "--memory", "1GiB", "--concurrency", "7", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fit"]["fits"] is True
    assert plan["fit"]["sequences"] == plan["setup"]["max_num_seqs"] == plan["concurrency"] == 7
    assert plan["available_bytes"] == 1 << 30
    assert plan["formats"][0]["format"] == "f32"


def test_what_does_not_fit_ends_with_1_and_flags_to_copy(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", models["llama"], "--memory", "2MiB", "--concurrency", "500", "--max-num-batched-tokens", "500"]
    assert main(words) == 1
    assert "does not fit: " in capsys.readouterr().out
    words = ["plan", models["llama"], "--kv-cache-size", "20KiB", "--json"]
    assert main(words) == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["fit"]["fits"] is False
    assert plan["alternatives"][0]["flags"] == "--kv-cache-size 1MiB"


def test_where_nothing_fits_the_least_is_told_and_no_table(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", models["llama"], "--memory", "20KiB"]) == 1
    shown = capsys.readouterr().out
    assert "which flag gives what" not in shown
    assert "the least of it takes " in shown
    assert "--max-model-len 64" in shown
    assert "--quantization int" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scheduling-policy", "fair", "--tenant-weights", "ann"], "TENANT=WEIGHT"),
        (["--kv-disk-path", "/tmp/x"], "kv_disk_path needs kv_disk"),
    ],
)
def test_what_serve_refuses_plan_refuses_as_serve_does_before_loading(
    models: dict[str, str], words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    assert main(["plan", models["llama"], *words]) == 2
    assert message in capsys.readouterr().err
    monkeypatch.setattr(build, "open_backend", None)
    assert main(["inspect", models["llama"], *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--concurrency", "0"], ["--concurrency", "x"], ["--memory", "much"]])
def test_wrong_numbers_are_refused(
    models: dict[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", models["llama"], *words]) == 2
    assert "expected" in (shown := capsys.readouterr().err) or "is no " in shown


@pytest.fixture
def loading_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("loading began")

    monkeypatch.setattr(build, "open_backend", refuse)


def with_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    machine: Machine = replace(read_machine(), memory_total=1 << 34, memory_available=size)
    monkeypatch.setattr(build, "read_machine", lambda: machine)


@pytest.mark.usefixtures("loading_is_a_mistake")
@pytest.mark.parametrize(
    ("memory", "options", "message"),
    [
        (1 << 34, {"kv_cache_size": "100GiB"}, "what fits:\n  --kv-cache-size 0.9"),
        (1 << 34, {"kv_cache_size": "20KiB"}, "--max-model-len 80"),
        (1 << 34, {"num_gpu_blocks_override": 3}, "--num-gpu-blocks-override 8"),
        (1 << 34, {"leave_free": "1TiB"}, "leave_free"),
        (100_000, {}, "weights take"),
    ],
)
def test_a_start_that_cannot_fit_is_refused_before_loading(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, memory: int, options: dict[str, Any], message: str
) -> None:
    with_memory(monkeypatch, memory)
    with pytest.raises(ConfigError) as caught:
        build.build_engine(EngineConfig.from_options(model=models["llama"], **options))
    assert message in str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_an_engine_on_a_small_machine_stays_within_it(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    with_memory(monkeypatch, 8 * MIB)
    config = EngineConfig.from_options(model=models["llama"], kv_cache_size=str(share), max_num_seqs=4)
    engine = build.build_engine(config)
    try:
        footprint = HeaderFootprint(engine.source, engine.resolved.model)
        assert footprint.weight_bytes + engine.resolved.cache.cache_bytes.value < 8 * MIB
        assert f"{share:.0%} of" in engine.resolved.cache.num_blocks.reason
    finally:
        engine.close()


def test_a_smaller_file_beside_the_model_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.engine import footprint as module

    directory = write_model(tmp_path / "model", tiny_tensors())
    small = write_model(tmp_path / "small", {name: t.astype(np.float16) for name, t in tiny_tensors().items()}, TINY)
    (directory / "small.gguf").write_bytes(b"smaller")
    monkeypatch.setattr(module, "open_model", lambda _: build.open_model(small))
    large = HeaderFootprint(build.open_model(directory), _resolved(directory))
    with_memory(monkeypatch, large.weight_bytes + large.buffer_bytes(_setup(directory)) - 1000)
    with pytest.raises(ConfigError, match=r"--model .*small\.gguf"):
        build.build_engine(EngineConfig.from_options(model=str(directory), max_num_seqs=1, max_num_batched_tokens=1))


def test_rounding_is_offered_when_weights_do_not_fit(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", tiny_tensors())
    large = HeaderFootprint(build.open_model(directory), _resolved(directory))
    config = EngineConfig.from_options(model=str(directory), max_num_seqs=1, max_num_batched_tokens=1)
    memory = large.weight_bytes + large.buffer_bytes(_setup(directory)) - 1000
    flags = [alternative.flags for alternative in make_plan(config, 1, memory).alternatives]
    assert "--quantization int8" in flags
    rounded = EngineConfig.from_options(
        model=str(directory), quantization="int8", max_num_seqs=1, max_num_batched_tokens=1
    )
    assert not make_plan(rounded, 1, memory).fit.problem


def _resolved(directory: Path) -> Any:
    config = EngineConfig.from_options(model=str(directory), max_num_seqs=1, max_num_batched_tokens=1)
    return build.resolve_for(config, build.open_model(directory), read_machine())


def _setup(directory: Path) -> Any:
    from octavo.config.sizing import Setup

    model = _resolved(directory)
    return Setup(model.max_model_len.value, 1, 1, model.cache_types, 16)
