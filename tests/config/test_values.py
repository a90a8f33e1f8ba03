"""How people write numbers, sizes and choices, and what is refused."""

import pytest

from octavo.config.engine import SECTIONS, EngineConfig, option_names
from octavo.config.values import format_size, parse_count, parse_size
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("1M", 1 << 20), ("2m", 2_000_000), ("-1", -1)],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("1KiB", 1024), ("1 kb", 1000), ("8GiB", 8 << 30), ("1.5 GB", 1_500_000_000), ("2g", 2 << 30)],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "lots", "4kk", "1e3", "0x10", "--4", "4 k", "nan", "9" * 5000, "9" * 400 + "k"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_count(text)


@pytest.mark.parametrize(
    "text", ["", "big", "-1", "1.2.3GB", "GiB", "1e30", "0.9GiB of", "inf", "9" * 5000, "9" * 400 + "GiB", "9999999TiB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kv_cache_size", ["0", "0%", "-1", "1.5", "150%", "1e30", "nan", "0.9GiB of", "9" * 400 + "GiB"]),
        ("kv_cache_memory_bytes", ["-1", "1e30", "nan", "much", "9" * 5000]),
        ("leave_free", ["-1", "1e30", "0.9GiB of", "9" * 5000]),
        ("kv_host", ["-1", "1e30", "9" * 400 + "GiB"]),
        ("kv_disk", ["-1", "1e30", "9" * 400 + "GiB"]),
        ("gpu_memory_utilization", [0, -1, 1.5, float("nan"), "1e30", "9" * 5000]),
        ("cache_pin_budget", [-0.1, 1.1, float("nan"), "all"]),
        ("num_gpu_blocks_override", [0, -1, "1e30", "9" * 5000]),
        ("max_model_len", [0, -5, "1e30", "9" * 400 + "k"]),
        ("block_size", [0, -16, 17, "1e30"]),
    ],
)
def test_impossible_sizes_are_refused_in_a_line_that_names_the_option(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as refused:
            EngineConfig.from_options(**{name: value})
        assert str(refused.value).startswith(f"{name}: ")
        assert len(str(refused.value)) < 250


def test_sizes_are_shown_for_people() -> None:
    assert [format_size(n) for n in (12, 2048, 3 << 20, 5 << 30)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_options_take_what_vllm_takes() -> None:
    config = EngineConfig.from_options(
        model="m", dtype="half", max_model_len="4K", served_model_name="a", seed=None, gpu_memory_utilization=1
    )
    assert config.model.dtype == "float16"
    assert config.model.max_model_len == 4096
    assert config.model.seed == 0
    assert config.serving.served_model_name == ("a",)
    assert config.cache.gpu_memory_utilization == 1.0


@pytest.mark.parametrize("value", ["auto", -1, "-1"])
def test_max_model_len_may_be_left_to_octavo(value: object) -> None:
    assert EngineConfig.from_options(max_model_len=value).model.max_model_len is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_modl_len": 1}, "did you mean 'max_model_len'"),
        ({"block_size": 24}, "8, 16, 32, 64, 128"),
        ({"dtype": "int3"}, "dtype: 'int3'"),
        ({"port": 70000}, "port: 70000 is outside"),
        ({"threads": 0}, "threads"),
        ({"enable_prefix_caching": "maybe"}, "neither true nor false"),
        ({"weight_cache_size": "much"}, "weight_cache_size"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_seqs": 2.5}, "max_num_seqs"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_options(**options)


def test_options_are_few_and_each_is_explained() -> None:
    names = option_names()
    served = sum(section == "serving" for section in names.values())
    assert len(names) - served <= 60
    assert served <= 45  # most of them vLLM's flags of its server
    for section in SECTIONS.values():
        for field in section.__dataclass_fields__.values():
            assert field.metadata["help"], field.name
