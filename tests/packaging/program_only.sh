#!/usr/bin/env bash
# `cmake --install` where only the program was built, as ./demo does: the program with what comes with it, and no package that
# would name a library which is not there. What was built is played by copies. Arguments: the source tree, the program.
set -euo pipefail
source=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "FAIL: $*"; [[ ! -f log.txt ]] || tail -n 20 log.txt; exit 1; }
install_here() { cmake --install build --prefix "$folder/$1" "${@:2}" >log.txt 2>&1; }
is_there() { [[ -n "$(find "$1" -path "*/$2" 2>/dev/null)" ]]; }

cmake --preset demo -S "$source" -B build >log.txt 2>&1 || fail "configuring"
mkdir -p build/apps
cp "$program" build/apps/specextend
install_here program || fail "installing the program alone"
grep -q "Not installed: the library" log.txt || fail "nothing is said of the library"
for file in bin/specextend share/specextend/fetch_model.py share/specextend/models/drafts.json; do
  is_there program "$file" || fail "not installed: $file"
done
for file in specextend.h libspecextend.a specextendConfig.cmake specextendTargets.cmake; do
  ! is_there program "$file" || fail "installed without the library: $file"
done
! install_here wrong --component library || fail "a library that was not built could be installed"

# The installed program says how to get the default model, and that works here (--check: without the network).
if XDG_CACHE_HOME=$folder/cache program/bin/specextend generate -p Hi >log.txt 2>&1; then fail "no default model: no error"; fi
script=$(sed -n 's/.*: python3 //p' log.txt)
[[ "$script" == "$folder/program/share/specextend/fetch_model.py" ]] || fail "another script is named: '$script'"
said=$(XDG_CACHE_HOME=$folder/cache python3 "$script" --check 2>&1) && fail "a model is there: $said"
[[ "$said" == *"$folder/cache/specextend/models"* ]] || fail "the script looks elsewhere: $said"

archive=$(sed -n 's/^build \([^ ]*libspecextend\.a\):.*/\1/p' build/build.ninja)
echo "!<arch>" >"build/$archive"
install_here all || fail "installing program and library"
for file in bin/specextend specextend.h libspecextend.a specextendConfig.cmake specextendTargets.cmake; do
  is_there all "$file" || fail "not installed: $file"
done
echo "all checks passed"
