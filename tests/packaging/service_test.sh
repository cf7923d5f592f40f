#!/usr/bin/env bash
# The systemd unit and the Dockerfile, as far as that goes without either: systemd-analyze takes the unit and finds it
# hardened, the flags and variables they use exist, the health check works, the image has every library of the program.
#   service_test.sh PROGRAM SOURCE MAKE_TINY_MODEL
set -euo pipefail
program="$1" source="$2" make_tiny="$3"
work=$(mktemp -d)
server=
trap '[[ -z "$server" ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
wrong() { echo "$*" >&2; exit 1; }

unit="$source/packaging/specextend.service"
"$program" serve --help-all >"$work/help"
for flag in $(grep "^ExecStart=" "$unit" | grep -o -- ' --[a-z-]*'); do
  grep -q -- "$flag" "$work/help" || wrong "the unit uses $flag, which serve does not have"
done
for variable in $(cat "$unit" "$source/Dockerfile" | grep -o '\(LLAMA\|SPECEXTEND\)_[A-Z_]*' | sort -u); do
  grep -q "\b$variable\b" "$work/help" || wrong "$variable is not a variable of serve"
done

if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/local/bin/specextend|$program|" "$unit" >"$work/specextend.service"
  systemd-analyze verify "$work/specextend.service" 2>&1 | grep -v 'man page\|Failed to open' | tee "$work/complaints" || true
  ! grep -q specextend.service "$work/complaints" || wrong "systemd-analyze verify complains"
  # 10 is no protection, 0 all; --threshold is in tenths.
  systemd-analyze security --offline=true --threshold=20 --no-pager "$work/specextend.service" >"$work/security" 2>&1 ||
    { cat "$work/security"; wrong "systemd-analyze security: too exposed"; }
else
  echo "systemd-analyze is not here: the unit was not verified"
fi

"$make_tiny" "$work/tiny.gguf"
port=$("${PYTHON:-python3}" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
LLAMA_ARG_MODEL="$work/tiny.gguf" LLAMA_ARG_PORT="$port" SPECEXTEND_API_KEY=secret "$program" serve -q 2>"$work/log" &
server=$!
# The command of the HEALTHCHECK, as docker would read it.
"${PYTHON:-python3}" - "$source/Dockerfile" >"$work/check" <<'PYTHON'
import json, re, sys
text = open(sys.argv[1]).read().replace("\\\n", "")
print(json.loads(re.search(r"HEALTHCHECK .*? CMD (\[.*?\])$", text, re.M | re.S)[1])[2])
PYTHON
for _ in $(seq 600); do
  grep -q '^listening' "$work/log" && break
  kill -0 "$server" || wrong "no server: $(cat "$work/log")"
  sleep 0.1
done
LLAMA_ARG_PORT="$port" timeout 30 bash -c "$(cat "$work/check")" || wrong "the health check does not pass on a healthy server"
kill "$server"
wait "$server" || wrong "the server ended with $?"
server=
! LLAMA_ARG_PORT="$port" timeout 30 bash -c "$(cat "$work/check")" 2>/dev/null || wrong "the health check passes without a server"

if command -v dpkg-query apt-cache >/dev/null && grep -q '^VERSION_ID="12"' /etc/os-release; then
  mapfile -t named < <(sed -n '/^FROM debian:12-slim$/,$p' "$source/Dockerfile" | grep -o '\blib[a-z0-9.+-]*[0-9]\b' | sort -u)
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    "${named[@]}" bash 2>/dev/null | grep '^[a-z]' | sort -u >"$work/packages"
  ldd "$program" | awk '$3 ~ "^/" {print $3}' | xargs -n1 readlink -f | while read -r library; do
    owners=$(dpkg-query -S "*/${library##*/}" 2>/dev/null | sed 's/:.*//' | sort -u)  # any folder: /lib may be /usr/lib
    [[ "$library" =~ lib(asan|tsan|ubsan)\. ]] || grep -qxf <(echo "${owners:-none}") "$work/packages" ||
      wrong "the image lacks $library of ${owners:-no package}"
  done
fi
echo "service: good"
