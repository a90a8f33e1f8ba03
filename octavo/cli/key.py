"""`octavo key add FILE --name NAME`: makes an API key, shows it once, and keeps only its hash."""

import sys
from collections.abc import Sequence
from pathlib import Path

from octavo.config.cli import Parser
from octavo.errors import ConfigError

_LEAST_CHARACTERS = 20  # of a key that somebody brings: the file's hash is a fast one


def run(arguments: Sequence[str]) -> int:
    """Add one key to a file."""
    given = _parser().parse_args(arguments)
    if given.action != "add":
        raise ConfigError(f"key: no action {given.action!r}; there is: add")
    from octavo.serving.keys import add_entry, entry_for, new_key

    key = _brought() if given.stdin else new_key()
    limits = {name: getattr(given, name) for name in _LIMITS}
    add_entry(Path(given.file), entry_for(given.name, key, **limits))
    if not given.stdin:
        print(key)
    print(f"added to {given.file} for {given.name}; a running server takes it up within a second", file=sys.stderr)
    return 0


_LIMITS = {
    "requests_per_minute": (int, "N", "POST requests a minute"),
    "concurrent_requests": (int, "N", "requests at once"),
    "tokens_per_minute": (int, "N", "tokens of prompts and answers a minute"),
    "weight": (float, "X", "share under --scheduling-policy fair (default: 1)"),
}


def _parser() -> Parser:
    parser = Parser(
        prog="octavo key",
        usage="octavo key add FILE --name NAME [options]",
        description="Make an API key for --api-key-file. The key is printed once; the file keeps its SHA-256.",
        epilog="To take a key back, delete its entry in the file. To replace one, add a second under the same name, "
        "and delete the first when nobody uses it any more: keys of one name share its limits.",
    )
    parser.add_argument("action", metavar="add", help="what to do")
    parser.add_argument("file", metavar="FILE", help="the key file; made when it is not there")
    parser.add_argument("--name", required=True, help="whose key it is; shown in the access log, never secret")
    parser.add_argument("--stdin", action="store_true", help="read the key from standard input instead of making one")
    for name, (kind, metavar, text) in _LIMITS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, type=kind, metavar=metavar, help=text)
    return parser


def _brought() -> str:
    key = sys.stdin.readline().strip()
    if len(key) < _LEAST_CHARACTERS:
        raise ConfigError(f"key: a key needs {_LEAST_CHARACTERS} characters at least, got {len(key)}")
    return key
