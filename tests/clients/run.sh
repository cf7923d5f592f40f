#!/usr/bin/env bash
# Runs a test of this folder in the environment with the clients that ./test has made; skipped without it.
#   run.sh TEST.py ARGUMENTS...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/setup.sh
source "$here/../../tools/setup.sh"
if ! clients_ready; then
  say "clients: there is no environment with them in $SX_CLIENTS; ./test makes it"
  exit 77
fi
test="$1"
shift
exec "$SX_CLIENTS/bin/python" -W ignore "$here/$test" "$@"
