"""Writes a model as one GGUF file: which tensors it has, in which formats, with which metadata, and their data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.compression.checkpoint import Outcome, Progress
from octavo.compression.gguf_metadata import Metadata, rope_factors, same_decoder, shape_metadata
from octavo.compression.layer_runner import LayerRunner
from octavo.compression.parameters import Parameters, as_format, readable
from octavo.compression.statistics import InputStatistics, Wanted
from octavo.errors import ConfigError, UnsupportedError
from octavo.model.assembly import HeadPart, Part, assemble
from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.gguf_writer import GgufWriter, TensorInfo, file_bytes
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.families.catalog import GGUF_TABLE, Family
from octavo.model.families.table import Source
from octavo.model.source import ModelSource
from octavo.ops.weight import PackedWeight
from octavo.quantization.format import FORMATS
from octavo.quantization.gguf_mix import ALIASES, MIXES, Mix, format_of
from octavo.quantization.gguf_rounding import round_matrix
from octavo.quantization.integers import Floats
from octavo.spec.decoder import AttentionSpec, DecoderSpec
from octavo.text.gguf_tokenizer import tokenizer_metadata
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.tokenizer import LibraryTokenizer, load_tokenizer_file

_NO_IMPORTANCE = ("q8_0", "f16", "f32", "bf16")  # formats that have nothing to choose
_QUANTIZATION_VERSION = 2
_OTHERS = "--method int8, fp8, awq and gptq keep the model's own files and configuration"
_KEPT_KEYS = ("tokenizer.", "general.sampling.")  # of a GGUF file that is rounded


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor of the file: `rows` of the weight `name` from `first` on; `head`: rows in a head, to be paired."""

    info: TensorInfo
    name: str
    first: int
    rows: int
    source: Source
    head: int = 0


class GgufExport:
    """One model on its way into a file of one type.

    Raises:
        ConfigError: no such type.
        UnsupportedError: the architecture or its positions have no form in GGUF.
    """

    def __init__(self, source: ModelSource, parameters: Parameters, type: str) -> None:
        self._source, self._parameters = source, parameters
        self._type = ALIASES.get(type.upper(), type.upper())
        if self._type not in MIXES:
            raise ConfigError(f"--type {type}: there are {', '.join([*MIXES, *ALIASES])}")
        self._arch, family = _architecture(source)
        self._factors = rope_factors(source.spec)
        layout = _Layout(source.spec, family, MIXES[self._type])
        assemble(source.spec, layout)
        self._planned = layout.planned
        self._metadata = self._describe(family)

    @property
    def uses_importance(self) -> bool:
        """Whether a format is among the tensors' that makes use of calibration."""
        return any(planned.info.format not in _NO_IMPORTANCE for planned in self._planned)

    @property
    def tensors(self) -> int:
        """How many the file has."""
        return len(self._planned)

    @property
    def output_bytes(self) -> int:
        """Length of the file."""
        return file_bytes(self._metadata, self._infos())

    def run(self, directory: Path, runner: LayerRunner | None, progress: Progress) -> Outcome:
        """Write the file into `directory`.

        Raises:
            UnsupportedError: read back, it would not be the same model.
        """
        path = directory / f"{_file_stem(self._source)}-{self._type}.gguf"
        writer = GgufWriter(path, self._metadata, self._infos())
        outcome = Outcome(files=[path])
        try:
            if self._factors is not None:
                writer.add(self._factors)
            writer.flush()
            self._verify(path)  # which reads the head and the factors: before hours of work
            importance = {} if runner is None else self._importance(runner, progress)
            for planned in self._planned:
                progress(planned.info.name, 0)
                for data in self._data(planned, importance.get(planned.name)):
                    writer.add(data)
                self._count(outcome, planned)
                progress(planned.info.name, 1)
            writer.finish()
        finally:
            writer.close()
        return outcome

    # --- what the file says ---

    def _describe(self, family: Family) -> Metadata:
        source = self._source
        metadata: Metadata = {
            "general.architecture": self._arch,
            "general.type": "model",
            "general.name": _file_stem(source),
            "general.file_type": MIXES[self._type].number,
            "general.quantization_version": _QUANTIZATION_VERSION,
        }
        metadata |= shape_metadata(self._arch, source.spec, source.config)
        if source.gguf_metadata:
            kept = {key: value for key, value in source.gguf_metadata.items() if key.startswith(_KEPT_KEYS)}
            own = {k: v for k, v in source.gguf_metadata.items() if k.startswith(f"{self._arch}.")}
            return metadata | own | kept
        if source.chat_template:
            metadata["tokenizer.chat_template"] = source.chat_template
        return metadata | self._tokenizer()

    def _tokenizer(self) -> Metadata:
        if self._source.tokenizer_files is None and not (self._source.path / "tokenizer.model").is_file():
            return {"tokenizer.ggml.model": "none"}
        tokenizer = load_tokenizer_file(self._source.path, self._source.config)
        metadata: Metadata = tokenizer_metadata(tokenizer, self._source.path, self._source.spec.vocab)
        ends = self._source.generation_config.get("eos_token_id")
        if isinstance(ends, int):
            metadata["tokenizer.ggml.eos_token_id"] = ends
        return metadata

    def _infos(self) -> list[TensorInfo]:
        factors = [] if self._factors is None else [TensorInfo("rope_freqs.weight", "f32", self._factors.shape)]
        return factors + [planned.info for planned in self._planned]

    def _verify(self, path: Path) -> None:
        """Read the header back as anybody would.

        Raises:
            UnsupportedError: it describes another decoder.
        """
        contents = read_gguf(MappedFile(path))
        family = GGUF_TABLE[self._arch]
        back = family.read_spec(family.read_gguf_config(contents.metadata, contents.tensors))
        if not same_decoder(back, self._source.spec):
            raise UnsupportedError(
                f"GGUF files of {self._arch} cannot say all that {self._source.path / 'config.json'} says "
                f"({_first_difference(back, self._source.spec)}); the file would be another model; {_OTHERS}"
            )

    # --- data ---

    def _importance(self, runner: LayerRunner, progress: Progress) -> dict[str, Floats]:
        """Mean squares of the inputs of every product of every layer."""
        importance: dict[str, Floats] = {}
        progress("embedding the texts", 0)
        runner.embed()
        for index in range(len(self._source.spec.layers)):
            progress(f"calibrating layer {index}", 0)
            found: dict[str, InputStatistics] = {}

            def hear(name: str, x: Floats, found: dict[str, InputStatistics] = found) -> None:
                if name not in found:
                    found[name] = InputStatistics(Wanted(), x.shape[1], runner.tokens)
                found[name].add(x)

            runner.advance(runner.load(index), hear)
            importance.update({name: statistics.mean_square for name, statistics in found.items()})
            progress(f"calibrating layer {index}", 1)
        return importance

    def _data(self, planned: Planned, importance: Floats | None) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        """A tensor's bytes, in parts of whole rows."""
        if len(planned.info.shape) == 1:
            values = self._parameters.vector(planned.name)[planned.first : planned.first + planned.rows]
            values = _paired(values, planned.head) - np.float32(1.0 if planned.source.add_one else 0.0)
            yield as_format(values, planned.info.format)
            return
        for values in self._rows(planned):
            if FORMATS[planned.info.format].role == "block":
                data = round_matrix(planned.info.format, values, importance)
                yield readable(planned.info.name, planned.info.format, data, values.shape)
            else:
                yield as_format(values, planned.info.format)

    def _rows(self, planned: Planned) -> Iterator[Floats]:
        """A matrix's rows in pieces; all at once where they must be put in another order."""
        last = planned.first + planned.rows
        pieces = (
            values[max(planned.first - first, 0) : last - first]
            for first, values in self._parameters.slices(planned.name)
            if first < last and first + len(values) > planned.first
        )
        if planned.head:
            yield _paired(np.concatenate(list(pieces)), planned.head)
        else:
            yield from pieces

    def _count(self, outcome: Outcome, planned: Planned) -> None:
        if len(planned.info.shape) == 1:
            return
        if FORMATS[planned.info.format].role == "block":
            outcome.modules += 1
            outcome.note(f"matrices in {planned.info.format}")
        else:
            outcome.skipped.append(planned.info.name)
            outcome.note(f"matrices in {planned.info.format}: rows of {planned.info.shape[1]} fill no block")


class _Layout:
    """A Take that lists the file's tensors."""

    def __init__(self, spec: DecoderSpec, family: Family, mix: Mix) -> None:
        self._spec, self._table, self._mix = spec, family.GGUF_WEIGHTS, mix
        self.planned: list[Planned] = []

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        first = 0
        for part, rows in self._stacked_or_single(name, parts):
            format = "f32" if part == "positions" else self._format(place, part, columns)
            self._add(place, part, ".weight", Planned(_EMPTY, f"{place}{name}", first, rows, _NOWHERE), format, columns)
            first += rows
        return PackedWeight((0, 0), ())

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        raise UnsupportedError("latent attention has no GGUF form that Octavo writes")

    def gain(self, place: str, name: str, width: int) -> None:
        self._add(place, name, ".weight", Planned(_EMPTY, f"{place}{name}.weight", 0, width, _NOWHERE), "f32")

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> None:
        first = 0
        for part, rows in self._stacked_or_single(name, parts):
            self._add(place, part, ".bias", Planned(_EMPTY, f"{place}{name}.bias", first, rows, _NOWHERE), "f32")
            first += rows

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> None:
        raise UnsupportedError("state spaces have no GGUF form that Octavo writes")

    def taps(self, place: str, name: str, width: int, taps: int) -> None:
        raise UnsupportedError("convolutions have no GGUF form that Octavo writes")

    def _add(self, place: str, part: str, ending: str, planned: Planned, format: str, columns: int = 0) -> None:
        source = (self._table.layer if place else self._table.model).get(part)
        if source is None:
            raise UnsupportedError(f"{place}{part}{ending} has no name in GGUF files of this architecture")
        layer = place.removeprefix("layers.").rstrip(".")
        name = source.names[0].format(p=self._table.prefixes[0], i=layer) + ending
        shape = (planned.rows, columns) if columns else (planned.rows,)
        head = self._head(place) if source.unpair else 0
        self.planned.append(replace(planned, info=TensorInfo(name, format, shape), source=source, head=head))

    def _stacked_or_single(self, name: str, parts: Sequence[Part]) -> Sequence[Part]:
        """The whole as one tensor where this architecture has it so, else its parts."""
        if len(parts) > 1 and name in self._table.layer:
            return [(name, sum(rows for _, rows in parts))]
        return parts

    def _head(self, place: str) -> int:
        for block in self._spec.layers[int(place.split(".")[1])].blocks:
            for branch in block.branches:
                if isinstance(branch.body, AttentionSpec):
                    return branch.body.head_dim
        return 0

    def _format(self, place: str, part: str, columns: int) -> str:
        role = part.rpartition(".")[2]
        layer = int(place.split(".")[1]) if place else None
        if part == "embed" and self._spec.head is not None and self._spec.head.tied:
            role = "head"
        return format_of(self._mix, role, layer, len(self._spec.layers), columns)


_EMPTY, _NOWHERE = TensorInfo("", "f32", ()), Source(())


def tokenizer_of(source: ModelSource) -> LibraryTokenizer:
    """The model's own tokenizer.

    Raises:
        CheckpointError, UnsupportedError: there is none, or none that Octavo reads.
    """
    if source.gguf_metadata:
        return tokenizer_from_metadata(source.gguf_metadata)
    return load_tokenizer_file(source.tokenizer_files or source.path, source.config)


def _architecture(source: ModelSource) -> tuple[str, Family]:
    """The name of the model's family in GGUF files."""
    for name, family in GGUF_TABLE.items():
        if family.__name__.rpartition(".")[2] == source.family:
            return name, family
    known = ", ".join(sorted(GGUF_TABLE))
    raise UnsupportedError(f"{source.family} has no GGUF form that Octavo writes (there are {known}); {_OTHERS}")


def _paired(rows: Floats, head: int) -> Floats:
    """Rows (or elements) of each head from halves to neighbours, as Pairs.undo takes them."""
    if not head:
        return rows
    halves = rows.reshape(-1, 2, head // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _file_stem(source: ModelSource) -> str:
    """What the model is called."""
    return source.path.stem if source.path.is_file() else source.path.resolve().name


def _first_difference(back: DecoderSpec, spec: DecoderSpec) -> str:
    """Where two decoders differ, for a message."""
    names: Mapping[str, tuple[object, object]] = {
        name: (getattr(back, name), getattr(spec, name)) for name in DecoderSpec.__slots__ if name != "layers"
    }
    for name, (one, other) in names.items():
        if not same_decoder(one, other):
            return name
    wrong = [i for i, pair in enumerate(zip(back.layers, spec.layers, strict=False)) if not same_decoder(*pair)]
    return f"layer {wrong[0]}" if wrong else "layers"
