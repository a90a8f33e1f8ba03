"""`octavo bench`: figures of a model in this process, or of a running server under load."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from octavo.cli.options import command_parser, read_config
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: `requests` prompts of `prompt_tokens`, each continued by `output_tokens`."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int  # of a server's clients
    rate: float  # requests a second of a server's clients; 0: as fast as concurrency allows


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the result. Times in seconds, rates in tokens a second; None where it makes no sense."""

    what: str
    requests: int
    first_token: float | None
    first_token_p99: float | None
    per_token: float | None
    per_token_p99: float | None
    prompt_rate: float
    output_rate: float
    seconds: float


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


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The result for people."""
    yield (
        f"{'':22} {'requests':>8} {'first token ms':>16} {'per token ms':>16} {'prompt tok/s':>13} {'output tok/s':>13}"
    )
    yield f"{'':22} {'':>8} {'median     p99':>16} {'median     p99':>16}"
    for line in lines:
        yield (
            f"{line.what:22} {line.requests:>8} {_pair(line.first_token, line.first_token_p99):>16} "
            f"{_pair(line.per_token, line.per_token_p99):>16} {line.prompt_rate:>13.1f} {line.output_rate:>13.1f}"
        )


def _pair(median: float | None, high: float | None) -> str:
    if median is None or high is None:
        return "-"
    return f"{median * 1e3:.1f} {high * 1e3:>7.1f}"


def summary(
    what: str, firsts: Sequence[float], per_tokens: Sequence[float], tokens: tuple[int, int], seconds: float
) -> Line:
    """One row from each request's time to first token and mean time per further token; tokens: prompt, output."""
    return Line(
        what,
        len(firsts),
        quantile(firsts, 0.5),
        quantile(firsts, 0.99),
        quantile(per_tokens, 0.5),
        quantile(per_tokens, 0.99),
        tokens[0] / max(seconds, 1e-9),
        tokens[1] / max(seconds, 1e-9),
        seconds,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all are at most; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
