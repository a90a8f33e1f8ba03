#!/usr/bin/env bash
# neon.sh [test]: compiles the native libraries for AArch64 (scalar, NEON, NEON with dot products, NEON with matrix
# products of bytes and bf16) with the cross compiler, warnings being errors.
#
#   test   also runs the conformance cases with them under qemu-user: recorded here with the AVX2 build, replayed there. The
#          NEON builds must give its results to the bit, the scalar build within the cases' tolerance
#
# PYTHON: the interpreter that records (default: .venv/bin/python).  ONLY: cases whose name holds this.
# RECORDED: the build that records, where this machine has no AVX2: scalar; then results need only be near.
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
# CPU and the builds it can run, of those that ask for more than any AArch64 has.
while read -r cpu wanted; do
  can=
  for isa in neon_dotprod neon_i8mm; do
    if "$emulator" -cpu "$cpu" -L "$root" build/aarch64/replay "build/aarch64/liboctavo_$isa.so" >/dev/null; then can+=" $isa"; fi
  done
  echo "$cpu can run:${can:- neither}"
  [ "$can" = "${wanted:+ $wanted}" ] || { echo "error: it should be: ${wanted:-neither}" >&2; exit 1; }
done <<'CPUS'
cortex-a72
neoverse-n1 neon_dotprod
max neon_dotprod neon_i8mm
CPUS

recorded=${RECORDED:-avx2}
"${PYTHON:-.venv/bin/python}" -m tests.portability.record build/aarch64/cases.bin --only "${ONLY:-}" --isa "$recorded"
for isa in scalar neon neon_dotprod neon_i8mm; do
  bits=()
  if [ "$recorded" != scalar ] && [ "$isa" != scalar ]; then bits=(bits); fi
  "$emulator" -cpu max -L "$root" build/aarch64/replay "build/aarch64/liboctavo_$isa.so" build/aarch64/cases.bin "${bits[@]}"
done
