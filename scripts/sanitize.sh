#!/usr/bin/env bash
# sanitize.sh [address] [thread]: builds the native libraries with sanitizers and runs what exercises them.
#
#   address   AddressSanitizer and UndefinedBehaviorSanitizer: op conformance, programs and the worker
#   thread    ThreadSanitizer: a small model with weights in every format, on two threads and on five
#
# Both on every instruction set of this machine. Each begins by seeing that a defect made on purpose is noticed.
# PYTHON: the interpreter (default: .venv/bin/python).  PYTEST_ARGS: more for pytest, e.g. "-k linear".
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
jobs=${MAX_JOBS:-$(nproc)}
PATH="$(dirname "$python"):$PATH"
export PATH OCTAVO_CACHE_DIR=build/sanitize/cache

# build KIND SANITIZERS: libraries in build/sanitize/KIND/octavo/_native
build() {
    echo "  Building with -fsanitize=$2 ..."
    cmake -S native -B "build/sanitize/$1" -G Ninja -DCMAKE_BUILD_TYPE=None -DOCTAVO_SANITIZE="$2" >/dev/null
    cmake --build "build/sanitize/$1" -j "$jobs" >/dev/null
    cmake --install "build/sanitize/$1" --prefix "build/sanitize/$1/octavo" >/dev/null
}

# runtime NAMES...: the compiler's own sanitizer libraries, as LD_PRELOAD takes them. The C++ library comes along because
# AddressSanitizer looks for it when the process starts, and Python itself does not load it.
runtime() {
    for name in "$@" stdc++; do
        "${CXX:-c++}" -print-file-name="lib$name.so"
    done | paste -sd ' '
}

# notices DIRECTORY DEFECT MESSAGE COMMAND...: COMMAND's Python must end with MESSAGE. A race may not come to pass at once.
notices() {
    local directory=$1 defect=$2 message=$3 log=build/sanitize/$2.log
    shift 3
    for _ in 1 2 3 4 5 6 7 8; do
        if ! "$@" "$python" -m tests.sanitizers.defects "$directory" "$defect" 2>"$log" && grep -q "$message" "$log"; then
            return
        fi
    done
    echo "error: the sanitizer did not notice the defect '$defect' that tests/sanitizers/defects.py made; see $log" >&2
    exit 1
}

check_address() {
    build address address,undefined
    local directory=build/sanitize/address/octavo/_native
    # Every allocation through malloc, every defect ends the run. Python frees little at its end: no leak detection.
    local under=(env PYTHONMALLOC=malloc LD_PRELOAD="$(runtime asan ubsan)"
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)
    "${under[@]}" "$python" -m tests.sanitizers.defects "$directory" nothing
    notices "$directory" read heap-buffer-overflow "${under[@]}"
    notices "$directory" write heap-buffer-overflow "${under[@]}"
    # shellcheck disable=SC2086
    "${under[@]}" "$python" -m pytest -p tests.sanitizers.plugin --native-directory="$directory" -p no:cacheprovider \
        --timeout=1200 -q tests/conformance tests/execution/test_worker.py ${PYTEST_ARGS:-}
}

check_thread() {
    build thread thread
    local directory=build/sanitize/thread/octavo/_native
    # Without address space randomization: some kernels place more at random than ThreadSanitizer can map.
    local under=(setarch -R env LD_PRELOAD="$(runtime tsan)" TSAN_OPTIONS=halt_on_error=1)
    "${under[@]}" "$python" -m tests.sanitizers.defects "$directory" nothing
    notices "$directory" race "data race" "${under[@]}"
    "${under[@]}" "$python" -m tests.sanitizers.threads "$directory"
}

[ $# -gt 0 ] || set -- address thread
for kind in "$@"; do
    case $kind in
    address | thread) "check_$kind" ;;
    *)
        echo "usage: $0 [address] [thread]" >&2
        exit 2
        ;;
    esac
done
