"""The two ways to compute, each with what the composition root asks of it: a packer, page sizes, and a runner."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import LayerBytes, PageLayout, groups_for, kept_types, page_layout
from octavo.config.cache_types import PLAIN_TYPES, TYPE_BITS
from octavo.config.resolve import ResolvedConfig, ResolvedModel
from octavo.errors import ConfigError
from octavo.execution.cpu.pooling import NativePoolingRunner
from octavo.execution.cpu.runner import NativeRunner, record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.pooling import PoolingRunner
from octavo.execution.runner import Runner
from octavo.execution.slots import SlotTable
from octavo.execution.tiers.pages import DevicePages
from octavo.kernels.choose import KernelChoice, kernel_choices
from octavo.kernels.cpu.cache import CachePart, NativeCache
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits, Recording
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE, Coding
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.decoder import Decoder
from octavo.ops.weight import PackedWeight, Packer
from octavo.spec.decoder import CacheNeed, DecoderSpec

if TYPE_CHECKING:
    from octavo.execution.torch.packer import TorchPacker
    from octavo.execution.torch.storage import TorchStore


class Backend(Protocol):
    """What the composition root asks of a way to compute. Owner of its threads and its cache's memory."""

    @property
    def packer(self) -> Packer: ...

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """The model's layers by what they keep."""
        ...

    def layout(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> PageLayout:
        """What a cache page is made of."""
        ...

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout) -> Runner:
        """Ready to run steps, its cache allocated."""
        ...

    def pooling_runner(
        self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout
    ) -> PoolingRunner:
        """As `runner`, for a model whose hidden states are wanted."""
        ...

    def kernels(self, weights: Sequence[PackedWeight]) -> list[KernelChoice]:
        """Which kernel runs where, and why."""
        ...

    @property
    def pages(self) -> DevicePages | None:
        """The cache's blocks, once there is a runner; None when they cannot be copied out."""
        ...

    @property
    def program(self) -> NativeProgram | None:
        """What was recorded, once there is a runner; None when steps are not recorded."""
        ...

    def close(self) -> None:
        """Stop its threads."""
        ...


class NativeBackend:
    """Recorded programs on the native library of this machine."""

    def __init__(self, config: ResolvedModel) -> None:
        self._config = config
        self._library = load_library(config.isa.value)
        self._team = ThreadTeam(self._library, config.threads.value, config.placement.value.cpus or None)
        self.packer = NativePacker(self._library, self._team)
        self.pages: CpuStorage | None = None
        self.program: NativeProgram | None = None

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """See Backend."""
        return groups_for(spec, _layer_bytes(self._library, spec, self._config))

    def layout(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> PageLayout:
        """See Backend."""
        kept = kept_types(spec, self._config.cache_types)
        return page_layout(spec, groups, _layer_bytes(self._library, spec, self._config), kept)

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout) -> Runner:
        """See Backend."""
        storage, cache = self._cache(table, config, layout)
        limits, length, how = self._recording(config.model)
        self.program = record_program(self._library, self._team, decoder, limits, cache, length, how)
        return NativeRunner(self.program, storage)

    def pooling_runner(
        self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout
    ) -> PoolingRunner:
        """See Backend."""
        storage, cache = self._cache(table, config, layout)
        limits, length, how = self._recording(config.model)
        runner = NativePoolingRunner(self._library, self._team, decoder, limits, cache, storage, (length, how))
        self.program = runner.program
        return runner

    def _cache(self, table: SlotTable, config: ResolvedConfig, layout: PageLayout) -> tuple[CpuStorage, NativeCache]:
        model = config.model
        storage = self.pages = CpuStorage(config.cache.num_blocks.value, layout.page_bytes)
        parts = {
            place: CachePart(CACHE_FORMAT_OF_DTYPE[part.type], part.offset) for place, part in layout.layers.items()
        }
        return storage, storage.cache(model.cache_types.plain, model.block_size.value, table.tables, parts)

    def _recording(self, model: ResolvedModel) -> tuple[ProgramLimits, int, Recording]:
        """Largest step, longest sequence, and how forwards become programs."""
        limits = ProgramLimits(model.max_num_batched_tokens.value, model.max_num_seqs.value)
        return limits, model.max_model_len.value, Recording(coding=Coding[model.linear_compute.value.upper()])

    def kernels(self, weights: Sequence[PackedWeight]) -> list[KernelChoice]:
        """See Backend."""
        forced, compute = "best" not in self._config.isa.reason, self._config.linear_compute.value
        return kernel_choices(self._library, weights, forced=forced, compute=compute)

    def close(self) -> None:
        """See Backend."""
        self._team.close()


class TorchBackend:
    """The PyTorch reference, op by op: slow, and right by definition."""

    def __init__(self, config: ResolvedModel) -> None:
        self._config = config
        self.packer: TorchPacker = _torch_packer()
        self.pages: DevicePages | None = None
        self.program: NativeProgram | None = None

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """See Backend."""
        return groups_for(spec, _layer_bytes(None, spec, self._config))

    def layout(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> PageLayout:
        """See Backend."""
        kept = kept_types(spec, self._config.cache_types)
        return page_layout(spec, groups, _layer_bytes(None, spec, self._config), kept)

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout) -> Runner:
        """See Backend."""
        from octavo.execution.torch.runner import TorchRunner

        return TorchRunner(decoder, _torch_store(config, layout), config.model.threads.value)

    def pooling_runner(
        self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, layout: PageLayout
    ) -> PoolingRunner:
        """See Backend."""
        from octavo.execution.torch.pooling import TorchPoolingRunner

        return TorchPoolingRunner(decoder, _torch_store(config, layout), config.model.threads.value)

    def kernels(self, weights: Sequence[PackedWeight]) -> list[KernelChoice]:
        """See Backend."""
        return [KernelChoice("all ops", "PyTorch reference", "asked for with --backend torch")]

    def close(self) -> None:
        """See Backend."""


def cache_layer_bytes(library: NativeLibrary | None, kept: Mapping[int, str], block_size: int) -> LayerBytes:
    """How many bytes a layer takes in a page; without a library: in the torch backend's.

    Args:
        kept: the type of each layer.
    """

    def native(layer: int, need: CacheNeed) -> int:
        assert library is not None
        return library.cache_layer_bytes(
            CACHE_FORMAT_OF_DTYPE[kept[layer]], need.kv_heads, need.key_width, block_size, need.value_width
        )

    def plain(layer: int, need: CacheNeed) -> int:
        bits = max(8, TYPE_BITS[kept[layer]])  # there int4 takes a byte
        elements = need.kv_heads * (need.key_width + need.value_width) * block_size
        scales = 0 if kept[layer] in (*PLAIN_TYPES, "fp8_e5m2") else 2 * need.kv_heads * block_size
        groups = -(-need.key_width // 32) if kept[layer] == "int4" else 1
        return elements * bits // 8 + 2 * scales * groups

    return plain if library is None else native


def _layer_bytes(library: NativeLibrary | None, spec: DecoderSpec, config: ResolvedModel) -> LayerBytes:
    return cache_layer_bytes(library, kept_types(spec, config.cache_types), config.block_size.value)


def open_backend(config: ResolvedModel) -> Backend:
    """The backend that was chosen, its threads running.

    Raises:
        ConfigError: it is not installed.
    """
    return TorchBackend(config) if config.backend.value == "torch" else NativeBackend(config)


def _torch_store(config: ResolvedConfig, layout: PageLayout) -> "TorchStore":
    from octavo.execution.torch.storage import TorchStore

    model = config.model
    kept = {place: part.type for place, part in layout.layers.items()}
    return TorchStore(config.cache.num_blocks.value, model.block_size.value, model.cache_types.plain, kept)


def _torch_packer() -> "TorchPacker":
    try:
        from octavo.execution.torch.packer import TorchPacker
    except ModuleNotFoundError as error:
        raise ConfigError(f"the torch backend needs {error.name}: pip install 'octavo[torch]'") from error
    return TorchPacker()
