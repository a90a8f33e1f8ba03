"""Not a test: has native code do what a sanitizer must notice, to see that a sanitizer build works at all.

    python -m tests.sanitizers.defects DIR nothing|read|write|race

read and write: one number past a buffer. race: what one thread packs, another reads. Without a sanitizer it may end in
any way.
"""

import sys
from pathlib import Path

from tests.sanitizers.plugin import exact_bytes, use_libraries

ROWS_OF_A_TASK = 16
ROWS, COLUMNS = 8 * ROWS_OF_A_TASK, 8192
BYTES = ROWS * COLUMNS * 4


def main(directory, kind):
    use_libraries(directory)
    # Imported late: the modules below look for libraries when they are loaded.
    from octavo.kernels.cpu.library import load_library
    from octavo.kernels.cpu.structs import Format
    from octavo.kernels.cpu.team import ThreadTeam

    library = load_library("scalar")
    assert library.packed_bytes(Format.F32, ROWS, COLUMNS) == BYTES
    source = exact_bytes(BYTES - (4 if kind == "read" else 0))
    target = exact_bytes(BYTES - (4 if kind == "write" else 0))
    if kind == "race":  # half a task's rows apart, so that each task writes where the next one reads
        source = exact_bytes(2 * BYTES)
        target = source[BYTES // ROWS * ROWS_OF_A_TASK // 2 :]
    source[:] = 0
    team = ThreadTeam(library, 2)
    library.call.octavo_pack(team.handle, Format.F32, source.ctypes.data, ROWS, COLUMNS, target.ctypes.data)
    team.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
