"""pytest plugin: tests use the native libraries of another directory, and memory that ends where it is said to end.

    python -m pytest -p tests.sanitizers.plugin --native-directory DIR tests/conformance

`scripts/sanitize.sh` runs it with libraries that were built with sanitizers.
"""

import ctypes
import weakref
from pathlib import Path

import numpy as np

from octavo.errors import ConfigError
from octavo.kernels.cpu import allocate

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]


def pytest_addoption(parser):
    parser.addoption("--native-directory", type=Path, required=True, help="where the native libraries are")


def pytest_configure(config):
    # Before any other module of octavo takes these names from theirs.
    allocate.aligned_bytes = exact_bytes
    allocate.mapped_bytes = zero_bytes
    use_libraries(config.getoption("native_directory").resolve())


def pytest_report_header(config):
    return f"native libraries: {config.getoption('native_directory')}"


def use_libraries(directory):
    """Make `directory` what the functions of library.py look into."""
    from octavo.kernels.cpu import library

    library.NATIVE_DIRECTORY = directory
    library.load_library.__defaults__ = ("auto", directory)
    library.supported_isas.__defaults__ = (directory,)


def exact_bytes(count):
    """As `allocate.aligned_bytes`, from malloc and with nothing spare: a sanitizer sees the first byte past the end."""
    address = ctypes.c_void_p()
    if _LIBC.posix_memalign(ctypes.byref(address), allocate.ALIGNMENT, max(count, 1)) != 0:
        raise ConfigError(f"{count} bytes of memory cannot be had: a smaller --kv-cache-size needs less")
    memory = (ctypes.c_uint8 * count).from_address(address.value)
    array = np.frombuffer(memory, np.uint8, count) if count else np.empty(0, np.uint8)
    weakref.finalize(memory, _LIBC.free, address)
    return array


def zero_bytes(count):
    """As `allocate.mapped_bytes`, likewise."""
    array = exact_bytes(count)
    array[:] = 0
    return array
