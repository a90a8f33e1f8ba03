"""Flags: generated from the options, forgiving in spelling, strict in meaning."""

from pathlib import Path

import pytest

from octavo.config.cli import Parser, add_config_flags, config_from, read_config_file
from octavo.config.compatibility import FOREIGN, split_foreign
from octavo.config.engine import EngineConfig, option_names
from octavo.errors import ConfigError, UnsupportedError


def parse(*words: str) -> tuple[EngineConfig, list[str]]:
    parser = Parser("octavo test")
    add_config_flags(parser)
    return config_from(parser.parse_args(words))


def test_every_option_has_a_flag() -> None:
    parser = Parser("octavo test")
    add_config_flags(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {f"--{name.replace('_', '-')}" for name in option_names()} <= flags
    assert parser.format_help()


def test_dashes_underscores_and_equals() -> None:
    for words in (["--max-model-len", "4K"], ["--max_model_len", "4K"], ["--max_model_len=4K"]):
        assert parse(*words)[0].model.max_model_len == 4096


def test_an_underscore_in_a_value_stays() -> None:
    assert parse("--model=my_model")[0].model.model == "my_model"
    assert parse("--api-key", "a_b")[0].serving.api_key == ("a_b",)


def test_a_store_that_is_none_is_not_the_default_one(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("response-store: none\nfile-store: none\n")
    for words in (["--response-store", "none", "--file-store=none"], ["--config", str(tmp_path / "options.yaml")]):
        serving = parse(*words)[0].serving
        assert (serving.response_store, serving.file_store) == ("none", "none")
    assert parse("--hf-token", "none")[0].model.hf_token is None


def test_switches_go_both_ways() -> None:
    assert not parse("--no-enable-prefix-caching")[0].cache.enable_prefix_caching
    assert parse("--disable-log-stats")[0].telemetry.disable_log_stats


def test_lists_and_short_flags() -> None:
    config = parse("-tp", "1", "--served-model-name", "a", "b")[0]
    assert config.serving.served_model_name == ("a", "b")


def test_a_list_may_be_json_as_in_vllm() -> None:
    config = parse("--allowed-origins", '["https://a.example", "https://b.example"]', "--api-key", "k1", "k2")[0]
    assert config.serving.allowed_origins == ("https://a.example", "https://b.example")
    assert config.serving.api_key == ("k1", "k2")
    with pytest.raises(ConfigError, match="allowed_origins"):
        parse("--allowed-origins", "[a,]")


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--max-modl-len", "3")
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown flag --max-modl-len")
    assert "did you mean --max-model-len?" in error
    assert "Traceback" not in error


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text("model: from-file\nmax-num-seqs: 7\nenable_prefix_caching: false\nserved-model-name: [x, y]\n")
    config = parse("--config", str(path), "--model", "from-flag")[0]
    assert config.model.model == "from-flag"
    assert config.scheduling.max_num_seqs == 7
    assert not config.cache.enable_prefix_caching
    assert config.serving.served_model_name == ("x", "y")


def test_flags_win_over_the_file_and_it_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "from-environment")
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "error")
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "65")
    path = tmp_path / "octavo.yaml"
    path.write_text("log-level: warning\n")
    config = parse("--config", str(path))[0]
    assert (config.serving.api_key, config.telemetry.log_level) == (("from-environment",), "warning")
    assert config.serving.keep_alive_timeout == 65.0
    config = parse("--api-key", "from-flag", "--log-level", "debug")[0]
    assert (config.serving.api_key, config.telemetry.log_level) == (("from-flag",), "debug")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "just text"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"octavo\.yaml"):
        read_config_file(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_config_file(Path("nowhere.yaml"))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 5000, b"a: 1\x00", b"a: &a [*a"])
def test_what_is_no_yaml_is_said_in_one_line(tmp_path, content):
    path = tmp_path / "octavo.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"octavo\.yaml: not YAML"):
        read_config_file(path)


def test_vllm_options_are_answered() -> None:
    own, notes = split_foreign({"model": "m", "swap_space": 4, "enable_lora": False, "load_format": "auto"})
    assert own == {"model": "m"}
    assert len(notes) == 1
    assert notes[0].startswith("swap_space")
    with pytest.raises(UnsupportedError, match="enable_lora"):
        split_foreign({"enable_lora": True})
    with pytest.raises(UnsupportedError, match="load_format"):
        split_foreign({"load_format": "tensorizer"})


def test_vllm_flags_are_answered() -> None:
    assert parse("--swap-space", "4")[1]
    assert parse("--async-scheduling")[1] == []
    with pytest.raises(UnsupportedError, match="LoRA"):
        parse("--enable-lora")
    assert parse("--tool-call-parser", "hermes", "--enable-auto-tool-choice")[1] == []


def test_own_and_foreign_names_never_meet() -> None:
    assert not set(FOREIGN) & set(option_names())
