#!/usr/bin/env bash
# Fuzzes, guided by coverage, what reads headers of extents and the small files of a root: every
# tests/fuzz/fuzz_*.c with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer, all at
# the same time, from the corpus in the tree and what earlier runs left in build/fuzz.
#   fuzz.sh SECONDS
#   fuzz.sh --keep      adds what reaches new code to the corpus in the tree, minimised
# Without clang it says so and does nothing; with CI set that is a failure.
set -euo pipefail
out=build/fuzz
names=(header root_files)

if ! tools/system_packages.sh --fuzzer; then
    [ -z "${CI:-}" ] || exit 1
    echo "== NOT FUZZED: there is no clang. The corpus itself runs in \`make c-tests\`."
    exit 0
fi
# Coverage is taken of the code under test alone: edges of a checksum or of the checks tell nothing.
build() {
    local name=$1 object objects=()
    shift
    mkdir -p "$out/found_$name"
    for file in "tests/fuzz/fuzz_$name.c" "tests/fuzz/check_$name.c" csrc/xxh3.c "$@"; do
        object=$out/$name-$(basename "$file" .c).o
        guide=()
        [[ " $* " != *" $file "* ]] || guide=(-fsanitize=fuzzer-no-link)
        clang -std=gnu11 -O2 -g -Icsrc -Wall -Wextra -Werror -fsanitize=address,undefined \
            -fno-sanitize-recover=undefined "${guide[@]}" -c "$file" -o "$object"
        objects+=("$object")
    done
    clang -fsanitize=fuzzer,address,undefined "${objects[@]}" -o "$out/fuzz_$name"
}
build header csrc/format.c csrc/format_decode.c
build root_files csrc/root_files.c

if [ "$1" = --keep ]; then
    for name in "${names[@]}"; do
        "$out/fuzz_$name" -merge=1 -use_counters=0 -max_len=12288 \
            "tests/fuzz/corpus/$name" "$out/found_$name" 2>&1 | tail -n 1
    done
    exit 0
fi

declare -A running
for name in "${names[@]}"; do
    "$out/fuzz_$name" "-max_total_time=$1" -max_len=12288 -timeout=10 -print_final_stats=1 \
        "-artifact_prefix=$out/crash_$name-" "$out/found_$name" "tests/fuzz/corpus/$name" \
        >"$out/$name.log" 2>&1 &
    running[$name]=$!
done
failed=0
for name in "${names[@]}"; do
    if ! wait "${running[$name]}"; then
        failed=1
        tail -n 40 "$out/$name.log"
        echo "FAILED: the input is in $out/crash_$name-*. Once it passes, put it into" \
            "tests/fuzz/corpus/$name"
    fi
    awk -v name="$name" '
        /inline 8-bit counters\)/ { gsub(/[^0-9]/, "", $5); edges = $5 }
        / cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") covered = $(i + 1)
                                              if ($i == "ft:") features = $(i + 1) } }
        /number_of_executed_units/ { runs = $2 }
        END { printf "fuzz %s: %d executions, %d of %d edges, %d features\n",
                     name, runs, covered, edges, features }' "$out/$name.log"
done
exit $failed
