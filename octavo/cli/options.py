"""What several commands share: the model argument, engine flags, sampling flags, and notes on flags without effect."""

import argparse
import shutil
import sys
from collections.abc import Sequence

from octavo.config.cli import ENGINE_SECTIONS, Parser, add_config_flags, config_from
from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError

# Names and types of the sampling parameters that have a flag.
_SAMPLING: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "most tokens of an answer"),
    ("temperature", float, "0 takes the likeliest token, higher values vary more"),
    ("top_p", float, "draw among the likeliest tokens that together have this probability"),
    ("top_k", int, "draw among this many likeliest tokens; 0 is off"),
    ("min_p", float, "drop tokens below this share of the likeliest one's probability"),
    ("repetition_penalty", float, "above 1: repeat less"),
)


def command_parser(name: str, purpose: str, sections: Sequence[str] = ENGINE_SECTIONS) -> Parser:
    """A parser with the model argument and the engine's flags."""
    parser = Parser(
        prog=f"octavo {name}",
        description=purpose,
        usage=f"octavo {name} [MODEL] [options]",
        formatter_class=_Formatter,
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="directory, .gguf file or hub name")
    add_config_flags(parser, sections)
    return parser


class _Formatter(argparse.HelpFormatter):
    """Flags in one column, help in another, wide enough for the longest flags where the terminal is."""

    def __init__(self, prog: str) -> None:
        width = min(120, max(60, shutil.get_terminal_size((120, 24)).columns))
        super().__init__(prog, max_help_position=width // 3, width=width)


class WideFormatter(_Formatter, argparse.RawDescriptionHelpFormatter):
    """The same, for commands that explain more: description and epilogue stay as they are written."""


def read_config(arguments: argparse.Namespace, **more: object) -> EngineConfig:
    """The configuration that the command line asks for. Notes on flags without effect go to standard error."""
    named, flagged = arguments.model_argument, getattr(arguments, "model", None)
    if named is not None and flagged is not None and named != flagged:
        raise ConfigError(f"two models are named: {named} and --model {flagged}")
    if named is not None:
        more["model"] = named
    config, notes = config_from(arguments, **more)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return config


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the usual sampling parameters. Those not given keep the model's defaults; --seed is the engine's."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _SAMPLING:
        flag, letter = f"--{name.replace('_', '-')}", "N" if kind is int else "X"
        group.add_argument(flag, dest=f"sampling_{name}", type=kind, metavar=letter, help=text)


def sampling_values(arguments: argparse.Namespace) -> dict[str, object]:
    """The sampling parameters that were given."""
    named = {name: getattr(arguments, f"sampling_{name}", None) for name, _, _ in _SAMPLING}
    return {name: value for name, value in named.items() if value is not None}
