"""Not a test: native code reads or writes one element past a buffer, to see that a sanitizer build notices.

    python -m tests.sanitizers.overflow DIR read|write|nothing

Without a sanitizer it may end in any way.
"""

import sys
from pathlib import Path

from tests.sanitizers.plugin import exact_bytes, use_libraries

ROWS, COLUMNS = 16, 64
BYTES = ROWS * COLUMNS * 4


def main(directory, kind):
    use_libraries(directory)
    # Imported late: the modules below look for libraries when they are loaded.
    from octavo.kernels.cpu.library import load_library
    from octavo.kernels.cpu.structs import Format
    from octavo.kernels.cpu.team import ThreadTeam

    library = load_library("scalar")
    source = exact_bytes(BYTES - (4 if kind == "read" else 0))
    target = exact_bytes(library.packed_bytes(Format.F32, ROWS, COLUMNS) - (4 if kind == "write" else 0))
    source[:] = 0
    team = ThreadTeam(library, 2)
    library.call.octavo_pack(team.handle, Format.F32, source.ctypes.data, ROWS, COLUMNS, target.ctypes.data)
    team.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
