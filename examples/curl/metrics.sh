#!/usr/bin/env bash
# What the server counts, for Prometheus; here the lines about requests and speculation.
set -euo pipefail
# shellcheck source=examples/curl/server.sh
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

ask /metrics | grep -E '^vllm:(num_requests|spec_decode)'
