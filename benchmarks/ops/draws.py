"""Which draws are timed: every sampler and rule by itself, on flat and on peaked logits, few rows and many."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.ops.measure import Bench, Work
from octavo.kernels.cpu.instruction import Axis
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import SAMPLING_RECORD

VOCABULARIES = (49_152, 151_936)
ROWS = (1, 64)
LOGITS = ("flat", "peaked")
# In units of a standard normal number: flat leaves nearly all tokens in play at temperature 1, peaked a few.
_SPREAD = {"flat": 0.5, "peaked": 4.0}
_LISTED = 300  # ids of a bias or an allow-list
_HISTORY = 4096  # tokens of a text that penalties and DRY look at

SAMPLERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "typical 0.9": {"typical_p": 0.9},
    "top-n-sigma 1": {"top_n_sigma": 1.0},
    "XTC": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "dynamic temperature": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.0},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "mirostat_mu": 10.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "mirostat_mu": 10.0},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "DRY": {"temperature": 0.0, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_window": -1},
    "logit bias": {"temperature": 0.0, "bias_count": _LISTED},
    "allowed ids": {"temperature": 0.0, "allowed_count": _LISTED},
    "logprobs 20": {"temperature": 0.0, "logprobs": 20},
}
_TOLD = 20  # likeliest tokens there is room for


@dataclass(frozen=True, slots=True)
class Draws:
    """What is timed, as the command's options say it."""

    samplers: Sequence[str] = tuple(SAMPLERS)
    vocabularies: Sequence[int] = VOCABULARIES
    rows: Sequence[int] = ROWS
    logits: Sequence[str] = LOGITS


def works(benches: Sequence[Bench], asked: Draws) -> Iterator[tuple[Bench, Work]]:
    """A token of each row of logits, which one pass over the vocabulary at least has to read."""
    for vocab in asked.vocabularies:
        for spread in asked.logits:
            numbers = np.random.default_rng(1).standard_normal((max(asked.rows), vocab), np.float32)
            for rows in asked.rows:
                for bench in benches:
                    place = _Place(bench, _SPREAD[spread] * numbers[:rows])
                    for name in asked.samplers:
                        yield bench, place.work(name, spread)


class _Place:
    """Rows of logits, and memory for what rules of a row point to."""

    def __init__(self, bench: Bench, logits: NDArray[np.float32]) -> None:
        rows, vocab = logits.shape
        recorder = ProgramRecorder(bench.library)
        raw = recorder.input(vocab, Axis.ROWS)
        recorder.sample(recorder.process_logits(raw), raw)
        self._program = NativeProgram(bench.library, bench.team, recorder.instructions, ProgramLimits(rows, rows))
        self._program.view(raw, rows)[:] = logits
        self._rows, self._vocab = rows, vocab
        rng = np.random.default_rng(2)
        self._ids = np.sort(rng.choice(vocab, min(_LISTED, vocab), replace=False)).astype(np.int32)
        self._values = np.ones(len(self._ids), np.float32)
        self._text = rng.integers(0, min(vocab, 500), _HISTORY).astype(np.int32)

    def work(self, name: str, spread: str) -> Work:
        step = NativeStep(self._rows)
        step.set_top(_TOLD)
        positions = np.arange(self._rows, dtype=np.int32)
        step.set_tokens(positions, positions, np.array([0, self._rows], np.int32), np.zeros(1, np.int32))
        step.set_rows(positions, self._records(SAMPLERS[name]))
        moved = 4 * self._rows * self._vocab
        detail = f"{self._rows} x {self._vocab} {spread}"
        run: Callable[[], None] = lambda: self._program.run(step)  # noqa: E731
        return Work(f"draw {name}", detail, run, 1, moved, self._rows * self._vocab, moved)

    def _records(self, rules: dict[str, float]) -> NDArray[np.void]:
        records = np.zeros(self._rows, SAMPLING_RECORD)
        records["temperature"], records["top_p"], records["repetition_penalty"] = 1.0, 1.0, 1.0
        records["typical_p"], records["logprobs"], records["seed"] = 1.0, -1, np.arange(self._rows)
        for field, value in rules.items():
            records[field] = value
        records["bias_count"], records["allowed_count"] = (
            np.minimum(records[field], len(self._ids)) for field in ("bias_count", "allowed_count")
        )
        records["bias_ids"] = records["allowed_ids"] = self._ids.ctypes.data
        records["bias_values"], records["history"] = self._values.ctypes.data, self._text.ctypes.data
        if {"repetition_penalty", "dry_multiplier"} & set(rules):
            records["history_len"], records["prompt_len"] = _HISTORY, _HISTORY // 2
        return records
