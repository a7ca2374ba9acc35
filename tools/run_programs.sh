#!/usr/bin/env bash
# Runs test programs one after the other, each with a time limit, and prints name, result, duration.
#   run_programs.sh LABEL RUNNER PROGRAM...     RUNNER may be empty
set -u
label=$1
read -r -a runner <<<"$2"
shift 2
limit=300
passed=0
failed=0
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}

for program in "$@"; do
    start=$(date +%s.%N)
    timeout --kill-after=10 "$limit" "${runner[@]}" "$program"
    rc=$?
    took=$(awk "BEGIN { print $(date +%s.%N) - $start }")
    if [ $rc -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok     %-32s %6.2f s\n' "$(basename "$program")" "$took"
    else
        failed=$((failed + 1))
        [ $rc -eq 124 ] && echo "no end within $limit s"
        printf 'FAILED %-32s %6.2f s, exit status %d\n' "$(basename "$program")" "$took" "$rc"
    fi
done
echo "C programs ($label): $passed passed, $failed failed"
[ $failed -eq 0 ]
