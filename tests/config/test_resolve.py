"""Automatic choices: right for the machine and the model, each with a reason; contradictions are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.config.environment import Environment
from octavo.config.machine import Machine, Placement
from octavo.config.resolve import ModelFacts, ResolvedConfig, ResolvedModel, resolve_model
from octavo.config.resolve_cache import resolve_cache
from octavo.errors import ConfigError, UnsupportedError

GIB = 1 << 30
MACHINE = Machine((0, 1, 2, 3), (0, 1), None, 16 * GIB, 8 * GIB)
FACTS = ModelFacts("model", max_positions=2048, vocab=32000, format="bf16", file_bytes=GIB)
ENVIRONMENT = Environment(Path("/cache"))
PAGE = 1 << 20


def resolve(machine: Machine = MACHINE, facts: ModelFacts = FACTS, **options: object) -> ResolvedModel:
    return resolve_model(EngineConfig.from_options(**options), facts, machine, ENVIRONMENT, ("avx2", "scalar"))


def test_every_choice_has_a_value_and_a_reason() -> None:
    model = resolve()
    cache = resolve_cache(EngineConfig(), model, PAGE, 128, 8 * GIB)
    for name, choice in ResolvedConfig(model, cache).choices():
        assert choice.reason, name
        assert choice.value != "auto", name
        assert choice.value is not None, name


def test_threads_follow_cores_then_quota_then_wishes() -> None:
    assert resolve().threads.value == 2
    assert resolve(replace(MACHINE, cpu_quota=1.5)).threads.value == 1
    assert resolve(replace(MACHINE, cpu_quota=0.2)).threads.value == 1
    assert resolve(threads=4).threads.value == 4
    config = EngineConfig()
    assert resolve_model(config, FACTS, MACHINE, replace(ENVIRONMENT, threads=3), ("scalar",)).threads.value == 3


@pytest.mark.parametrize(
    ("asked", "quota", "words"),
    [
        (None, 1.99, "grants 1.99 CPUs"),
        (8, None, "only 4 CPUs may be used"),
        (4, None, "cores there are: 2"),
        (2, 1.5, "grants 1.5 CPUs' worth of time: they will be stopped"),
        (2, None, ""),
    ],
)
def test_threads_that_would_wait_for_each_other_are_told(asked: int | None, quota: float | None, words: str) -> None:
    threads = resolve(replace(MACHINE, cpu_quota=quota), threads=asked).threads
    assert threads.value == (asked or 1)
    assert words in threads.reason
    assert words or threads.reason == "asked for"


def test_two_threads_of_a_core_are_told() -> None:
    machine = replace(MACHINE, cores=MACHINE.cores[:1])
    assert resolve(machine).threads.value == 1
    assert "cores there are: 1" in resolve(machine, threads=2).threads.reason


def test_where_memory_lies_is_told() -> None:
    assert resolve().memory_nodes.value == 1
    assert resolve().placement.value == Placement()
    two = resolve(replace(MACHINE, nodes=((0,), (1,)), node_numbers=(0, 1)))
    assert two.memory_nodes.value == 2
    assert "numactl" in two.memory_nodes.reason
    assert two.placement.value == Placement((0, 1), (0, 1), (0, 1))
    assert str(two.placement.value) == "1 + 1 threads"
    alone = resolve(replace(MACHINE, nodes=((0,), (1,)), node_numbers=(0, 1)), threads=1)
    assert (alone.placement.value, str(alone.placement.value)) == (Placement(), "by the system")
    assert "one thread" in alone.placement.reason


def test_instruction_set() -> None:
    assert resolve().isa.value == "avx2"
    assert resolve(isa="scalar").isa.value == "scalar"
    assert resolve(backend="torch").backend.value == "torch"
    with pytest.raises(ConfigError, match="isa avx512: this machine and build run avx2, scalar; leave it out"):
        resolve(isa="avx512")
    with pytest.raises(ConfigError, match="native libraries"):
        resolve_model(EngineConfig(), FACTS, MACHINE, ENVIRONMENT, ())


def test_lengths() -> None:
    assert resolve().max_model_len.value == 2048
    assert resolve(max_model_len=100).max_model_len.value == 100
    with pytest.raises(ConfigError, match="2048"):
        resolve(max_model_len=4096)


def test_large_vocabularies_get_fewer_sequences() -> None:
    assert resolve().max_num_seqs.value == 64
    tight = replace(MACHINE, memory_total=GIB)
    assert resolve(tight, replace(FACTS, vocab=262144)).max_num_seqs.value == 25
    assert resolve(max_num_seqs=3).max_num_seqs.value == 3


def test_step_budget() -> None:
    assert resolve().max_num_batched_tokens.value == 512
    assert resolve(max_num_seqs=900).max_num_batched_tokens.value == 900
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens.value == 2048
    with pytest.raises(ConfigError, match="max_num_seqs"):
        resolve(max_num_batched_tokens=8, max_num_seqs=16)
    with pytest.raises(ConfigError, match="chunked"):
        resolve(max_num_batched_tokens=512, enable_chunked_prefill=False)


def test_types_follow_the_file() -> None:
    assert resolve().weights.value == "bf16"
    assert resolve(dtype="float32").weights.value == "f32"
    assert resolve(facts=replace(FACTS, format="q4_k"), dtype="float16").weights.value == "q4_k"
    assert resolve().kv_cache_dtype.value == "bfloat16"
    assert resolve(facts=replace(FACTS, format="q4_k")).kv_cache_dtype.value == "float16"
    assert resolve(kv_cache_dtype="float32").kv_cache_dtype.value == "float32"


def blocks(memory: int = 8 * GIB, least: int = 128, **options: object) -> int:
    config = EngineConfig.from_options(**options)
    model = resolve_model(config, FACTS, MACHINE, ENVIRONMENT, ("scalar",))
    return resolve_cache(config, model, PAGE, least, memory).num_blocks.value


def test_cache_size() -> None:
    assert blocks() == 4096  # 4 GiB
    assert blocks(memory=2 * GIB) == 1024  # half of what is free
    assert blocks(memory=2 * GIB, gpu_memory_utilization=0.25) == 512
    assert blocks(max_num_seqs=2) == 256  # two sequences of full length
    assert blocks(kv_cache_memory_bytes="1GiB") == 1024
    assert blocks(num_gpu_blocks_override=130) == 130


def test_a_cache_too_small_for_one_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len"):
        blocks(kv_cache_memory_bytes="64MiB")
    with pytest.raises(ConfigError, match="kv-cache-memory-bytes"):
        blocks(memory=GIB // 8)


def test_what_is_missing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="tensor_parallel_size"):
        resolve(tensor_parallel_size=2)
    with pytest.raises(UnsupportedError, match="trust_remote_code"):
        resolve(trust_remote_code=True)


def test_weight_cache() -> None:
    assert resolve().weight_cache_dir.value == Path("/cache/weights")
    assert resolve(weight_cache_dir="/elsewhere").weight_cache_dir.value == Path("/elsewhere")
    assert resolve(weight_cache_dir="~no-such-user-here/x").weight_cache_dir.value == Path("~no-such-user-here/x")
    off = resolve_model(
        EngineConfig.from_options(weight_cache=False), FACTS, MACHINE, ENVIRONMENT, ("scalar",)
    ).weight_cache_dir
    assert off.value is None


@pytest.mark.parametrize("profile", ["latency", "throughput", "memory"])
def test_a_profile_sets_what_belongs_together_and_says_so(profile: str) -> None:
    model = resolve(profile=profile)
    cache = resolve_cache(EngineConfig.from_options(profile=profile), model, PAGE, 128, 256 * GIB)
    usual = resolve()
    more = profile == "throughput"
    assert (model.max_num_seqs.value > usual.max_num_seqs.value) == more
    assert (model.max_num_batched_tokens.value > usual.max_num_batched_tokens.value) == more
    assert (model.target_itl_ms.value > 0) == (profile == "latency")
    said = {name for name, choice in ResolvedConfig(model, cache).choices() if choice.reason.startswith("profile")}
    assert {"max_num_seqs", "max_num_batched_tokens"} <= said
    assert ("target_itl_ms" in said) == (profile == "latency")


def test_what_is_asked_for_wins_over_the_profile() -> None:
    asked = {"max_num_seqs": 5, "max_num_batched_tokens": 77, "target_itl_ms": 12.5}
    model = resolve(profile="latency", **asked)
    for name, value in asked.items():
        choice = getattr(model, name)
        assert (choice.value, choice.reason) == (value, "asked for")
    assert resolve(profile="latency", enable_chunked_prefill=False).target_itl_ms.value == 0.0
    assert blocks(memory=2 * GIB, profile="memory") == 409  # a fifth of what is free
    assert blocks(memory=2 * GIB, profile="memory", gpu_memory_utilization=0.25) == 512


@pytest.mark.parametrize(
    ("options", "format", "expected"),
    [
        ({}, "bf16", ("none", "bf16", "exact")),
        ({}, "q4_k", ("none", "q4_k", "int16")),
        ({"linear_compute": "int8"}, "q4_k", ("none", "q4_k", "int8")),
        ({"quantization": "int8"}, "bf16", ("int8", "int8_row_f32_rotated", "int8")),
        ({"quantization": "int4", "linear_compute": "exact"}, "f16", ("int4", "int4s_row_f32_rotated", "exact")),
        ({"quantization": "gguf"}, "q8_0", ("none", "q8_0", "int16")),
        ({"linear_compute": "exact"}, "q6_k", ("none", "q6_k", "exact")),
        ({"linear_compute": "int16"}, "bf16", ("none", "bf16", "int16")),
        ({"quantization": "fp8"}, "bf16", ("fp8", "e4m3_row_f32", "exact")),
        ({}, "e4m3_row_f32", ("none", "e4m3_row_f32", "exact")),
        ({"quantization": "auto"}, "f32", ("none", "f32", "exact")),
    ],
)
def test_what_products_do_with_their_inputs(options: dict[str, Any], format: str, expected: tuple[str, ...]) -> None:
    model = resolve(facts=replace(FACTS, format=format), **options)
    assert (model.quantization.value, model.weights.value, model.linear_compute.value) == expected
    assert all(choice.reason for choice in (model.quantization, model.weights, model.linear_compute))
    assert ("q4_1" in model.weights.reason) == (expected[0] == "int4")


@pytest.mark.parametrize(
    ("options", "facts", "expected"),
    [
        ({"quantization": "int8"}, {}, "int8"),
        ({"quantization": "int4", "kv_cache_dtype_skip_layers": ("first",)}, {}, "int8"),
        ({"quantization": "int8", "kv_cache_dtype": "float16"}, {}, "float16"),
        ({"quantization": "int8", "linear_compute": "exact"}, {}, "float16"),
        ({"quantization": "int8", "backend": "torch"}, {}, "float16"),
        ({"quantization": "fp8"}, {}, "float16"),
        ({"quantization": "int8"}, {"rotates": False}, "float16"),
        ({"quantization": "int8"}, {"whole": True}, "float32"),
        ({"linear_compute": "int8"}, {"format": "q8_0"}, "float16"),
    ],
)
def test_where_everything_is_rounded_to_8_bits_the_cache_is(
    options: dict[str, Any], facts: dict[str, Any], expected: str
) -> None:
    chosen = resolve(facts=replace(FACTS, **facts), **options).kv_cache_dtype
    assert chosen.value == expected
    assert chosen.reason


def test_layers_cannot_be_left_out_of_what_is_not_quantized() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype auto quantizes none"):
        resolve(kv_cache_dtype_skip_layers=("first",))
    with pytest.raises(ConfigError, match="choose fp8_e4m3 or fp8_e5m2, or leave it out"):
        resolve(facts=replace(FACTS, rotates=False), quantization="int8", kv_cache_dtype_skip_layers=("first",))


@pytest.mark.parametrize(
    ("asked", "format", "error", "words"),
    [
        (
            "awq",
            "bf16",
            ConfigError,
            "speaks of no quantization, its weights are bf16; leave it out, or let one of int8",
        ),
        ("bitsandbytes", "bf16", UnsupportedError, "int8, int4, fp8 round"),
        ("gptq", "q4_k", ConfigError, "it is a GGUF file, its weights are q4_k already"),
        ("int3", "bf16", ConfigError, "unknown quantization 'int3'"),
        ("int8", "q4_k", ConfigError, "are q4_k already"),
        ("gguf", "bf16", ConfigError, "no quantized GGUF file"),
    ],
)
def test_quantization_that_cannot_be(asked: str, format: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve(facts=replace(FACTS, format=format), quantization=asked)


def test_a_checkpoint_with_more_plain_weights_than_codes_is_told_as_quantized() -> None:
    with pytest.raises(ConfigError, match="the checkpoint is awq already, and rounding it again would only lose"):
        resolve(facts=replace(FACTS, format="bf16", method="awq: 4 bits"), quantization="int8")


@pytest.mark.parametrize(
    ("coded", "expected"), [("int4z_g128_f16", "int16"), ("e4m3_row_f32", "exact"), ("f32", "exact")]
)
def test_a_large_embedding_does_not_decide_how_layers_compute(coded: str, expected: str) -> None:
    facts = replace(FACTS, format="bf16", method="awq: 4 bits", coded=coded)
    model = resolve(facts=facts)
    assert (model.weights.value, model.linear_compute.value) == ("bf16", expected)


def test_the_torch_backend_multiplies_floats() -> None:
    assert resolve(facts=replace(FACTS, format="q8_0"), backend="torch").linear_compute.value == "exact"
    for asked in ("int8", "int16"):
        with pytest.raises(UnsupportedError, match=f"linear_compute {asked}"):
            resolve(backend="torch", linear_compute=asked)


def test_shares_need_the_policy_that_keeps_them() -> None:
    with pytest.raises(ConfigError, match="tenant_weights"):
        resolve(tenant_weights=("ann=2",))
    assert resolve(tenant_weights=("ann=2",), scheduling_policy="fair")
