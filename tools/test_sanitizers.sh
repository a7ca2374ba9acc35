#!/usr/bin/env bash
# AddressSanitizer and UndefinedBehaviorSanitizer: all C programs, then the suite against an
# extension built with both. Leaks are looked for in the C programs only: the interpreter itself
# never frees some of its memory. torch is left out (minutes of import, and none of our C).
#   test_sanitizers.sh VENV_PYTHON
set -euo pipefail
python=$1
make --no-print-directory -f tools/c_programs.mk VARIANT=address run

copy=build/tree-sanitized
tools/copy_tree.sh "$copy"
cd "$copy"
KVSTORE_SANITIZE=address,undefined "$python" setup.py --quiet build_ext --inplace
# Python is not built with the sanitizer, so its run time has to be loaded first; libstdc++ with it,
# or exceptions thrown in C++ libraries (of other extensions) are not intercepted.
preload="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)"
stdcxx=$(cc -print-file-name=libstdc++.so.6)
[ ! -e "$stdcxx" ] || preload+=" $stdcxx"
LD_PRELOAD=$preload \
    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1 \
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    PYTHONMALLOC=malloc \
    "$python" -m pytest --without-torch -m "not slow and not bench" -q
