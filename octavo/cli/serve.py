"""`octavo serve`: reads flags and hands over to the server."""

from collections.abc import Sequence

from octavo.cli.options import command_parser, read_config
from octavo.config.engine import SECTIONS


def run(arguments: Sequence[str]) -> int:
    """Serve until the process is told to stop."""
    parser = command_parser("serve", "Answer over HTTP with an OpenAI-compatible API.", tuple(SECTIONS))
    config = read_config(parser.parse_args(arguments))
    from octavo.serving.server import run_server  # after the flags are known to be right

    return run_server(config)
