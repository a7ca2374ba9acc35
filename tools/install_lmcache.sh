#!/usr/bin/env bash
# Puts LMCache beside a vLLM for CPUs, into a folder of its own: the engine finds it when the folder
# is on PYTHONPATH, and not otherwise. Without dependencies, which would pull in CUDA libraries.
# Done again when this file changes, with the versions in it.
#   install_lmcache.sh VENV_PYTHON FOLDER
set -euo pipefail
python=$1
folder=$2
cmp -s "$0" "$folder/installed" && exit 0
rm -rf "$folder"
"$python" -m pip --disable-pip-version-check install -qq --no-deps --target "$folder" \
    lmcache==0.5.6 lmcache-rust-raw-block-io==0.5.7rc2 aiofile aiofiles caio redis \
    sortedcontainers nvtx opentelemetry-exporter-prometheus==0.66b2
cp "$0" "$folder/installed"
