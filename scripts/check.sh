#!/usr/bin/env bash
# check.sh lint|test [pytest arguments]: the checks of `make lint` and `make test`, with what is installed in .venv.
set -eu
bin=.venv/bin
what=$1
shift

case $what in
lint)
    "$bin/ruff" check .
    "$bin/ruff" format --check .
    "$bin/pyright" --pythonpath "$bin/python"
    "$bin/lint-imports"
    ;;
test)
    # Temporary caches: a test run neither uses nor changes the user's packed weights.
    caches=$(mktemp -d)
    trap 'rm -rf "$caches"' EXIT
    HF_HUB_OFFLINE=1 OCTAVO_CACHE_DIR="$caches" "$bin/python" -m pytest "$@"
    ;;
*)
    echo "usage: $0 lint|test [pytest arguments]" >&2
    exit 2
    ;;
esac
