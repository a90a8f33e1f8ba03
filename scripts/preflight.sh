#!/usr/bin/env bash
# preflight.sh PYTHON: says plainly what this machine lacks before anything is built.
set -u
python=$1
failed=0

complain() {
    printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2
    failed=1
}

if ! command -v "$python" >/dev/null 2>&1; then
    complain "no $python found" "on Debian or Ubuntu: sudo apt-get install python3 python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    complain "$python is $("$python" -V 2>&1), Octavo needs Python 3.10 or newer" "name another one: make demo PYTHON=python3.12"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    complain "$python cannot make virtual environments" "on Debian or Ubuntu: sudo apt-get install python3-venv"
fi

compiler=${CXX:-}
if [ -n "$compiler" ]; then
    if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
        complain "CXX is set to '$compiler', which is not there" "unset CXX or install that compiler"
    fi
elif ! command -v c++ >/dev/null 2>&1 && ! command -v g++ >/dev/null 2>&1 && ! command -v clang++ >/dev/null 2>&1; then
    complain "no C++ compiler found" "on Debian or Ubuntu: sudo apt-get install g++   (Fedora: sudo dnf install gcc-c++)"
fi

exit "$failed"
