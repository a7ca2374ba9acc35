#!/usr/bin/env bash
# The core with each way to reach io_uring: C programs for static, shared and shim, and the suite
# (without the model runner, which does not see the difference) for static and shim, but for the one
# that the extension here was built with: `make test` is that run.
#   test_uring.sh VENV_PYTHON
set -euo pipefail
python=$1
make="make --no-print-directory -f tools/c_programs.mk"

if [ ! -e /usr/include/liburing.h ]; then
    echo "liburing-dev is not installed: only the shim can be tested here"
    # In CI the point of this step is that both builds work.
    [ -z "${CI:-}" ] || exit 1
    kinds=(shim)
else
    kinds=(static shared shim)
fi
for kind in "${kinds[@]}"; do
    echo "-- io_uring by $kind"
    $make "URING=$kind" run-test
    [ "$kind" != shared ] || continue
    if grep -qs "^URING := $kind\$" build/uring.mk; then
        echo "the suite runs on $kind in make test"
        continue
    fi
    copy=build/tree-$kind
    tools/copy_tree.sh "$copy"
    (
        cd "$copy"
        KVSTORE_URING=$kind "$python" setup.py --quiet build_ext --inplace
        "$python" -m pytest --without-torch -m "not slow and not bench" -q
    )
done
