#!/usr/bin/env bash
# Builds the check programs of the CUDA kernels with nvcc alone, for this machine's Hopper GPU, and runs them.
#   bench/cuda/run_checks.sh FOLDER [NAMES...]     names: rows kv retrieve choose levels linear chain attend prompt; logs and programs go to FOLDER
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="$1"; shift
names=("$@"); [[ ${#names[@]} -gt 0 ]] || names=(rows kv retrieve choose levels linear chain attend prompt)
mkdir -p "$folder"
flags=(-std=c++20 -O3 -lineinfo -Isrc -Iinclude --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a)
sources=(src/backend/cuda/*/*.cu)
for name in "${names[@]}"; do sources+=("bench/cuda/check_$name.cu"); done
sources+=(src/backend/cuda/linear/matrix.cc src/backend/cuda/runtime/device_units.cc src/backend/kv_units.cc src/tensor/blocks.cc src/tensor/dtype.cc src/tensor/quantise.cc src/kv/chunk_choice.cc
  src/base/error.cc)
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'out="'"$folder"'/$(basename {}).o"; case {} in *.cc) g++ -std=c++20 -O2 -Isrc -Iinclude -I/usr/local/cuda/include -DFMT_HEADER_ONLY -c {} -o "$out";; *) nvcc '"${flags[*]}"' -c {} -o "$out";; esac >"$out.log" 2>&1 || { echo "FAILED {}"; grep -m5 error "$out.log"; }'
status=0
for name in "${names[@]}"; do
  objects=("$folder"/*.cu.o "$folder"/*.cc.o)
  mains=(); for o in "${objects[@]}"; do [[ "$o" == */check_*.cu.o && "$o" != */check_"$name".cu.o ]] || mains+=("$o"); done
  if ! nvcc -o "$folder/check_$name" "${mains[@]}" -lcublasLt >"$folder/link_$name.log" 2>&1; then
    echo "== $name: does not link"; head -5 "$folder/link_$name.log"; status=1; continue
  fi
  echo "== $name"
  timeout 120 "$folder/check_$name" >"$folder/$name.log" 2>&1; code=$?
  tail -n "${SX_LINES:-40}" "$folder/$name.log" | cut -c1-150
  [[ $code == 0 ]] || { echo "exit code $code"; status=1; }
done
exit "$status"
