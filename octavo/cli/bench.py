"""`octavo bench`: figures of a model in this process, or of a running server under load."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from octavo.cli.bench_figures import Load, table
from octavo.cli.options import command_parser, read_config
from octavo.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Measure and print a table, or JSON."""
    parser = command_parser("bench", "Measure throughput and latency of a model here, or of a server with --url.")
    _add_flags(parser)
    parsed = parser.parse_args(arguments)
    load = Load(parsed.requests, parsed.prompt_tokens, parsed.output_tokens, parsed.concurrency, parsed.rate)
    if min(load.requests, load.prompt_tokens, load.output_tokens, load.concurrency) < 1:
        raise ConfigError("requests, prompt-tokens, output-tokens and concurrency must be at least 1")
    if parsed.url:
        from octavo.cli.bench_server import measure_server

        lines = [measure_server(parsed.url, getattr(parsed, "model", None) or parsed.model_argument, load)]
    else:
        from octavo.cli.bench_offline import measure_offline

        lines = list(measure_offline(read_config(parsed), load))
    if parsed.json:
        print(json.dumps([asdict(line) for line in lines]))
    else:
        print("\n".join(table(lines)))
    return 0


def _add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--url", metavar="URL", help="measure the server at this address, e.g. http://127.0.0.1:8000")
    group.add_argument(
        "--requests", type=int, default=32, metavar="N", help="prompts of the throughput run (default: 32)"
    )
    group.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="length of a prompt (default: 128)")
    group.add_argument("--output-tokens", type=int, default=64, metavar="N", help="length of an answer (default: 64)")
    group.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="with --url: clients at a time (default: 16)"
    )
    group.add_argument(
        "--rate", type=float, default=0.0, metavar="X", help="with --url: requests a second, evenly (default: no limit)"
    )
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")
