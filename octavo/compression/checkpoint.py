"""Rounds a safetensors checkpoint layer by layer: calibrates, scales, rounds, writes, and goes on with what is left.

Later layers are calibrated with the outputs of the rounded earlier ones, as GPTQ does (arXiv:2210.17323, section 4).
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from octavo.compression.flow import SharedInput, shared_inputs
from octavo.compression.layer_runner import LayerRunner
from octavo.compression.parameters import Parameters, as_format
from octavo.compression.schemes import Module, Scheme
from octavo.compression.statistics import InputStatistics
from octavo.compression.tapped_ops import Heard
from octavo.errors import ConfigError, UnsupportedError
from octavo.model.checkpoint.safetensors_writer import INDEX, SafetensorsWriter
from octavo.model.source import ModelSource
from octavo.quantization.format import FORMATS
from octavo.quantization.integers import Floats
from octavo.text.json_files import read_json

# What goes with a model beside its weights.
_TURNED = "awq, gptq and gguf"  # methods with a form for matrices stored [in, out]
_CARRIED = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_NOT_CARRIED = ("config.json", INDEX, "report.json")

Progress = Callable[[str, int], None]  # what is being done, and how many of `steps` are done with it


@dataclass(slots=True)
class Outcome:
    """What was done. bits are of the rounded matrices; `notes` says what was left out, and why, once each."""

    modules: int = 0
    skipped: list[str] = field(default_factory=list[str])
    notes: dict[str, int] = field(default_factory=dict[str, int])
    files: list[Path] = field(default_factory=list[Path])

    def note(self, reason: str) -> None:
        """Count a reason."""
        self.notes[reason] = self.notes.get(reason, 0) + 1


class CheckpointRounder:
    """Owns one run over a model.

    Args:
        runner: None when the scheme needs no calibration.
        keep: shell patterns of modules that stay as they are.
    """

    def __init__(
        self,
        source: ModelSource,
        parameters: Parameters,
        runner: LayerRunner | None,
        scheme: Scheme,
        keep: Sequence[str] = (),
    ) -> None:
        self._source, self._parameters, self._runner, self._scheme = source, parameters, runner, scheme
        self._keep, self._kept = tuple(keep), set[str]()
        self._widths = {plan.name: plan.columns for plan in parameters.plan.matrices}
        self._outcome = Outcome()
        self._chosen = self._choose()

    @property
    def steps(self) -> int:
        """How often `progress` will be called with one more done."""
        return len(self._source.spec.layers) + 1

    def output_bytes(self) -> int:
        """About what the new checkpoint takes."""
        chosen = {tensor for name in self._chosen for tensor in self._parameters.tensors_of(name)}
        plain = sum(t.data.nbytes for name, t in self._source.tensors.items() if name not in chosen)
        numbers = sum(int(np.prod(self._source.tensors[name].shape)) for name in chosen)
        return plain + int(numbers * self._scheme.bits / 8)

    def run(self, directory: Path, shard_bytes: int, progress: Progress) -> Outcome:
        """Write weights, configuration and the files that go with them into `directory`.

        Raises:
            UnsupportedError: nothing of the model can be rounded.
            CheckpointError: a tensor is damaged.
        """
        names = [f"{module}.{part}" for module in self._source.tensors for part in ("weight_scale", "a", "b", "c")]
        writer = SafetensorsWriter(directory, shard_bytes, names)
        try:
            self._write_layers(writer, progress)
            self._write_rest(writer)
            self._outcome.files = writer.finish()
        finally:
            writer.close()
        progress("the other weights", 1)
        self._write_config(directory)
        carry_files(self._source.path, directory)
        return self._outcome

    # --- what is rounded ---

    def _choose(self) -> set[str]:
        """Matrices of layers that the scheme can write, by canonical name; notes why others are left.

        Raises:
            UnsupportedError: there are none.
            ConfigError: a pattern of what is kept fits none.
        """
        chosen: set[str] = set()
        for plan in self._parameters.plan.matrices:
            if plan.name.startswith("layers."):
                reason = self._obstacle(plan.name)
                if reason:
                    self._outcome.note(reason)
                else:
                    chosen.add(plan.name)
        unknown = [pattern for pattern in self._keep if pattern not in self._kept]
        if unknown:
            some = _module(next(iter(self._parameters.plan.matrices)).slices[0].tensor.name)
            raise ConfigError(f"--keep {unknown[0]} fits no module of the layers; they are called as in {some}")
        if not chosen:
            reasons = "; ".join(self._outcome.notes) or "the model has no layers"
            raise UnsupportedError(f"{self._scheme.name} has nothing to round here: {reasons}")
        return chosen

    def _obstacle(self, name: str) -> str:
        for tensor in self._parameters.tensors_of(name):
            stored = self._source.tensors[tensor]
            if FORMATS[stored.format].role != "float" or not tensor.endswith(".weight"):
                return "weights that are quantized already stay so"
            if self._parameters.users(tensor) > 1:
                return "matrices that are used by head stay as they are"
            if self._parameters.is_turned(tensor) and not self._scheme.turned:
                name = self._scheme.name
                return f"this family stores its matrices turned, which {name} cannot express, but {_TURNED} can"
            kept = {pattern for pattern in self._keep if fnmatchcase(_module(tensor), pattern)}
            if kept:
                self._kept |= kept
                return "kept as asked"
            rows, columns = stored.shape[:: -1 if self._parameters.is_turned(tensor) else 1]
            misfit = self._scheme.misfit(rows, columns)
            if misfit:
                return misfit
        return ""

    # --- layers ---

    def _write_layers(self, writer: SafetensorsWriter, progress: Progress) -> None:
        last = len(self._source.spec.layers) - 1
        if self._runner is not None:
            progress("embedding the texts", 0)
            self._runner.embed()
        for index in range(last + 1):
            progress(f"layer {index}", 0)
            groups, inputs = self.scale_layer(index)
            names = [name for name in self._chosen if name.startswith(f"layers.{index}.")]
            for name in sorted(names, key=list(self._widths).index):
                self._round(writer, name, inputs.get(name), _clips(name, groups))
            if self._runner is not None and index < last:
                self._runner.advance(self._runner.load(index))
            done = [tensor for name in names for tensor in self._parameters.tensors_of(name)]
            self._parameters.forget(done)
            progress(f"layer {index}", 1)

    def scale_layer(self, index: int) -> tuple[list[SharedInput], dict[str, InputStatistics]]:
        """Calibrate a layer and move what the scheme wants moved; its products, and what they take in now."""
        groups, inputs = self._calibrate(index)
        self._scale(groups, inputs)
        return groups, inputs

    def _calibrate(self, index: int) -> tuple[list[SharedInput], dict[str, InputStatistics]]:
        """What the layer's products take in, by their weights; products with one input share its statistics."""
        wanted = self._scheme.wanted
        if self._runner is None or wanted is None:
            return [], {}
        layer = self._runner.load(index)
        groups = shared_inputs(self._runner.trace(layer), self._widths)
        by_first: dict[str, InputStatistics] = {}
        inputs: dict[str, InputStatistics] = {}
        for group in groups:
            if any(name in self._chosen for name in group.weights):
                statistics = InputStatistics(wanted, self._widths[group.weights[0]], self._runner.tokens)
                by_first[group.weights[0]] = statistics
                inputs.update(dict.fromkeys(group.weights, statistics))

        last = groups[-1].weights[0]

        def hear(name: str, x: Floats) -> None:
            if name in by_first:
                by_first[name].add(x)
            if name == last:
                raise Heard

        self._runner.listen(layer, hear)
        return groups, inputs

    def _scale(self, groups: Sequence[SharedInput], inputs: dict[str, InputStatistics]) -> None:
        """Move factors from inputs to what makes them, where that is possible. Found first, then applied."""
        moves: list[tuple[SharedInput, Floats]] = []
        if not self._scheme.scales:
            return
        for group in groups:
            if group.weights[0] not in inputs:
                continue
            if group.giver is None or not self._movable(group):
                self._outcome.note(f"not scaled: {group.why or 'what makes the input is shared with other weights'}")
                continue
            weights = [self._parameters.matrix(name) for name in group.weights]
            factors = self._scheme.factors(group, weights, inputs[group.weights[0]])
            if factors is not None:
                moves.append((group, factors))
        for group, factors in moves:
            self._move(group, factors, inputs)

    def _movable(self, group: SharedInput) -> bool:
        """Whether every tensor that would change has one use only."""
        assert group.giver is not None
        if group.giver.kind == "norm":
            plans = {plan.name: plan for plan in self._parameters.plan.vectors}
            vectors = [plans[name] for name in (group.giver.weight, group.giver.bias) if name]
            tensors = [tensor.name for plan in vectors for tensor in plan.tensors]
            if any(len(plan.tensors) > 1 for plan in vectors):
                return False
        else:
            tensors = self._parameters.tensors_of(group.giver.weight)
        tensors += [tensor for name in group.weights for tensor in self._parameters.tensors_of(name)]
        return all(self._parameters.users(tensor) == 1 for tensor in tensors)

    def _move(self, group: SharedInput, factors: Floats, inputs: dict[str, InputStatistics]) -> None:
        giver = group.giver
        assert giver is not None
        wide, inverse = giver.spread(factors), (1 / factors).astype(np.float32)
        if giver.kind == "norm":
            before = self._parameters.vector(giver.weight)
            for vector in (giver.weight, giver.bias):
                if vector:
                    self._parameters.scale_vector(vector, inverse)
            # A gain is rounded to the file's type; the weights take what it became.
            after = self._parameters.vector(giver.weight)
            wide = np.divide(before, after, out=wide.copy(), where=after != 0)
        else:
            self._parameters.scale_rows(giver.weight, giver.first, inverse)
        for name in group.weights:
            self._parameters.scale_columns(name, wide)
        inputs[group.weights[0]].divide(wide)

    def _round(self, writer: SafetensorsWriter, name: str, inputs: InputStatistics | None, clips: bool) -> None:
        for tensor in self._parameters.tensors_of(name):
            module = Module(self._parameters.stored(tensor), inputs, clips, self._source.tensors[tensor].format)
            result = self._scheme.round(module)
            for part in result.tensors:
                writer.add(f"{_module(tensor)}.{part.suffix}", part.format, part.shape, part.data)
            self._parameters.change(tensor, result.values)
            self._outcome.modules += 1

    # --- the rest ---

    def _write_rest(self, writer: SafetensorsWriter) -> None:
        """Every tensor that was not rounded, with what scaling changed of it."""
        done = {tensor for name in self._chosen for tensor in self._parameters.tensors_of(name)}
        for name, stored in self._source.tensors.items():
            if name in done:
                continue
            values = self._parameters.changed.get(name)
            if values is None:
                writer.add(name, stored.format, stored.shape, stored.data)
                self._source.release(stored)
            else:
                values = values.T if self._parameters.is_turned(name) else values
                writer.add(name, stored.format, stored.shape, as_format(values, stored.format))

    def _write_config(self, directory: Path) -> None:
        done = {tensor for name in self._chosen for tensor in self._parameters.tensors_of(name)}
        vectors = {tensor.name for plan in self._parameters.plan.vectors for tensor in plan.tensors}
        tables = {tensor for name in ("embed", "positions") if name in self._widths for tensor in self._tables(name)}
        left = [
            name
            for name, stored in self._source.tensors.items()
            if len(stored.shape) == 2 and name.endswith(".weight") and name not in done | vectors | tables
        ]
        within = {
            tensor
            for plan in self._parameters.plan.matrices
            if plan.name.startswith("layers.")
            for tensor in self._parameters.tensors_of(plan.name)
        }
        modules = [_module(name) for name in left]
        head = self._source.spec.head
        if head is not None and head.tied and "lm_head" not in modules:
            modules.append("lm_head")
        self._outcome.skipped = sorted(modules)
        config = read_json(self._source.path / "config.json")
        inside = sorted(_module(name) for name in left if name in within)
        config["quantization_config"] = self._scheme.config(self._outcome.skipped, inside)
        (directory / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def _tables(self, name: str) -> list[str]:
        return self._parameters.tensors_of(name)


def carry_files(source: Path, directory: Path) -> None:
    """Copy tokenizer, generation defaults, templates and the like."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in _CARRIED and path.name not in _NOT_CARRIED:
            shutil.copyfile(path, directory / path.name)


def _module(tensor: str) -> str:
    return tensor.removesuffix(".weight")


def _clips(name: str, groups: Sequence[SharedInput]) -> bool:
    """Whether a matrix's range may be cut: not of queries and keys, whose errors meet in a product of the two."""
    return not any(name in group.weights and group.meets for group in groups)
