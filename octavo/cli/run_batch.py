"""`octavo run-batch`: answers a file of requests, one a line, and goes on where an earlier run of it was broken off."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from octavo.cli.options import command_parser, read_config
from octavo.config.engine import SECTIONS, EngineConfig
from octavo.errors import ConfigError
from octavo.telemetry.bar import open_bar

if TYPE_CHECKING:
    from octavo.serving.batches.offline import BatchFile, Journal

_STANDARD = "-"


def run(arguments: Sequence[str]) -> int:
    """Run; results go to -o, figures to standard error. Lines that failed are no failure of the command."""
    parser = command_parser(
        "run-batch", "Answer a file of requests in the format of OpenAI's batches.", tuple(SECTIONS)
    )
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="JSON lines; - is standard input")
    parser.add_argument(
        "-o",
        "--output-file",
        required=True,
        metavar="FILE",
        help="where results go, in the order of the input; - is standard output. What is done so far is in FILE.part: "
        "the same command goes on from there",
    )
    parsed = parser.parse_args(arguments)
    config = read_config(parsed)
    for name in (parsed.input_file, parsed.output_file):
        if "://" in name:
            raise ConfigError(f"{name}: files are read and written here; fetch it first, or send it on afterwards")

    from octavo.serving.batches.offline import BatchFile, Journal, journal_of

    with open_input(parsed.input_file) as file:
        batch = BatchFile(file)
        if parsed.output_file == _STANDARD:
            return answer(config, batch, Journal(None), None)
        out = Path(parsed.output_file)
        return answer(config, batch, Journal(journal_of(out)), out)


def open_input(name: str) -> BinaryIO:
    """The input, as a file that can be read anywhere."""
    if name != _STANDARD:
        try:
            return open(name, "rb")
        except OSError as error:
            raise ConfigError(f"--input-file {name}: {error.strerror or error}") from None
    copy = tempfile.TemporaryFile()  # noqa: SIM115  closed by whoever reads it
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    copy.seek(0)
    return copy


def answer(config: EngineConfig, batch: "BatchFile", journal: "Journal", out: Path | None) -> int:
    """Answer what the journal does not have; then write the output."""
    from octavo.engine.supervisor import EngineSupervisor
    from octavo.serving.batches.offline import run_file

    shown = _Shown(len(batch.digests), sum(digest in journal.kept for digest in batch.digests), out is None)
    try:
        if shown.before < shown.total:
            asyncio.run(run_file(config, EngineSupervisor(config), batch, journal, shown))
    finally:
        shown.close()
        journal.close()
    failed = sum(journal.kept[digest].failed for digest in batch.digests)
    if out is not None:
        journal.finish(batch.digests, out)
    before = f", {shown.before} of them by an earlier run" if shown.before else ""
    requests = "request" if shown.total == 1 else "requests"
    print(f"{shown.total} {requests} answered{before}; {failed} failed", file=sys.stderr)
    return 0


class _Shown:
    """A bar on standard error and, if wanted, results on standard output as soon as all before them are there."""

    def __init__(self, total: int, before: int, tells: bool) -> None:
        self.total, self.before = total, before
        self._tells = tells
        self._failed = 0
        self._bar: Any = None

    def ready(self) -> None:
        """The bar begins: lines of the log above it, and loading is no part of its rate."""
        self._bar = open_bar(
            total=self.total,
            initial=self.before,
            desc="requests",
            unit=" requests",
            dynamic_ncols=True,
        )

    def done(self, failed: bool) -> None:
        """A line is done."""
        self._failed += failed
        if failed:
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update(1)

    def told(self, result: bytes) -> None:
        """A line and all before it are done."""
        if self._tells:
            sys.stdout.buffer.write(result)
            with suppress(BlockingIOError):
                sys.stdout.buffer.flush()

    def close(self) -> None:
        """No more comes."""
        if self._bar is not None:
            self._bar.close()
