#!/usr/bin/env bash
# Puts LMCache beside a vLLM for CPUs, into a folder of its own: the engine finds it when the folder
# is on PYTHONPATH, and not otherwise. Without dependencies, which would pull in CUDA libraries.
#   install_lmcache.sh VENV_PYTHON FOLDER
set -euo pipefail
python=$1
folder=$2
[ -e "$folder/sitecustomize.py" ] && exit 0
"$python" -m pip --disable-pip-version-check install -qq --no-deps --target "$folder" \
    lmcache==0.5.6 lmcache-rust-raw-block-io==0.5.7rc2 aiofile aiofiles caio redis \
    sortedcontainers nvtx opentelemetry-exporter-prometheus==0.66b2
# vLLM 0.32 looks through all loaded modules for kernels and asks llvmlite's lazy one for names that
# it answers with something else than AttributeError.
cat >"$folder/sitecustomize.py" <<'END'
try:
    from llvmlite.binding import ffi
except ImportError:
    pass
else:
    lazy = type(ffi.lib)
    original = lazy.__getattr__

    def getattr_of_public_names(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return original(self, name)

    lazy.__getattr__ = getattr_of_public_names
END
