#!/usr/bin/env bash
# The suite as an ordinary user: no capabilities, no root's exemption from file modes, the usual
# 8 MiB of locked memory. As root, a copy of the sources is handed to an unprivileged uid, with an
# environment of its own (root's may lie where others cannot go). Not root: the normal run is it.
#   test_user.sh VENV_PYTHON
set -euo pipefail
if [ "$(id -u)" -ne 0 ]; then
    echo "already an ordinary user: \`make test\` is this test"
    exit 0
fi
root_python=$1
uid=65534
home=$(mktemp -d "${TMPDIR:-/tmp}/kvstore-user.XXXXXX")
trap 'rm -rf "$home"' EXIT

as_user() {
    # File modes count for us only from a folder that the user may enter.
    cd "$home"
    prlimit --memlock=8388608:8388608 -- \
        setpriv --reuid=$uid --regid=$uid --clear-groups --inh-caps=-all --no-new-privs -- \
        env HOME="$home" TMPDIR="$home/tmp" "$@"
}

usable_python() {
    local name
    for name in "$(readlink -f "$root_python")" /usr/local/bin/python3 /usr/bin/python3 \
        /usr/bin/python3.1[0-9]; do
        if [ -x "$name" ] && (as_user "$name" -c 'import sys, ensurepip, venv, os, sysconfig
here = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
sys.exit(not here or sys.version_info < (3, 10))') 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

tools/copy_tree.sh "$home/tree"
mkdir "$home/tmp"
chown -R $uid:$uid "$home"
python=$(usable_python)
if [ -z "$python" ] && [ -x /usr/bin/python3 ]; then
    tools/system_packages.sh /usr/bin/python3 || true
    python=$(usable_python)
fi
if [ -z "$python" ]; then
    echo "no Python >= 3.10 with headers that an ordinary user could run was found" >&2
    exit 1
fi
echo "-- uid $uid with $python"
mapfile -t wanted < <("$root_python" tools/requirements.py test)
(as_user "$python" -m venv "$home/venv")
(as_user "$home/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install -qq \
    -c "$home/tree/constraints.txt" "setuptools>=77" "Cython>=3.0" "${wanted[@]}")
(as_user sh -c "cd tree && ../venv/bin/python -m pip --disable-pip-version-check --no-cache-dir \
    install -qq --no-build-isolation --no-deps --editable . &&
    ../venv/bin/python -m pytest --without-torch -m 'not slow and not bench' -q")
