#!/usr/bin/env bash
# Sees to it that the system has what a checkout needs: an interpreter with headers and venv, and a
# C compiler. As root on a machine with apt, what is missing is installed (and two that are optional:
# liburing-dev, without which our shim is used, and xfsprogs, for tests). Otherwise it names the line
# to run, and stops.
#   system_packages.sh PYTHON
set -euo pipefail
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
    command -v mkfs.xfs >/dev/null || want+=(xfsprogs) # tests mount small xfs images
    [ ${#want[@]} -eq 0 ] && exit 0
    echo "== installing system packages: ${want[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    if ! apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null; then
        [ ${#need[@]} -eq 0 ] || exit 1
        echo "liburing-dev or xfsprogs could not be installed; going on with the shim" >&2
    fi
elif [ ${#need[@]} -gt 0 ]; then
    echo "Missing on this system: ${need[*]}. As root, run:" >&2
    echo "    apt-get update && apt-get install -y ${need[*]}" >&2
    exit 1
fi
