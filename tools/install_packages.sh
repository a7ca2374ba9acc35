#!/usr/bin/env bash
# Installs into the virtual environment what pyproject.toml names, at the versions of
# constraints.txt: first torch, as its CPU build where pip finds one, then everything else.
#   install_packages.sh VENV_PYTHON
set -euo pipefail
python=$1
torch=$(sed -n 's/^torch==//p' constraints.txt)
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

echo "== Set-up: downloads about 0.4 GB and takes about 1.5 GB in .venv with the CPU build of torch"
if pip install -qq "torch==$torch+cpu" 2>/dev/null; then
    echo "== torch $torch+cpu"
else
    echo "== pip finds no CPU build of torch $torch. The plain one brings CUDA libraries on x86-64:"
    echo "== about 3 GB to download, 8 GB on disk. For the CPU build, point PIP_EXTRA_INDEX_URL at"
    echo "== the PyTorch project's CPU index and run this again."
    pip install -qq "torch==$torch"
fi
# The package itself is installed later, without dependencies; here only its requirements are.
mapfile -t wanted < <("$python" tools/requirements.py mla cli metrics dev)
pip install -qq -c constraints.txt "${wanted[@]}"
