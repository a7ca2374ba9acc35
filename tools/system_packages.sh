#!/usr/bin/env bash
# Sees to it that the system has what a checkout needs: an interpreter with headers and venv, and a
# C compiler. As root on a machine with apt, what is missing is installed (and what only some tests
# need: liburing-dev, without which our shim is used, and tools to make file systems). Otherwise it
# names the line to run, and stops.
#   system_packages.sh PYTHON
#   system_packages.sh --fuzzer     clang with libFuzzer and sanitizers instead: about 50 MB to
#                                   download, 280 MB on disk
set -euo pipefail
if [ "$1" = --fuzzer ]; then
    links() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer,address,undefined -xc - -o /dev/null 2>/dev/null; }
    links && exit 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "== installing system packages: clang and its run-time library"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || true
        apt-get install -y -qq --no-install-recommends clang >/dev/null || true
        # From Debian 12 on the run-time library is a package of its own, named by the version.
        version=$(clang -dumpversion 2>/dev/null | cut -d . -f 1)
        links || apt-get install -y -qq --no-install-recommends "libclang-rt-$version-dev" \
            >/dev/null || true
    fi
    links && exit 0
    echo "clang with libFuzzer is missing. As root: apt-get install clang, and the package" \
        "libclang-rt-VERSION-dev of its version" >&2
    exit 1
fi
python=$1
need=()

if ! command -v "$python" >/dev/null || ! "$python" -c '' 2>/dev/null; then
    if [ "$python" != python3 ]; then
        echo "PYTHON=$python does not run here" >&2
        exit 1
    fi
    need+=(python3 python3-dev python3-venv)
else
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "$python is $("$python" -V); Python 3.10 or newer is needed:" \
            "make PYTHON=python3.12 ..." >&2
        exit 1
    fi
    name=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need+=("$name-venv")
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        need+=("$name-dev")
fi
headers='#include <stdio.h>
#include <linux/io_uring.h>'
cc -E -xc - <<<"$headers" >/dev/null 2>&1 || need+=(gcc libc6-dev)

have_apt=$(command -v apt-get || true)
if [ "$(id -u)" -eq 0 ] && [ -n "$have_apt" ]; then
    want=("${need[@]}")
    [ -e /usr/include/liburing.h ] || want+=(liburing-dev)
    command -v mkfs.ext4 >/dev/null || want+=(e2fsprogs)
    command -v mkfs.xfs >/dev/null || want+=(xfsprogs)
    [ ${#want[@]} -eq 0 ] && exit 0
    echo "== installing system packages: ${want[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    if ! apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null; then
        [ ${#need[@]} -eq 0 ] || exit 1
        echo "could not be installed: ${want[*]}; going on without" >&2
    fi
elif [ ${#need[@]} -gt 0 ]; then
    echo "Missing on this system: ${need[*]}. As root, run:" >&2
    echo "    apt-get update && apt-get install -y ${need[*]}" >&2
    exit 1
fi
