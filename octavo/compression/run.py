"""Everything that rounds a model, put together: from what a user asked for to the files in a directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.compression.calibration_text import CalibrationText
from octavo.compression.checkpoint import CheckpointRounder, Outcome
from octavo.compression.gguf_export import GgufExport
from octavo.compression.layer_runner import LayerRunner
from octavo.compression.parameters import Parameters
from octavo.compression.schemes import AwqScheme, EightBitScheme, GptqScheme, Scheme
from octavo.errors import ConfigError, UnsupportedError
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.source import ModelSource
from octavo.quantization.format import FORMATS
from octavo.quantization.gptq import GptqOptions

METHODS = ("awq", "gptq", "int8", "fp8", "gguf")
_GROUPS = (128, 64, 32)  # sizes that readers' kernels have

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What was asked for. group_size: None is for the largest that fits, -1 for whole rows. type: of gguf.

    symmetric: None is for the method's usual. alpha: of SmoothQuant; 0 leaves it out. keep: patterns of modules.
    """

    method: str
    bits: int = 4
    group_size: int | None = None
    symmetric: bool | None = None
    act_order: bool = False
    damp: float = 0.01
    alpha: float = 0.5
    type: str = "Q4_K_M"
    calibrates: bool = True
    shard_bytes: int = 5 << 30
    keep: Sequence[str] = field(default_factory=tuple)


class Rounding:
    """One model on its way into one method.

    Raises:
        UnsupportedError, ConfigError: the method cannot take the model; says what can.
    """

    def __init__(self, source: ModelSource, options: QuantizeOptions) -> None:
        _refuse_rounded(source, options.method)
        self._source, self._options = source, options
        self._parameters = Parameters(source)
        self._scheme = None if options.method == "gguf" else _scheme(options, self._parameters)
        self._export = GgufExport(source, self._parameters, options.type) if self._scheme is None else None

    @property
    def needs_text(self) -> bool:
        """Whether it calibrates."""
        if self._scheme is not None:
            return self._scheme.wanted is not None
        return self._options.calibrates and self._export is not None and self._export.uses_importance

    @property
    def described(self) -> str:
        """The method and its parameters, in words."""
        return f"gguf {self._options.type}" if self._scheme is None else self._scheme.described

    def prepare(
        self, text: CalibrationText | None = None, library: NativeLibrary | None = None, team: ThreadTeam | None = None
    ) -> "PreparedRounding":
        """Ready to run. Text and a way to compute are needed where `needs_text` says so."""
        runner = None
        if self.needs_text:
            assert text is not None
            assert library is not None
            assert team is not None
            runner = LayerRunner(self._source.spec, self._parameters, text.calibration, library, team)
        if self._export is not None:
            return _PreparedExport(self._export, runner, self._source)
        assert self._scheme is not None
        rounder = CheckpointRounder(self._source, self._parameters, runner, self._scheme, self._options.keep)
        return _PreparedCheckpoint(rounder, self._options.shard_bytes)


class PreparedRounding:
    """Knows how much there is to do. `run` writes into a directory and calls `progress` as it goes."""

    steps: int
    output_bytes: int

    def run(self, directory: Path, progress: Progress) -> Outcome:
        """Write everything."""
        raise AssertionError("one of the two below is meant")


class _PreparedCheckpoint(PreparedRounding):
    def __init__(self, rounder: CheckpointRounder, shard_bytes: int) -> None:
        self._rounder, self._shard_bytes = rounder, shard_bytes
        self.steps, self.output_bytes = rounder.steps, rounder.output_bytes()

    def run(self, directory: Path, progress: Progress) -> Outcome:
        """See PreparedRounding."""
        return self._rounder.run(directory, self._shard_bytes, progress)


class _PreparedExport(PreparedRounding):
    def __init__(self, export: GgufExport, runner: LayerRunner | None, source: ModelSource) -> None:
        self._export, self._runner = export, runner
        self.steps = export.tensors + (len(source.spec.layers) if runner is not None else 0)
        self.output_bytes = export.output_bytes

    def run(self, directory: Path, progress: Progress) -> Outcome:
        """See PreparedRounding."""
        return self._export.run(directory, self._runner, progress)


def _refuse_rounded(source: ModelSource, method: str) -> None:
    """Rounding twice only loses; and a safetensors method needs a directory to take over.

    Raises:
        UnsupportedError, ConfigError: as said.
    """
    if source.config.get("quantization_config") or FORMATS[source.dtype].role != "float":
        what = source.quantized.text if source.quantized else source.dtype
        raise ConfigError(
            f"{source.path} is quantized already ({what}), and rounding it again would only lose; "
            "give the unquantized model"
        )
    if source.gguf_metadata and method != "gguf":
        raise UnsupportedError(
            f"{source.path} is a GGUF file, which has no config.json and tokenizer to take over; "
            "give the model's directory, or use --method gguf"
        )


def _scheme(options: QuantizeOptions, parameters: Parameters) -> Scheme:
    """The method with its parameters.

    Raises:
        ConfigError: they exclude each other.
    """
    if options.method in ("int8", "fp8"):
        return EightBitScheme(options.method, options.alpha)
    group = _group_size(options, parameters)
    if options.method == "awq":
        if options.bits != 4:
            raise ConfigError(f"--bits {options.bits}: awq has 4; gptq has 4 and 8")
        if group == 0:
            raise ConfigError("--group-size -1: awq needs groups; 32, 64 and 128 are usual")
        return AwqScheme(group, symmetric=bool(options.symmetric))
    if options.bits not in (4, 8):
        raise ConfigError(f"--bits {options.bits}: gptq has 4 and 8")
    symmetric = True if options.symmetric is None else options.symmetric
    return GptqScheme(options.bits, group, symmetric, GptqOptions(options.act_order, options.damp))


def _group_size(options: QuantizeOptions, parameters: Parameters) -> int:
    """Inputs that share a scale; 0 stands for all of a row."""
    if options.group_size is not None:
        return max(options.group_size, 0)
    widths = [plan.columns for plan in parameters.plan.matrices if plan.name.startswith("layers.")]
    fitting = [sum(width % size == 0 for width in widths) for size in _GROUPS]
    return _GROUPS[fitting.index(max(fitting))]
