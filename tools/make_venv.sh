#!/usr/bin/env bash
# Makes the virtual environment, or replaces it when it is broken or was made by another version of
# Python than the one asked for. One that fits is left as it is.
#   make_venv.sh PYTHON FOLDER
set -euo pipefail
python=$1
venv=$2
version='import sys; print(sys.version)'

if [ -x "$venv/bin/python" ] && [ -e "$venv/stamp-packages" ] &&
    [ "$("$venv/bin/python" -c "$version" 2>/dev/null)" = "$("$python" -c "$version" 2>&1)" ]; then
    exit 0
fi
"$(dirname "$0")/system_packages.sh" "$python"
if [ "$("$venv/bin/python" -c "$version" 2>/dev/null)" != "$("$python" -c "$version")" ] ||
    ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "== making $venv with $("$python" -V)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
