#!/usr/bin/env bash
# Builds the wheel into dist/, installs it into a new environment where no compiler is on PATH, and
# runs the first Python example of README.md there, outside the checkout and inside it.
#   check_dist.sh VENV_PYTHON
set -euo pipefail
python=$1
tree=$PWD
# setuptools would pack what an earlier build left here, also files that have been deleted since.
rm -rf build/lib* build/bdist*
mkdir -p dist
rm -f dist/kvstore_nvme-*.whl
"$python" -m pip --disable-pip-version-check wheel -qq --no-deps -w dist .
wheel=$(ls dist/kvstore_nvme-*.whl)
echo "-- $wheel, $(du -h "$wheel" | cut -f 1)"

work=$(mktemp -d "${TMPDIR:-/tmp}/kvstore-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"

in_venv() {
    (
        cd "$work"
        export PATH="$work/venv/bin"
        "$@"
    )
}
if in_venv command -v cc gcc clang; then
    echo "a compiler is still on PATH" >&2
    exit 1
fi
in_venv python -m pip --disable-pip-version-check install -qq "$tree/$wheel"
in_venv python "$tree/tools/readme_example.py" "$tree/README.md" example.py
echo "-- the README's example outside the checkout"
in_venv python example.py
echo "-- and inside it, where the checkout's own folder is what gets imported"
PYTHONPATH=$tree in_venv python example.py
in_venv kvstore --help >/dev/null
