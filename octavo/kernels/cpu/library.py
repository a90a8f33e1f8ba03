"""Finds, loads and types the native library for an instruction set; abi.h is the only declaration of its functions."""

import ctypes
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError

# Written against this number of octavo_abi_version().
ABI_VERSION = 14
# Best first.
ISA_ORDER = ("amx", "avx512", "avx2_vnni", "avx2", "neon_i8mm", "neon_dotprod", "neon", "scalar")
NATIVE_DIRECTORY = Path(__file__).parents[2] / "_native"

_BF16_WAYS = ("floats", "pairs", "tiles")
_SCALARS: dict[str, type] = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_DECLARATION = re.compile(r"^([a-z][\w ]*[ *]+)(octavo_\w+)\(([^)]*)\);", re.MULTILINE)
_HINT = "run `make` or `pip install .` in the source tree (it needs a C++ compiler and CMake)"


@dataclass(frozen=True, slots=True)
class Bf16Products:
    """How bf16 weights are multiplied on this processor, and what that was chosen by.

    Attributes:
        way: "floats", "pairs" (VDPBF16PS; on Arm BFMLALB and BFMLALT) or "tiles" (AMX).
        floats: operations a second of one thread as floats; 0 where there is nothing to choose.
        pairs: likewise in pairs.
        same_bits: both give the same results, bit by bit.
    """

    way: str
    floats: float
    pairs: float
    same_bits: bool


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """One loaded library. `call` has a typed attribute for every function of abi.h."""

    isa: str
    path: Path
    call: ctypes.CDLL

    def source_bytes(self, format_code: int, rows: int, cols: int) -> int:
        """Bytes of a matrix in its file; negative when the format or `cols` does not fit (abi.h)."""
        return self.call.octavo_source_bytes(format_code, rows, cols)

    def packed_bytes(self, format_code: int, rows: int, cols: int) -> int:
        """Bytes of a packed matrix; negative when the format or `cols` does not fit (abi.h)."""
        return self.call.octavo_packed_bytes(format_code, rows, cols)

    def cache_layer_bytes(
        self, format_code: int, kv_heads: int, key_width: int, block_size: int, value_width: int | None = None
    ) -> int:
        """Bytes that one layer takes in a page of `block_size` tokens; values are as wide as keys unless told."""
        value_width = key_width if value_width is None else value_width
        return self.call.octavo_cache_layer_bytes(format_code, kv_heads, key_width, value_width, block_size)

    def bf16_products(self) -> Bf16Products:
        """What was chosen for bf16; the first who asks, or multiplies, waits for a probe of less than a millisecond."""
        facts = (ctypes.c_double * 3)()
        self.call.octavo_bf16_facts(facts)
        return Bf16Products(_BF16_WAYS[self.call.octavo_bf16_way()], facts[0], facts[1], bool(facts[2]))


def load_library(isa: str = "auto", directory: Path = NATIVE_DIRECTORY) -> NativeLibrary:
    """The library of `isa`, or with "auto" the best one that this CPU runs.

    Raises:
        ConfigError: no such library, this CPU cannot run it, or it was built from another version.
    """
    present = _present(directory)
    if not present:
        raise ConfigError(f"native library not built: nothing in {directory}; {_HINT}")
    if isa == "auto":
        for path in present.values():
            library = open_library(path)
            if library.call.octavo_isa_supported():
                return library
        raise ConfigError(f"no native library in {directory} runs on this CPU (present: {', '.join(present)}); {_HINT}")
    if isa not in present:
        raise ConfigError(f"no native library for {isa} in {directory} (present: {', '.join(present)}); {_HINT}")
    library = open_library(present[isa])
    if not library.call.octavo_isa_supported():
        raise ConfigError(f"this CPU cannot run {isa} kernels; choose one of {', '.join(supported_isas(directory))}")
    return library


def supported_isas(directory: Path = NATIVE_DIRECTORY) -> tuple[str, ...]:
    """Instruction sets whose library is present and runs on this CPU, best first."""
    return tuple(isa for isa, path in _present(directory).items() if open_library(path).call.octavo_isa_supported())


def open_library(path: Path) -> NativeLibrary:
    """Open and type the library at `path`, whether this CPU can run its kernels or not.

    Raises:
        ConfigError: it cannot be opened, lacks a declared function, or has another ABI version.
    """
    header = _header(path.parent)
    try:
        native = ctypes.CDLL(str(path))
        for name, result, arguments in declarations(header.read_text()):
            function = getattr(native, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ConfigError(f"cannot use native library {path}: {error}; {_HINT}") from error
    version = native.octavo_abi_version()
    if version != ABI_VERSION:
        raise ConfigError(f"native library {path} has ABI version {version}, this Octavo needs {ABI_VERSION}; {_HINT}")
    return NativeLibrary(native.octavo_isa().decode(), path, native)


def library_digest(isa: str) -> str:
    """Names the very code of an instruction set's library; empty where there is none."""
    path = _present(NATIVE_DIRECTORY).get(isa)
    return "" if path is None else hashlib.blake2b(path.read_bytes(), digest_size=20).hexdigest()


def declarations(header: str) -> list[tuple[str, type | None, list[type]]]:
    """(name, result type, argument types) of every function declared in the text of a header."""
    found: list[tuple[str, type | None, list[type]]] = []
    for result, name, parameters in _DECLARATION.findall(header):
        arguments = [] if parameters.strip() in ("", "void") else [_argument(p) for p in parameters.split(",")]
        found.append((name, _result(result.strip()), arguments))
    return found


def _present(directory: Path) -> dict[str, Path]:
    """Libraries in `directory` by instruction set, best first."""
    paths = {isa: directory / f"liboctavo_{isa}.so" for isa in ISA_ORDER}
    return {isa: path for isa, path in paths.items() if path.is_file()}


def _header(directory: Path) -> Path:
    """abi.h as installed beside the libraries.

    Raises:
        ConfigError: it is not there.
    """
    path = directory / "include" / "octavo" / "abi.h"
    if path.is_file():
        return path
    raise ConfigError(f"abi.h is missing in {directory}; {_HINT}")


def _argument(parameter: str) -> type:
    """The ctypes type of one parameter declaration."""
    if "*" in parameter:
        return ctypes.c_void_p
    return _SCALARS[parameter.split()[-2]]


def _result(declared: str) -> type | None:
    """The ctypes type of a declared result."""
    if declared == "void":
        return None
    if "char" in declared:
        return ctypes.c_char_p
    if "*" in declared:
        return ctypes.c_void_p
    return _SCALARS[declared]
