"""Command-line flags, generated from the fields of `config/engine.py`: there is no second list of them."""

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from octavo.config.compatibility import FOREIGN, split_foreign
from octavo.config.engine import SECTIONS, EngineConfig
from octavo.config.environment import read_environment
from octavo.errors import ConfigError

_TITLES = {
    "model": "model",
    "cache": "KV cache",
    "scheduling": "scheduling",
    "execution": "execution",
    "serving": "server",
    "telemetry": "telemetry",
}
ENGINE_SECTIONS = ("model", "cache", "scheduling", "execution", "telemetry")


class Parser(argparse.ArgumentParser):
    """An argument parser that takes underscores for dashes, and answers a wrong flag with the nearest right one."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse, with `--some_flag` read as `--some-flag`."""
        words = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        for word in words:
            if not _is_utf8(word):
                shown = os.fsencode(word).decode("utf-8", "backslashreplace")
                self.error(f"{shown} is not UTF-8, as names and texts have to be\nrename the file, or link to it")
        known, unknown = super().parse_known_args(words, namespace or argparse.Namespace())
        if unknown:
            self.error(self._explain(unknown))
        return known

    def error(self, message: str) -> NoReturn:
        """One line and a hint, exit code 2."""
        text, _, hint = message.partition("\n")
        print(f"error: {text}\n  hint: {hint or f'{self.prog} --help lists everything'}", file=sys.stderr)
        raise SystemExit(2)

    def _explain(self, unknown: Sequence[str]) -> str:
        flag = next((word for word in unknown if word.startswith("-")), None)
        if flag is None:
            return f"unexpected argument '{unknown[0]}'"
        name = flag.split("=")[0]
        near = difflib.get_close_matches(name, self._flags(), n=1, cutoff=0.7)
        return f"unknown flag {name}" + (f"\ndid you mean {near[0]}?" if near else "")

    def _flags(self) -> list[str]:
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [flag for action in shown for flag in action.option_strings]


def _is_utf8(word: str) -> bool:
    """What the command line holds beyond UTF-8 stands in its words as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def add_config_flags(parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS)) -> None:
    """One flag for every field of `sections`, grouped, and `--config FILE`. Absent flags leave nothing behind."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of options; the command line wins over it")
    for section in sections:
        group = parser.add_argument_group(_TITLES[section])
        hints = get_type_hints(SECTIONS[section])
        for field in fields(SECTIONS[section]):
            _add_flag(group, field, hints[field.name])
    for name in FOREIGN:  # vLLM's; hidden, answered by split_foreign
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            nargs="?",
            const=True,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def _add_flag(group: Any, field: "Field[Any]", hint: object) -> None:
    flags = [*field.metadata["flags"], f"--{field.name.replace('_', '-')}"]
    common = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
    if hint is bool:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(hint) is tuple:
        group.add_argument(*flags, nargs="+", metavar=field.metadata["metavar"] or "NAME", **common)
    elif get_origin(hint) is Literal:
        group.add_argument(*flags, metavar="{" + ",".join(map(str, get_args(hint))) + "}", **common)
    else:
        group.add_argument(*flags, metavar=field.metadata["metavar"] or _metavar(hint), **common)


def _metavar(hint: object) -> str:
    kinds = {int: "N", float: "X", str: "TEXT"}
    return next((kinds[kind] for kind in (hint, *get_args(hint)) if isinstance(kind, type) and kind in kinds), "VALUE")


def _help(field: "Field[Any]") -> str:
    text = str(field.metadata["help"])
    default = field.default
    if default is True:
        return f"{text} (default: on)"
    if default is False or default in (None, "", ()) or default is MISSING or "default" in text:
        return text.replace("%", "%%")
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default  # pyright: ignore
    return f"{text} (default: {shown})".replace("%", "%%")


def config_from(arguments: argparse.Namespace, **more: object) -> tuple[EngineConfig, list[str]]:
    """The configuration asked for, and notes on what has no effect. `more` wins over flags, they over the `--config`
    file, it over the environment.

    Raises:
        ConfigError: an unknown option or a value out of range.
        UnsupportedError: an option of vLLM that Octavo does not have.
    """
    known = {field.name for section in SECTIONS.values() for field in fields(section)} | set(FOREIGN)
    given = {name: value for name, value in vars(arguments).items() if name in known}
    path = getattr(arguments, "config", None)
    options = {**_from_environment(), **(read_config_file(Path(path)) if path else {}), **given, **more}
    own, notes = split_foreign(options)
    return EngineConfig.from_options(**own), notes


def _from_environment() -> dict[str, Any]:
    """What environment variables say about options; threads and isa are resolved later, with their reason."""
    environment = read_environment()
    named = {
        "api_key": (environment.api_key,) if environment.api_key else None,
        "log_level": environment.log_level,
        "keep_alive_timeout": environment.keep_alive_timeout,
    }
    return {name: value for name, value in named.items() if value is not None}


def read_config_file(path: Path) -> dict[str, Any]:
    """Options of a YAML file: a flat mapping, names with dashes or underscores.

    Raises:
        ConfigError: no such file, or not such a mapping.
    """
    import yaml  # 20 ms, and most runs have no file

    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: a mapping of option names to values is expected")
    mapping: dict[object, Any] = content  # pyright: ignore[reportUnknownVariableType]
    return {str(name).lstrip("-").replace("-", "_"): value for name, value in mapping.items()}
