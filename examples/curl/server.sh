# shellcheck shell=bash
# Sourced by the examples here: where the server is, and `ask`, curl with what every request needs.
#   specextend serve          # in another terminal
#   SPECEXTEND_URL=http://host:port SPECEXTEND_API_KEY=key examples/curl/chat.sh
url="${SPECEXTEND_URL:-http://127.0.0.1:8080}"

# ask PATH [CURL ARGUMENTS...]: an answer other than 2xx is shown and is a failure; -N shows a stream as it comes.
ask() {
  local path="$1" headers=(-H 'Content-Type: application/json')
  shift
  [[ -z "${SPECEXTEND_API_KEY:-}" ]] || headers+=(-H "Authorization: Bearer $SPECEXTEND_API_KEY")
  curl -sS -N --fail-with-body "${headers[@]}" "$url$path" "$@"
}
