#!/usr/bin/env bash
# Copies the sources (what is not built, cached or version control) into a fresh folder, so that
# another kind of build does not disturb the checkout's own.
#   copy_tree.sh FOLDER
set -euo pipefail
target=$1
rm -rf "$target"
mkdir -p "$target"
tar -cf - --exclude=./.git --exclude=./.venv --exclude=./build --exclude=./dist --exclude=./.demo \
    --exclude=./.cache --exclude='./.*_cache' --exclude=./.hypothesis --exclude='*.so' \
    --exclude=__pycache__ --exclude='*.egg-info' . | tar -xf - -C "$target"
