"""The two ways to compute, each with what the composition root asks of it: a packer, page sizes, and a runner."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import groups_for, page_bytes
from octavo.config.resolve import ResolvedConfig, ResolvedModel
from octavo.errors import ConfigError
from octavo.execution.cpu.runner import NativeRunner, record_program
from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.runner import Runner
from octavo.execution.slots import SlotTable
from octavo.execution.tiers.pages import DevicePages
from octavo.kernels.choose import KernelChoice, kernel_choices
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits, Recording
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.decoder import Decoder
from octavo.ops.weight import PackedWeight, Packer
from octavo.spec.decoder import CacheNeed, DecoderSpec

if TYPE_CHECKING:
    from octavo.execution.torch.packer import TorchPacker

_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Backend(Protocol):
    """What the composition root asks of a way to compute. Owner of its threads and its cache's memory."""

    @property
    def packer(self) -> Packer: ...

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """The model's layers by what they keep."""
        ...

    def page_bytes(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> int:
        """Bytes of a cache page."""
        ...

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, page: int) -> Runner:
        """Ready to run steps, its cache allocated. `page`: bytes of a cache page."""
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
        self._layer_bytes = cache_layer_bytes(self._library, config.kv_cache_dtype.value, config.block_size.value)
        self._team = ThreadTeam(self._library, config.threads.value)
        self.packer = NativePacker(self._library, self._team)
        self.pages: CpuStorage | None = None
        self.program: NativeProgram | None = None

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """See Backend."""
        return groups_for(spec, self._layer_bytes)

    def page_bytes(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> int:
        """See Backend."""
        return page_bytes(spec, groups, self._layer_bytes)

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, page: int) -> Runner:
        """See Backend."""
        model = config.model
        storage = self.pages = CpuStorage(config.cache.num_blocks.value, page)
        cache = storage.cache(model.kv_cache_dtype.value, model.block_size.value, table.tables)
        limits = ProgramLimits(model.max_num_batched_tokens.value, model.max_num_seqs.value)
        how = Recording(coded=model.linear_compute.value == "int8")
        length = model.max_model_len.value
        self.program = record_program(self._library, self._team, decoder, limits, cache, length, how)
        return NativeRunner(self.program, storage)

    def kernels(self, weights: Sequence[PackedWeight]) -> list[KernelChoice]:
        """See Backend."""
        forced, coded = "best" not in self._config.isa.reason, self._config.linear_compute.value == "int8"
        return kernel_choices(self._library, weights, forced=forced, coded=coded)

    def close(self) -> None:
        """See Backend."""
        self._team.close()


class TorchBackend:
    """The PyTorch reference, op by op: slow, and right by definition."""

    def __init__(self, config: ResolvedModel) -> None:
        self._config = config
        self._layer_bytes = cache_layer_bytes(None, config.kv_cache_dtype.value, config.block_size.value)
        self.packer: TorchPacker = _torch_packer()
        self.pages: DevicePages | None = None
        self.program: NativeProgram | None = None

    def groups(self, spec: DecoderSpec) -> tuple[KVCacheGroup, ...]:
        """See Backend."""
        return groups_for(spec, self._layer_bytes)

    def page_bytes(self, spec: DecoderSpec, groups: Sequence[KVCacheGroup]) -> int:
        """See Backend."""
        return page_bytes(spec, groups, self._layer_bytes)

    def runner(self, decoder: Decoder[Any], table: SlotTable, config: ResolvedConfig, page: int) -> Runner:
        """See Backend."""
        from octavo.execution.torch.runner import TorchRunner
        from octavo.execution.torch.storage import TorchStore

        model = config.model
        store = TorchStore(config.cache.num_blocks.value, model.block_size.value, model.kv_cache_dtype.value)
        return TorchRunner(decoder, store, model.threads.value)

    def kernels(self, weights: Sequence[PackedWeight]) -> list[KernelChoice]:
        """See Backend."""
        return [KernelChoice("all ops", "PyTorch reference", "asked for with --backend torch")]

    def close(self) -> None:
        """See Backend."""


def cache_layer_bytes(library: NativeLibrary | None, dtype: str, block_size: int) -> Callable[[CacheNeed], int]:
    """How many bytes a layer takes in a page; without a library: in the torch backend's."""

    def native(need: CacheNeed) -> int:
        assert library is not None
        return library.cache_layer_bytes(
            CACHE_FORMAT_OF_DTYPE[dtype], need.kv_heads, need.key_width, block_size, need.value_width
        )

    def plain(need: CacheNeed) -> int:
        return need.kv_heads * (need.key_width + need.value_width) * block_size * _ELEMENT_BYTES[dtype]

    return plain if library is None else native


def open_backend(config: ResolvedModel) -> Backend:
    """The backend that was chosen, its threads running.

    Raises:
        ConfigError: it is not installed.
    """
    return TorchBackend(config) if config.backend.value == "torch" else NativeBackend(config)


def _torch_packer() -> "TorchPacker":
    try:
        from octavo.execution.torch.packer import TorchPacker
    except ModuleNotFoundError as error:
        raise ConfigError(f"the torch backend needs {error.name}: pip install 'octavo[torch]'") from error
    return TorchPacker()
