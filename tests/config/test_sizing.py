"""The size of the KV cache: what flags ask for, what a machine of any size gives, and what is offered instead."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.cache_types import CacheTypes
from octavo.config.engine import CacheConfig, EngineConfig
from octavo.config.environment import Environment, read_environment
from octavo.config.machine import Machine
from octavo.config.profile import PROFILES
from octavo.config.resolve import ModelFacts, resolve_model
from octavo.config.resolve_cache import resolve_cache
from octavo.config.sizing import (
    Fit,
    Request,
    Setup,
    Wish,
    alternatives,
    least,
    measure,
    read_wish,
    refusal,
)
from octavo.config.values import parse_cache_size, parse_size
from octavo.errors import ConfigError

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class FakeFootprint:
    """Needs that are easy to compute by hand; `windowed`: a group of 512 tokens beside the full one."""

    weight_bytes: int = GIB
    token_bytes: int = 64 << 10  # in two-byte types
    windowed: bool = False

    def buffer_bytes(self, setup: Setup) -> int:
        return (setup.max_num_batched_tokens * 16 + setup.max_num_seqs * 512 + setup.max_model_len) << 10

    def page_bytes(self, setup: Setup) -> int:
        return self.token_bytes * setup.block_size * (2 if setup.cache_types.dtype == "float32" else 1)

    def sequence_blocks(self, setup: Setup) -> int:
        whole = -(-setup.max_model_len // setup.block_size)
        window = min(whole, (512 + setup.max_num_batched_tokens) // setup.block_size + 1)
        return whole + (window if self.windowed else 0)


SETUP = Setup(8192, 16, 512, CacheTypes("float32"), 16)
FOOTPRINT = FakeFootprint()


def request(available: int, setup: Setup = SETUP, sequences: int = 1, **options: Any) -> Request:
    wish = read_wish(EngineConfig.from_options(**options).cache)
    return Request(setup, wish, PROFILES["balanced"], "the default", available, sequences=sequences)


def fit(available: int, **options: Any) -> Fit:
    return measure(FOOTPRINT, request(available, **options))


# --- what flags ask for ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.9", 0.9),
        ("90%", 0.9),
        ("1", 1.0),
        (".5", 0.5),
        ("8GiB", 8 * GIB),
        ("512m", 512 * MIB),
        ("8589934592", 8 * GIB),
    ],
)
def test_a_share_or_a_size(text: str, value: float) -> None:
    assert parse_cache_size(text) == value
    assert type(parse_cache_size(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["", "0", "0GiB", "1.5", "-1", "101%", "0%", "lots", "8 apples", "nan", "inf", "1e400", "64"]
)
def test_neither_a_share_nor_a_size(text: str) -> None:
    with pytest.raises(ConfigError, match="kv_cache_size"):
        EngineConfig.from_options(kv_cache_size=text)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_size": "0.9", "kv_cache_memory_bytes": "2GiB"},
        {"kv_cache_size": "0.9", "gpu_memory_utilization": 0.5},
        {"num_gpu_blocks_override": 10, "kv_cache_memory_bytes": "2GiB"},
        {"num_gpu_blocks_override": 10, "leave_free": "2GiB"},
    ],
)
def test_flags_that_contradict_each_other_are_named_together(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give one of them") as caught:
        read_wish(EngineConfig.from_options(**options).cache)
    for name, value in options.items():
        assert f"{name} {value}" in str(caught.value)


def test_contradictions_are_told_before_a_model_is_loaded() -> None:
    config = EngineConfig.from_options(kv_cache_size="0.9", kv_cache_memory_bytes="2GiB")
    machine = Machine((0,), (0,), None, 8 * GIB, 8 * GIB)
    with pytest.raises(ConfigError, match="give one of them"):
        resolve_model(config, ModelFacts("m", 64, 100, "bf16", 1), machine, Environment(Path("/c")), ("scalar",))


def test_vllms_variable_counts_where_no_flag_does() -> None:
    assert read_environment({"VLLM_CPU_KVCACHE_SPACE": "4"}).kv_cache_bytes == 4 * GIB
    assert read_environment({"VLLM_CPU_KVCACHE_SPACE": "0"}).kv_cache_bytes is None
    with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE"):
        read_environment({"VLLM_CPU_KVCACHE_SPACE": "4GiB"})
    assert read_wish(CacheConfig(), 4 * GIB).size == 4 * GIB
    assert read_wish(CacheConfig(kv_cache_size="0.5"), 4 * GIB).share == 0.5


# --- what it comes to ---


def test_a_share_is_of_what_weights_and_buffers_leave() -> None:
    found = fit(16 * GIB, kv_cache_size="0.9")
    assert found.free == 16 * GIB - GIB - FOOTPRINT.buffer_bytes(SETUP)
    assert found.blocks == int(found.free * 0.9) // found.page_bytes
    assert not found.problem


def test_leave_free_alone_takes_the_rest_and_bounds_a_share() -> None:
    found = fit(16 * GIB, leave_free="2GiB")
    assert found.free - found.cache_bytes - 2 * GIB in range(found.page_bytes)
    both = fit(16 * GIB, leave_free="2GiB", kv_cache_size="0.5")
    assert both.blocks == (found.free - 2 * GIB) // 2 // both.page_bytes


@pytest.mark.parametrize("option", ["kv_cache_size", "kv_cache_memory_bytes"])
def test_sizes_are_taken_as_they_are(option: str) -> None:
    assert fit(16 * GIB, **{option: "3GiB"}).cache_bytes == 3 * GIB


def test_what_slower_tiers_were_promised_is_not_free() -> None:
    asked = request(16 * GIB, kv_cache_size="1")
    assert measure(FOOTPRINT, asked).free - measure(FOOTPRINT, replace(asked, reserved=GIB)).free == GIB


@pytest.mark.parametrize(
    ("available", "options", "words"),
    [
        (16 * GIB, {"kv_cache_size": "20GiB"}, ["20.0 GiB", "15.0 GiB", "free"]),
        (16 * GIB, {"kv_cache_memory_bytes": "14GiB", "leave_free": "2GiB"}, ["14.0 GiB", "2.0 GiB"]),
        (16 * GIB, {"leave_free": "16GiB"}, ["leave_free 16.0 GiB", "15.0 GiB"]),
        (16 * GIB, {"kv_cache_size": "64MiB"}, ["32 blocks", "64.0 MiB", "8192", "1.0 GiB"]),
        (16 * GIB, {"num_gpu_blocks_override": 511}, ["511 blocks", "512 blocks"]),
        (GIB // 2, {}, ["weights take 1.0 GiB", "512.0 MiB"]),
    ],
)
def test_impossible_sizes_are_refused_with_numbers(available: int, options: dict[str, Any], words: list[str]) -> None:
    problem = fit(available, **options).problem
    assert all(word in problem for word in words), problem


def test_a_number_of_blocks_looks_at_no_memory() -> None:
    assert not fit(0, num_gpu_blocks_override=512).problem


@pytest.mark.parametrize("memory", [0, 1, MIB, 100 * MIB, GIB, 2 * GIB, 8 * GIB, 64 * GIB, 1024 * GIB])
@pytest.mark.parametrize("options", [{}, {"kv_cache_size": "0.9"}, {"kv_cache_size": "2GiB"}, {"leave_free": "1GiB"}])
def test_machines_of_every_size_answer(memory: int, options: dict[str, Any]) -> None:
    found = fit(memory, **options)
    if not found.problem:
        assert found.blocks >= found.sequence_blocks
        assert found.weight_bytes + found.buffer_bytes + found.cache_bytes <= memory
    else:
        assert memory < 8 * GIB, found.problem


def test_resolve_takes_the_same_number() -> None:
    config = EngineConfig.from_options(kv_cache_size="0.9")
    machine = Machine((0,), (0,), None, 16 * GIB, 16 * GIB)
    model = resolve_model(config, ModelFacts("m", 8192, 100, "f16", 1), machine, Environment(Path("/c")), ("scalar",))
    found = resolve_cache(config, model, MIB, 512, 10 * GIB)
    assert found.num_blocks.value == 9216
    assert "90% of the 10.0 GiB" in found.num_blocks.reason
    assert resolve_cache(EngineConfig(), model, MIB, 512, 10 * GIB, 2 * GIB).num_blocks.value == 2048


def test_a_step_is_no_larger_than_all_sequences_together() -> None:
    config = EngineConfig.from_options(max_model_len=32, max_num_seqs=2)
    machine = Machine((0,), (0,), None, 16 * GIB, 16 * GIB)
    model = resolve_model(config, ModelFacts("m", 8192, 100, "f16", 1), machine, Environment(Path("/c")), ("scalar",))
    assert model.max_num_batched_tokens.value == 64


# --- what is offered instead ---


def applied(asked: Request, flags: str) -> Request:
    """`asked` with the flags of an alternative."""
    words = flags.split()
    for flag, text in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        if name == "kv_cache_size":
            wish = read_wish(CacheConfig(kv_cache_size=text))
            asked = replace(asked, wish=replace(wish, leave_free=asked.wish.leave_free))
        elif name == "leave_free":
            asked = replace(asked, wish=replace(asked.wish, leave_free=parse_size(text)))
        elif name == "num_gpu_blocks_override":
            asked = replace(asked, wish=Wish(name, blocks=int(text)))
        elif name == "kv_cache_dtype":
            asked = replace(asked, setup=asked.setup.with_cache(text))
        else:
            asked = replace(asked, setup=replace(asked.setup, **{name: int(text)}))
    return asked


def test_the_default_share_is_raised_before_anything_is_given_up() -> None:
    asked = request(GIB + 1900 * MIB)
    assert measure(FOOTPRINT, asked).problem
    flags = [alternative.flags for alternative in alternatives(FOOTPRINT, asked)]
    assert flags[0] == "--kv-cache-size 1024MiB"
    assert flags[1].startswith("--max-model-len ")
    assert flags[2].startswith("--kv-cache-dtype ")


def test_the_longest_context_that_fits_is_offered() -> None:
    asked = request(4 * GIB, kv_cache_size="512MiB")
    (length,) = [a.flags.split()[1] for a in alternatives(FOOTPRINT, asked) if a.flags.startswith("--max-model-len")]
    assert int(length) == 4096
    assert measure(FOOTPRINT, applied(asked, f"--max-model-len {4096 + 16}")).problem


def test_a_smaller_step_is_offered_where_windows_grow_with_it() -> None:
    footprint = FakeFootprint(windowed=True)
    setup = replace(SETUP, max_num_batched_tokens=8192).with_cache("float16")
    asked = request(16 * GIB, setup, kv_cache_size=f"{(512 + 300) * MIB}")
    flags = [alternative.flags for alternative in alternatives(footprint, asked)]
    assert "--max-num-seqs 8 --max-num-batched-tokens 4096" in flags


def test_a_smaller_file_is_offered_when_weights_do_not_fit() -> None:
    asked = request(3 * GIB, replace(SETUP, max_model_len=1024))
    large = FakeFootprint(weight_bytes=4 * GIB)
    files = [(f"--model model-{size}.gguf", FakeFootprint(weight_bytes=size * MIB)) for size in (500, 1000, 3500)]
    (only,) = alternatives(large, asked, files)
    assert only.flags == "--model model-1000.gguf"


def test_smaller_weights_are_offered_with_a_shorter_context_when_neither_alone_does() -> None:
    asked = request(3 * GIB, replace(SETUP, max_model_len=8192), kv_cache_size=f"{300 * MIB}")
    large = FakeFootprint(weight_bytes=4 * GIB)
    (only,) = alternatives(large, asked, [("--quantization int8", FakeFootprint(weight_bytes=2 * GIB))])
    *flags, length = only.flags.split()
    assert flags == ["--quantization", "int8", "--max-model-len"]
    assert 0 < int(length) < 8192


def test_where_nothing_fits_that_is_said() -> None:
    asked = request(100 * MIB)
    assert alternatives(FOOTPRINT, asked) == []
    assert "nothing smaller fits" in refusal(measure(FOOTPRINT, asked).problem, [])


def test_the_least_that_would_do_is_told_and_does() -> None:
    asked = request(100 * MIB)
    files = [("--quantization int8", FakeFootprint(weight_bytes=FOOTPRINT.weight_bytes // 2))]
    smallest = least(FOOTPRINT, asked, files)
    assert smallest.flags.startswith("--quantization int8 --max-model-len 64 --max-num-seqs 1 ")
    text = refusal(measure(FOOTPRINT, asked).problem, [], smallest)
    assert smallest.flags in text
    assert smallest.effect in text
    size = int(smallest.flags.rpartition(" ")[2].removesuffix("MiB")) * MIB
    tokens = int(smallest.flags.split("--max-num-batched-tokens ")[1].split()[0])
    setup = replace(SETUP, max_model_len=64, max_num_seqs=1, max_num_batched_tokens=tokens)
    if "--kv-cache-dtype " in smallest.flags:
        setup = setup.with_cache(smallest.flags.split("--kv-cache-dtype ")[1].split()[0])
    needed = files[0][1].weight_bytes + files[0][1].buffer_bytes(setup) + size
    assert not measure(files[0][1], request(needed + 1, setup, kv_cache_size=str(size))).problem
    assert measure(files[0][1], request(needed - MIB, setup, kv_cache_size=str(size))).problem


@given(
    available=st.integers(0, 6 * GIB),
    length=st.integers(1, 40_000),
    seqs=st.integers(1, 200),
    chunk=st.integers(1, 4096),
    sequences=st.integers(1, 3),
    windowed=st.booleans(),
    options=st.sampled_from(
        [
            {},
            {"kv_cache_size": "0.7"},
            {"kv_cache_size": "3GiB"},
            {"leave_free": "1GiB"},
            {"num_gpu_blocks_override": 9},
        ]
    ),
)
def test_whatever_is_offered_fits(
    available: int, length: int, seqs: int, chunk: int, sequences: int, windowed: bool, options: dict[str, Any]
) -> None:
    footprint = FakeFootprint(windowed=windowed)
    seqs = max(seqs, sequences)
    asked = request(available, Setup(length, seqs, max(chunk, seqs), CacheTypes("float32"), 16), sequences, **options)
    if measure(footprint, asked).problem:
        found = alternatives(footprint, asked)
        assert len(found) <= 3
        for alternative in found:
            changed = applied(asked, alternative.flags)
            assert not measure(footprint, changed).problem, alternative
