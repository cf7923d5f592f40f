# shellcheck shell=bash
# Shared by ./demo and ./test (sourced, not run): the Debian packages each needs, installing what is missing, and
# running a step with its output in a log file that is named when the step fails.

SX_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
SX_LOGS="$SX_ROOT/build/logs"
SX_BUILD_PACKAGES=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
  python3 python3-pip ca-certificates)
# shellcheck disable=SC2034
SX_TEST_PACKAGES=("${SX_BUILD_PACKAGES[@]}" libgtest-dev libgmock-dev libbenchmark-dev ccache python3-jinja2)

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
  SX_SECONDS=$SECONDS
  if [[ -t 2 ]]; then
    build_with_progress "$preset" "${targets[@]}"
  else
    step "build-$preset" cmake --build --preset "$preset" "${targets[@]}"
  fi
  say "build: done in $((SECONDS - SX_SECONDS)) s"
}

# On a terminal: one line that counts the finished steps, the whole output in the log.
build_with_progress() {
  local preset="$1" log="$SX_LOGS/build-$1.log"
  shift
  mkdir -p "$SX_LOGS"
  if ! NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" "$@" 2>&1 | tee "$log" |
      sed -un 's/^\(\[[0-9]*\/[0-9]*\]\).*/\1/p' | while read -r count; do printf '\r  %s ' "$count" >&2; done; then
    say ""
    tail -n 40 "$log" >&2
    die "step 'build-$preset' failed; the whole output is in $log"
  fi
  printf '\r' >&2
}
