#!/usr/bin/env bash
# sanitize.sh [address] [thread]: builds the native libraries with sanitizers and runs what exercises them.
#
#   address   AddressSanitizer and UndefinedBehaviorSanitizer: op conformance, programs and the worker, on every
#             instruction set of this machine
#   thread    ThreadSanitizer: the demo model on two and five threads
#
# PYTHON: the interpreter (default: .venv/bin/python).  PYTEST_ARGS: more for pytest, e.g. "-k linear".
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
jobs=${MAX_JOBS:-$(nproc)}
export PATH="$(dirname "$python"):$PATH"

# build KIND SANITIZERS: libraries in build/sanitize/KIND/octavo/_native
build() {
    cmake -S native -B "build/sanitize/$1" -G Ninja -DCMAKE_BUILD_TYPE=None -DOCTAVO_SANITIZE="$2" >/dev/null
    cmake --build "build/sanitize/$1" -j "$jobs"
    cmake --install "build/sanitize/$1" --prefix "build/sanitize/$1/octavo" >/dev/null
}

# runtime NAMES...: the compiler's own copies of sanitizer libraries, as LD_PRELOAD takes them. The C++ library comes
# along because AddressSanitizer looks for it when the process starts, and Python itself does not load it.
runtime() {
    for name in "$@" stdc++; do
        "${CXX:-c++}" -print-file-name="lib$name.so"
    done | paste -sd ' '
}

check_address() {
    build address address,undefined
    directory=build/sanitize/address/octavo/_native
    # Every allocation through malloc, every defect ends the run. Python frees little at its end: no leak detection.
    under=(env PYTHONMALLOC=malloc OCTAVO_CACHE_DIR=build/sanitize/cache LD_PRELOAD="$(runtime asan ubsan)"
        ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)

    "${under[@]}" "$python" -m tests.sanitizers.overflow "$directory" nothing
    for kind in read write; do
        if "${under[@]}" "$python" -m tests.sanitizers.overflow "$directory" "$kind" 2>build/sanitize/overflow.log ||
            ! grep -q heap-buffer-overflow build/sanitize/overflow.log; then
            echo "error: AddressSanitizer did not notice a $kind past a buffer; see build/sanitize/overflow.log" >&2
            exit 1
        fi
    done
    # shellcheck disable=SC2086
    "${under[@]}" "$python" -m pytest -p tests.sanitizers.plugin --native-directory="$directory" -p no:cacheprovider \
        --timeout=1200 -q tests/conformance tests/execution/test_worker.py ${PYTEST_ARGS:-}
}

check_thread() {
    build thread thread
    # Without address space randomization: some kernels place more at random than ThreadSanitizer can map.
    setarch -R env OCTAVO_CACHE_DIR=build/sanitize/cache LD_PRELOAD="$(runtime tsan)" \
        TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0 \
        "$python" -m tests.sanitizers.threads build/sanitize/thread/octavo/_native
}

for kind in "${@:-address thread}"; do
    for one in $kind; do
        case $one in
        address) check_address ;;
        thread) check_thread ;;
        *)
            echo "usage: $0 [address] [thread]" >&2
            exit 2
            ;;
        esac
    done
done
