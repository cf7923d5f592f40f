# shellcheck shell=bash
# Shared by ./demo and ./test (sourced, not run): the Debian packages each needs, installing what is missing, and
# running a step with its output in a log file that is named when the step fails.

SX_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
SX_LOGS="$SX_ROOT/build/logs"
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$SX_ROOT}"  # other copies of the tree, such as the sdist's, share objects with this one
export CCACHE_SLOPPINESS=pch_defines,time_macros  # without it nothing that reads a precompiled header is kept
SX_BUILD_PACKAGES=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
  libutf8proc-dev libboost1.81-dev libssl-dev libzmq3-dev python3 python3-pip ca-certificates)
# shellcheck disable=SC2034
SX_TEST_PACKAGES=("${SX_BUILD_PACKAGES[@]}" libgtest-dev libgmock-dev libbenchmark-dev ccache clang-format-14 python3-jinja2
  python3-venv python3-dev curl openssl chromium chromium-driver libopenmpi-dev openmpi-bin iproute2)

SX_PROGRESS=15  # seconds
SX_TERMINAL=0
[[ ! -t 2 ]] || SX_TERMINAL=1

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# step NAME COMMAND...: runs the command, its output in build/logs/NAME.log; a failure shows the end of that log.
step() {
  local name="$1" log="$SX_LOGS/$1.log"
  shift
  mkdir -p "$SX_LOGS"
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "step '$name' failed; the whole output is in $log"
  fi
}

missing_packages() {
  local package status
  for package in "$@"; do
    status="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)"
    [[ "$status" == installed ]] || printf '%s\n' "$package"
  done
}

# apt_get ARGUMENTS...: as root, or through sudo.
apt_get() {
  local become=()
  [[ $EUID -eq 0 ]] || become=(sudo)
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

# The index of packages is only fetched when an install from the present one does not work (none, or out of date).
apt_install() {
  apt_get install -y --no-install-recommends "$@" && return 0
  apt_get update && apt_get install -y --no-install-recommends "$@"
}

# install_packages PACKAGES...: nothing happens where all are there.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "packages: not a Debian system; needed here: $*"
    return 0
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    die "these Debian packages are missing, and installing them needs root or sudo: ${missing[*]}"
  fi
  if [[ $EUID -ne 0 ]] && ! sudo -n true 2>/dev/null; then
    [[ -t 0 ]] || die "these Debian packages are missing, and sudo asks for a password: ${missing[*]}"
    sudo -v || die "sudo was refused; missing Debian packages: ${missing[*]}"
  fi
  say "packages: installing ${missing[*]}"
  step packages apt_install "${missing[@]}"
}

# The system's python3 (the one python3-pip belongs to), else whichever is first on the path.
find_python() {
  if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else command -v python3 || die "python3 is missing"; fi
}

# Three virtual environments for tests. One is the right one when the file `made-of` in it, written last, says what it was
# made of: the interpreter, the function that filled it, the list of packages.
SX_TRAINING="${XDG_CACHE_HOME:-$HOME/.cache}/specextend/training-venv"  # PyTorch, 0.7 GB: kept for all checkouts
SX_CLIENTS="$SX_ROOT/build/clients"                                     # clients of the server, 0.6 GB
SX_PYTHON="$SX_ROOT/build/python"                                       # what builds and tests the Python package, 0.6 GB
parts_of() { "$(find_python)" --version; uname -m; declare -f "$1"; cat "$SX_ROOT/$2"; }
training_parts() { parts_of training_pip training/requirements.txt; }
clients_parts() { parts_of clients_pip tests/clients/requirements.txt; }
python_parts() { parts_of python_pip tests/python/requirements.txt; }
training_ready() { [[ -x "$SX_TRAINING/bin/python" ]] && cmp -s "$SX_TRAINING/made-of" <(training_parts); }
clients_ready() { [[ -x "$SX_CLIENTS/bin/python" ]] && cmp -s "$SX_CLIENTS/made-of" <(clients_parts); }
python_ready() { [[ -x "$SX_PYTHON/bin/python" ]] && cmp -s "$SX_PYTHON/made-of" <(python_parts); }

# A torch without CUDA, which is gigabytes of libraries: for aarch64 pip's index has it up to 2.9, for x86-64 only
# PyTorch's own index has. Where neither helps, the one with CUDA does.
training_pip() {
  local pip=("$SX_TRAINING/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2)
  local requirements="$SX_ROOT/training/requirements.txt"
  case "$(uname -m)" in
    aarch64) "${pip[@]}" -r "$requirements" 'torch<2.10' && return ;;
    x86_64) "${pip[@]}" --index-url https://download.pytorch.org/whl/cpu \
      "$(grep '^torch\b' "$requirements")" || true ;;
  esac
  "${pip[@]}" -r "$requirements"
}

# axe-core, the script that tests pages for accessibility, comes in a package for a driver of browsers that is not needed here.
clients_pip() {
  local pip=("$SX_CLIENTS/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 --only-binary :all:)
  "${pip[@]}" -r "$SX_ROOT/tests/clients/requirements.txt" && "${pip[@]}" --no-deps axe-playwright-python==0.1.8
}

# A build tree that was configured without nanobind is configured again.
python_pip() {
  "$SX_PYTHON/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 --only-binary :all: \
    -r "$SX_ROOT/tests/python/requirements.txt" && rm -f "$SX_ROOT"/build/*/build.ninja
}

# make_environment NAME FOLDER, with NAME_pip, NAME_parts and NAME_ready from above.
make_environment() {
  exec 9>"$2.lock" && flock 9 || return
  ! "$1_ready" || return 0  # another run was faster
  rm -rf "$2" && "$(find_python)" -m venv "$2" && "$1_pip" && "$1_parts" >"$2/made-of"
}

# set_up NAME FOLDER: makes the environment if need be; false, with a log that says why, where that cannot be done (no network).
set_up() {
  ! "$1_ready" || return 0
  say "$1: fetching packages of Python into $2 (once)"
  mkdir -p "$SX_LOGS" "${2%/*}"
  (make_environment "$1" "$2") >"$SX_LOGS/$1.log" 2>&1
}
set_up_training() { set_up training "$SX_TRAINING"; }
set_up_clients() { set_up clients "$SX_CLIENTS"; }
set_up_python() { set_up python "$SX_PYTHON"; }

# build PRESET [TARGETS...]: configures (when never done or when the last configuration failed) and builds.
build() {
  local preset="$1" targets=()
  shift
  [[ $# -eq 0 ]] || targets=(--target "$@")
  if [[ ! -f "$SX_ROOT/build/$preset/build.ninja" ]]; then
    say "configure: preset $preset"
    step "configure-$preset" cmake --preset "$preset" -S "$SX_ROOT" -D "Python3_EXECUTABLE=$(find_python)"
  fi
  say "build: preset $preset"
  local start=$SECONDS log="$SX_LOGS/build-$preset.log"
  mkdir -p "$SX_LOGS"
  if ! NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" "${targets[@]}" 2>&1 | tee "$log" | show_progress; then
    tail -n 40 "$log" >&2
    die "step 'build-$preset' failed; the whole output is in $log"
  fi
  say "build: done in $((SECONDS - start)) s"
}

# show_progress <OUTPUT: how much of a build is done and how long it has taken, from the counts that ninja prints. On a
# terminal one line that changes every second, elsewhere a line every SX_PROGRESS seconds.
show_progress() {
  local line done=0 all=0 start=$SECONDS shown=$SECONDS
  while true; do
    if IFS= read -r -t 1 line; then
      [[ "$line" =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
      done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    elif [[ $? -le 128 ]]; then  # the end; more: nothing came for a second
      break
    fi
    [[ $all -gt 0 && $SECONDS -ge $((shown + (SX_TERMINAL ? 1 : SX_PROGRESS))) ]] || continue
    shown=$SECONDS
    line="  $((100 * done / all)) %: $done of $all steps, $((SECONDS - start)) s"
    if ((SX_TERMINAL)); then printf '\r%s ' "$line" >&2; else say "$line"; fi
  done
  ((!SX_TERMINAL)) || printf '\r\033[K' >&2
}
