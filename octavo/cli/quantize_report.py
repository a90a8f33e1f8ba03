"""What `octavo quantize` says at the end: sizes, and what both models make of text that calibration did not see."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.config.values import format_size
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.api.llm import LLM

_PROMPTS = 8  # that answers are compared on
_PROMPT_TOKENS = 32
_ANSWER_TOKENS = 32
_TIMED_TOKENS = 64
_WIDTH = 26
_SHOWN = 6  # modules that are named when they are left as they are


@dataclass(frozen=True, slots=True)
class Judged:
    """One model. likeliest: its first choice after every held-out token; answers: greedy ones to the prompts.

    tokens_per_second: of one stream.
    """

    perplexity: float
    likeliest: list[int]
    answers: list[list[int]]
    tokens_per_second: float


@dataclass(slots=True)
class Report:
    """Sizes in bytes. `problem` says why there are no figures of the new model, when there are none.

    pooled: the model answers with vectors; `likeness` then has the cosine of both models' for each held-out window.
    """

    model: str
    method: str
    bytes_before: int
    bytes_after: int
    modules: int
    skipped: list[str] = field(default_factory=list[str])
    notes: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    peak_memory: int = 0
    held_out_tokens: int = 0
    pooled: bool = False
    likeness: list[float] = field(default_factory=list[float])
    before: Judged | None = None
    after: Judged | None = None
    problem: str = ""

    @property
    def same_choice(self) -> float | None:
        """Share of held-out tokens after which both models' first choice is the same."""
        if self.before is None or self.after is None:
            return None
        pairs = list(zip(self.before.likeliest, self.after.likeliest, strict=True))
        return sum(one == other for one, other in pairs) / len(pairs)

    @property
    def same_answer(self) -> float | None:
        """Tokens of greedy answers before they part, as a share of all."""
        if self.before is None or self.after is None:
            return None
        pairs = zip(self.before.answers, self.after.answers, strict=True)
        common = [_common(one, other) for one, other in pairs]
        return sum(common) / (len(common) * _ANSWER_TOKENS)

    def as_json(self) -> dict[str, Any]:
        """For report.json: no text of the answers, no tokens."""
        return {
            "model": self.model,
            "method": self.method,
            "bytes": _two(self.bytes_before, self.bytes_after),
            "matrices_rounded": self.modules,
            "modules_left": self.skipped,
            "notes": self.notes,
            "seconds": round(self.seconds, 2),
            "peak_memory_bytes": self.peak_memory,
            "held_out_tokens": self.held_out_tokens,
            "perplexity": _two(_of(self.before, "perplexity"), _of(self.after, "perplexity")),
            "same_first_choice": self.same_choice,
            "same_greedy_answer": self.same_answer,
            "cosine": {"mean": sum(self.likeness) / len(self.likeness), "least": min(self.likeness)}
            if self.likeness
            else None,
            "tokens_per_second": _two(_of(self.before, "tokens_per_second"), _of(self.after, "tokens_per_second")),
            "problem": self.problem or None,
        }


def measure(report: Report, source: Path, result: Path, held_out: "NDArray[Any]") -> None:
    """Fill in what both models make of `held_out` [windows, length]; what cannot be measured becomes `problem`."""
    windows = [[int(token) for token in window] for window in held_out]
    report.held_out_tokens = held_out.size - len(windows)
    if report.pooled:
        try:
            report.likeness = _likeness(_vectors(source, windows), _vectors(result, windows))
        except OctavoError as error:
            report.problem = f"the models were not measured: {error}"
        return
    for name, path in (("before", source), ("after", result)):
        try:
            setattr(report, name, _judge(path, windows))
        except OctavoError as error:
            report.problem = f"{'the model itself' if name == 'before' else 'the new model'} was not measured: {error}"
            return


def _judge(path: Path, windows: list[list[int]]) -> Judged:
    from octavo.api.llm import LLM

    length = len(windows[0])
    with LLM(
        str(path), max_model_len=length + _ANSWER_TOKENS + _TIMED_TOKENS, max_num_seqs=_PROMPTS, weight_cache=False
    ) as llm:
        logprobs, likeliest = _read(llm, windows)
        prompts = [window[:_PROMPT_TOKENS] for window in (windows * _PROMPTS)[:_PROMPTS]]
        answers = _answer(llm, prompts, _ANSWER_TOKENS)
        began = time.perf_counter()
        _answer(llm, prompts[:1], _TIMED_TOKENS)
        seconds = time.perf_counter() - began
    return Judged(math.exp(-sum(logprobs) / len(logprobs)), likeliest, answers, _TIMED_TOKENS / max(seconds, 1e-9))


def _vectors(path: Path, windows: list[list[int]]) -> list["NDArray[np.float64]"]:
    """What a pooled model makes of each window, in its usual task."""
    from octavo.api.llm import LLM

    with LLM(str(path), runner="pooling", max_num_seqs=_PROMPTS, weight_cache=False) as llm:
        outputs = llm.encode([{"prompt_token_ids": window} for window in windows], use_tqdm=False)
        return [np.asarray(output.outputs.data, np.float64).ravel() for output in outputs]


def _likeness(before: list["NDArray[np.float64]"], after: list["NDArray[np.float64]"]) -> list[float]:
    """Cosines."""

    def dot(a: "NDArray[np.float64]", b: "NDArray[np.float64]") -> float:
        return float((a * b).sum())

    return [dot(a, b) / max(math.sqrt(dot(a, a) * dot(b, b)), 1e-300) for a, b in zip(before, after, strict=True)]


def _read(llm: "LLM", windows: list[list[int]]) -> tuple[list[float], list[int]]:
    """Log-probability of every token but the first of each window, and what the model would have taken for it."""
    from octavo.flow.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": window} for window in windows], params, use_tqdm=False)
    logprobs: list[float] = []
    likeliest: list[int] = []
    for window, output in zip(windows, outputs, strict=True):
        for token, step in zip(window[1:], (output.prompt_logprobs or [])[1:], strict=True):
            assert step is not None, "every token but the first has one"
            logprobs.append(step[token].logprob)
            likeliest.append(-max((entry.logprob, -id) for id, entry in step.items())[1])
    return logprobs, likeliest


def _answer(llm: "LLM", prompts: list[list[int]], tokens: int) -> list[list[int]]:
    from octavo.flow.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def describe(report: Report, target: Path) -> Iterator[str]:
    """The report for people."""
    yield f"{target}: {report.method}"
    yield ""
    yield f"{'':{_WIDTH}} {'before':>12} {'after':>12}"
    sizes = (format_size(report.bytes_before), format_size(report.bytes_after))
    change = f"{100 * report.bytes_after / max(report.bytes_before, 1):.0f} %"
    yield f"{'weights':{_WIDTH}} {sizes[0]:>12} {sizes[1]:>12}   {change}"
    before, after = report.before, report.after
    if before is not None:
        rest = f"{after.perplexity:>12.3f}   {100 * (after.perplexity / before.perplexity - 1):+.2f} %" if after else ""
        yield f"{'perplexity, held-out text':{_WIDTH}} {before.perplexity:>12.3f} {rest}"
        rest = f"{after.tokens_per_second:>12.1f}" if after else ""
        yield f"{'tokens a second, alone':{_WIDTH}} {before.tokens_per_second:>12.1f} {rest}"
    if report.same_choice is not None and report.same_answer is not None:
        yield f"{'same first choice':{_WIDTH}} {'':12} {100 * report.same_choice:>10.1f} %"
        yield f"{'same greedy answer':{_WIDTH}} {'':12} {100 * report.same_answer:>10.1f} %   until they part"
    if report.likeness:
        mean = sum(report.likeness) / len(report.likeness)
        yield f"{'cosine, held-out text':{_WIDTH}} {'':12} {mean:>12.4f}   least {min(report.likeness):.4f}"
    yield ""
    yield f"{report.modules} matrices rounded in {report.seconds:.0f} s, peak memory {format_size(report.peak_memory)}"
    if report.skipped:
        more = f" and {len(report.skipped) - _SHOWN} more" if len(report.skipped) > _SHOWN else ""
        yield f"left as they are: {', '.join(report.skipped[:_SHOWN])}{more}"
    for reason, count in report.notes.items():
        yield f"{count} {reason}" if reason.startswith("matrices ") else f"{count} x {reason}"
    if report.problem:
        yield f"note: {report.problem}"
    yield f"next: octavo serve {target}" if report.pooled else f"next: octavo chat {target}, or octavo serve {target}"


def _common(one: list[int], other: list[int]) -> int:
    """Tokens before two answers part."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _two(before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after}


def _of(judged: Judged | None, name: str) -> Any:
    return None if judged is None else getattr(judged, name)
