#!/usr/bin/env bash
# neon.sh [test]: compiles the native libraries for AArch64 (scalar, NEON, NEON with dot products) with the cross compiler, warnings being errors.
#
#   test   also runs the conformance cases with them under qemu-user: recorded here with the scalar build, replayed there
#
# PYTHON: the interpreter that records (default: .venv/bin/python).  ONLY: cases whose name holds this.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-g++ emulator=qemu-aarch64 root=/usr/aarch64-linux-gnu
need() {
  if ! command -v "$1" >/dev/null; then
    echo "error: no $1; install it with: apt-get install $2" >&2
    exit 2
  fi
}
need "$compiler" g++-aarch64-linux-gnu
cmake -S native -B build/aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake >/dev/null
cmake --build build/aarch64 --parallel "${MAX_JOBS:-2}"
ls -l build/aarch64/liboctavo_*.so
[ "${1:-}" = test ] || exit 0

need "$emulator" qemu-user
"$compiler" -std=c++17 -O1 -Wall -Wextra -Werror -I native/include tests/portability/replay.cpp -o build/aarch64/replay -ldl
"${PYTHON:-.venv/bin/python}" -m tests.portability.record build/aarch64/cases.bin --only "${ONLY:-}"
for isa in scalar neon neon_dotprod; do
  "$emulator" -L "$root" build/aarch64/replay "build/aarch64/liboctavo_$isa.so" build/aarch64/cases.bin
done
