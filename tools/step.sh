#!/usr/bin/env bash
# Runs one named step of a long target and says how long it took.
#   step.sh --begin TARGET      start the list of durations
#   step.sh NAME COMMAND...     run a step; its exit status is ours
#   step.sh --end TARGET        print the list
set -u
times=build/step_times
mkdir -p "$(dirname "$times")"

case $1 in
--begin)
    printf '%s\n' "$(date +%s)" >"$times"
    ;;
--end)
    echo "== $2 passed in $(($(date +%s) - $(head -n 1 "$times"))) s:"
    tail -n +2 "$times"
    ;;
*)
    name=$1
    shift
    echo "== $name"
    start=$(date +%s)
    "$@"
    rc=$?
    took=$(($(date +%s) - start))
    printf '   %-16s %5d s\n' "$name" "$took" >>"$times"
    if [ $rc -ne 0 ]; then
        echo "== $name FAILED after $took s (exit status $rc)"
    fi
    exit $rc
    ;;
esac
