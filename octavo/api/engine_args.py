"""How keywords of vLLM's classes become a configuration, at once or held together as `EngineArgs`."""

import argparse
import warnings
from typing import Any

from octavo.config.cli import ENGINE_SECTIONS, add_config_flags
from octavo.config.compatibility import FOREIGN, split_foreign
from octavo.config.engine import EngineConfig, option_names
from octavo.telemetry.log import configure


def read_options(model: str | None, options: dict[str, Any]) -> EngineConfig:
    """The configuration of an engine in this process; what has no meaning here is answered with a warning.

    Raises:
        ConfigError, UnsupportedError: an option is wrong or asks for something that Octavo does not have.
    """
    own, notes = split_foreign(options)
    for note in notes:
        warnings.warn(note, stacklevel=3)  # the caller of the class
    config = EngineConfig.from_options(model=model, **own)
    if "log_level" in own:  # a library stays silent unless it is asked to speak
        configure(config.telemetry.log_level)
    return config


class EngineArgs:
    """Keywords of `LLM(...)`, checked when they are given.

    Raises:
        ConfigError, UnsupportedError: an option is wrong, or asks for something that Octavo does not have.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        own, _ = split_foreign(options)
        EngineConfig.from_options(model=model, **own)
        self.options: dict[str, Any] = {"model": model, **options}

    def __getattr__(self, name: str) -> Any:
        if name in option_names():
            config = EngineConfig.from_options(**split_foreign(self.options)[0])
            return getattr(getattr(config, option_names()[name]), name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")

    @staticmethod
    def add_cli_args(parser: Any) -> Any:
        """Add a flag for every option to an argparse parser."""
        add_config_flags(parser, ENGINE_SECTIONS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """Of a namespace with those flags; other names in it are passed over."""
        known = set(option_names()) | set(FOREIGN)
        return cls(**{name: value for name, value in vars(args).items() if name in known and value is not None})


class AsyncEngineArgs(EngineArgs):
    """The same, for `AsyncLLM`."""
