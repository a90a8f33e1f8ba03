"""`octavo quantize`: rounds a model's weights to fewer bits and writes a checkpoint that other engines load, too."""

import argparse
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from octavo.cli.options import WideFormatter
from octavo.config.cli import Parser
from octavo.config.engine import EngineConfig
from octavo.config.values import parse_size
from octavo.errors import ConfigError
from octavo.telemetry.bar import open_bar

if TYPE_CHECKING:
    from octavo.compression.calibration_text import CalibrationText
    from octavo.compression.run import PreparedRounding, QuantizeOptions
    from octavo.model.source import ModelSource
    from octavo.text.tokenizer import LibraryTokenizer

# Of matrices or layers, which differ in what they cost: no rate.
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {remaining} to go{postfix}]"
_METHODS = ("awq", "gptq", "int8", "fp8", "gguf")
# Flags that not every method has.
_METHODS_WITH = {
    "type": ("gguf",),
    "bits": ("awq", "gptq"),
    "group_size": ("awq", "gptq"),
    "symmetric": ("awq", "gptq"),
    "act_order": ("gptq",),
    "damp": ("gptq",),
    "alpha": ("int8",),
    "keep": ("awq", "gptq", "int8", "fp8"),
    "no_calibration": ("gguf",),
    "max_shard_size": ("awq", "gptq", "int8", "fp8"),
}
_TEXT = """
methods
  awq    4 bits; input channels are scaled so that the largest activations lose least (arXiv:2306.00978)
  gptq   4 or 8 bits; later columns make up for the errors of earlier ones (arXiv:2210.17323)
  int8   8 bits for weights and inputs, large inputs moved into the weights (SmoothQuant, arXiv:2211.10438)
  fp8    8-bit floating point for weights and inputs; needs no calibration
  gguf   one file in a block format: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K

which one
  for a CPU gguf (Q4_K_M is small, Q8_0 near lossless) or int8; awq and gptq for GPUs with little memory; int8 and fp8
  for GPUs with much. The report at the end says what the model lost: compare perplexities, keep what you can afford.

examples
  octavo quantize ./SmolLM2-135M-Instruct --method gguf --type Q4_K_M --output ./smol-q4
  octavo quantize Qwen/Qwen3-0.6B --method awq --output ./qwen3-awq --calibration chats.jsonl
  octavo quantize ./model --method gptq --bits 8 --group-size -1 --act-order --output ./model-gptq8
"""


def run(arguments: Sequence[str]) -> int:
    """Round, write, measure and report."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.model is None:
        raise ConfigError("which model? octavo quantize MODEL --method METHOD --output DIR")
    for name in ("method", "output"):
        if getattr(parsed, name) is None:
            raise ConfigError(f"--{name} is missing: octavo quantize MODEL --method METHOD --output DIR")
    if parsed.samples < 1 or parsed.length < 16:
        raise ConfigError("--samples must be at least 1 and --length at least 16")
    _refuse_foreign(parsed, parser)
    EngineConfig.from_options(threads=parsed.threads)  # within its bounds
    try:
        with _interruptible():
            return _quantize(parsed)
    except _Terminated:
        print("\nterminated; nothing was left there", file=sys.stderr)
        return 128 + signal.SIGTERM


def _refuse_foreign(parsed: argparse.Namespace, parser: Parser) -> None:
    """No flag is passed over in silence.

    Raises:
        ConfigError: one was given that this method has no use for.
    """
    for name, methods in _METHODS_WITH.items():
        if parsed.method not in methods and getattr(parsed, name) != parser.get_default(name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is of {' and '.join(methods)}; {parsed.method} has no use for it"
            )
    if parsed.group_size is not None and parsed.group_size < 1 and parsed.group_size != -1:
        raise ConfigError(f"--group-size {parsed.group_size}: a positive number is needed, or -1 for whole rows")


def _parser() -> Parser:
    parser = Parser(
        prog="octavo quantize",
        description="Round a model's weights to fewer bits, and say what that costs.",
        usage="octavo quantize [MODEL] [options]",
        formatter_class=WideFormatter,
        epilog=_TEXT,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="directory or hub name; for gguf also a .gguf file")
    parser.add_argument("--method", choices=_METHODS, metavar="METHOD", help=f"one of {', '.join(_METHODS)}; see below")
    parser.add_argument("--output", metavar="DIR", help="directory that is made; it appears when all is written")
    parser.add_argument("--overwrite", action="store_true", help="replace DIR if it is there")
    _add_method_flags(parser.add_argument_group("method"))
    group = parser.add_argument_group("calibration")
    group.add_argument("--calibration", metavar="FILE", help="text or JSON lines (default: prose that comes along)")
    group.add_argument("--samples", type=int, default=32, metavar="N", help="windows of text (default: 32)")
    group.add_argument("--length", type=int, default=512, metavar="N", help="tokens of a window (default: 512)")
    group.add_argument("--no-calibration", action="store_true", help="gguf: weigh all inputs alike")
    group = parser.add_argument_group("output")
    group.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="of a safetensors file (default: 5GB)")
    group.add_argument("--no-measure", action="store_true", help="skip perplexity, agreement and speed")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    group.add_argument("--no-progress", action="store_true", help="show no progress bar")
    group = parser.add_argument_group("machine and model")
    group.add_argument("--threads", type=int, metavar="N", help="threads of native code (default: as octavo serve)")
    group.add_argument("--revision", metavar="TEXT", help="of a hub model")
    group.add_argument("--download-dir", metavar="DIR", help="where hub models are kept")
    group.add_argument("--hf-token", metavar="TEXT", help="for hub models that need one")
    return parser


def _add_method_flags(group: Any) -> None:
    group.add_argument("--type", default="Q4_K_M", metavar="TYPE", help="gguf: of the file (default: Q4_K_M)")
    group.add_argument("--bits", type=int, default=4, metavar="N", help="gptq: 4 or 8 (default: 4)")
    group.add_argument(
        "--group-size",
        type=int,
        metavar="N",
        help="awq, gptq: inputs that share a scale, -1 for whole rows (default: the largest of 128, 64, 32 that fits)",
    )
    group.add_argument(
        "--symmetric",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="awq, gptq: no zero points (default: gptq yes, awq no)",
    )
    group.add_argument("--act-order", action="store_true", help="gptq: largest inputs first; a little better, slower")
    group.add_argument("--damp", type=float, default=0.01, metavar="X", help="gptq: of the Hessian (default: 0.01)")
    group.add_argument(
        "--alpha", type=float, default=0.5, metavar="X", help="int8: how much moves into weights, 0 to 1 (default: 0.5)"
    )
    group.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="modules to leave, e.g. '*.down_proj'; may repeat",
    )


def _quantize(parsed: argparse.Namespace) -> int:
    from octavo.cli.quantize_report import Report, describe, measure
    from octavo.compression.gguf_export import tokenizer_of
    from octavo.compression.output_directory import check_target, output_directory
    from octavo.compression.run import Rounding
    from octavo.model.source import find_model, open_model

    began = time.perf_counter()
    target = Path(parsed.output)
    check_target(target, parsed.overwrite)
    options = _options(parsed)
    source = open_model(find_model(parsed.model, parsed.revision, parsed.download_dir, parsed.hf_token))
    check_target(target, parsed.overwrite, source.path)
    rounding = Rounding(source, options)
    tokenizer = tokenizer_of(source) if rounding.needs_text or not parsed.no_measure else None
    text = None if tokenizer is None else _texts(parsed, source, tokenizer)
    prepared, close = _prepare(parsed, rounding, text)
    try:
        with output_directory(target, parsed.overwrite, prepared.output_bytes) as directory:
            with _bar(prepared.steps, not parsed.no_progress) as progress:
                outcome = prepared.run(directory, progress)
            written = sum(file.stat().st_size for file in outcome.files)
            report = Report(str(source.path), rounding.described, source.file_bytes, written, outcome.modules)
            report.skipped, report.notes = outcome.skipped, outcome.notes
            report.pooled = source.pooler is not None
            report.seconds, report.peak_memory = time.perf_counter() - began, _peak_memory()
            if text is not None and not parsed.no_measure:
                measure(report, source.path, directory, text.held_out)
            (directory / "report.json").write_text(json.dumps(report.as_json(), indent=2) + "\n")
    finally:
        close()
    print(json.dumps(report.as_json(), indent=2) if parsed.json else "\n".join(describe(report, target)))
    return 0


def _options(parsed: argparse.Namespace) -> "QuantizeOptions":
    from octavo.compression.run import QuantizeOptions

    if not 0 <= parsed.alpha <= 1 or not 0 < parsed.damp < 1:
        raise ConfigError("--alpha goes from 0 to 1, and --damp is between 0 and 1")
    return QuantizeOptions(
        method=parsed.method,
        bits=parsed.bits,
        group_size=parsed.group_size,
        symmetric=parsed.symmetric,
        act_order=parsed.act_order,
        damp=parsed.damp,
        alpha=parsed.alpha,
        type=parsed.type,
        calibrates=not parsed.no_calibration,
        shard_bytes=parse_size(parsed.max_shard_size),
        keep=tuple(parsed.keep),
    )


def _texts(parsed: argparse.Namespace, source: "ModelSource", tokenizer: "LibraryTokenizer") -> "CalibrationText":
    """Windows to calibrate with and to judge by."""
    from octavo.compression.calibration_text import cut, read_texts
    from octavo.text.chat_template import ChatTemplate

    length = min(parsed.length, source.spec.max_positions)
    template = ChatTemplate(source.chat_template, tokenizer.special_tokens) if source.chat_template else None
    render = None if template is None else partial(template.render, add_generation_prompt=False)
    path = None if parsed.calibration is None else Path(parsed.calibration)
    return cut(read_texts(path, render), tokenizer, parsed.samples, length)


def _prepare(
    parsed: argparse.Namespace, rounding: Any, text: "CalibrationText | None"
) -> tuple["PreparedRounding", Callable[[], None]]:
    """Ready to run, with native threads where they are needed, and what ends these."""
    if not rounding.needs_text:
        return rounding.prepare(), lambda: None
    from octavo.config.environment import read_environment
    from octavo.config.machine import read_machine
    from octavo.config.resolve import choose_threads
    from octavo.kernels.cpu.library import load_library
    from octavo.kernels.cpu.team import ThreadTeam

    environment = read_environment()
    library = load_library(environment.isa or "auto")
    team = ThreadTeam(library, choose_threads(parsed.threads, read_machine(), environment).value)
    try:
        return rounding.prepare(text, library, team), team.close
    except BaseException:
        team.close()
        raise


def _peak_memory() -> int:
    """Bytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _bar(steps: int, shown: bool) -> Generator[Callable[[str, int], None]]:
    """A progress bar on standard error."""
    if not shown:
        yield lambda what, done: None
        return
    with open_bar(total=steps, dynamic_ncols=True, desc="quantize", bar_format=_BAR) as bar:

        def progress(what: str, done: int) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update(done)

        yield progress


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def _interruptible() -> Generator[None]:
    """A polite kill ends as Ctrl-C does: nothing half written stays behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
