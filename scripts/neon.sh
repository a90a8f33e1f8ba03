#!/usr/bin/env bash
# Compiles the native libraries for AArch64 (scalar and NEON) with the cross compiler, warnings being errors.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo "error: no compiler for AArch64; install it with: apt-get install g++-aarch64-linux-gnu" >&2
  exit 2
fi
cmake -S native -B build/aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake >/dev/null
cmake --build build/aarch64 --parallel "${MAX_JOBS:-2}"
ls -l build/aarch64/liboctavo_*.so
