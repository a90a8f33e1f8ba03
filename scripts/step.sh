#!/usr/bin/env bash
# step.sh "What is done" command...: runs a step quietly, shows that it is alive, prints its output only when it fails.
set -u
title=$1
shift
mkdir -p build/log
log=build/log/$(printf '%s' "$title" | tr -cs 'A-Za-z0-9' '-' | cut -c1-40).log
started=$SECONDS

"$@" >"$log" 2>&1 </dev/null &
child=$!
trap 'kill "$child" 2>/dev/null; printf "\n"; exit 130' INT TERM

if [ -t 1 ]; then
    while kill -0 "$child" 2>/dev/null; do
        printf '\r\033[K  %s ... %d s' "$title" $((SECONDS - started))
        sleep 0.5
    done
else
    printf '  %s ...\n' "$title"
fi

if wait "$child"; then
    if [ -t 1 ]; then printf '\r\033[K'; fi
    printf '  %s: done in %d s\n' "$title" $((SECONDS - started))
else
    code=$?
    if [ -t 1 ]; then printf '\r\033[K'; fi
    printf '  %s: FAILED after %d s. The end of %s:\n\n' "$title" $((SECONDS - started)) "$log"
    tail -n 40 "$log"
    exit "$code"
fi
