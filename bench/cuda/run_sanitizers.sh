#!/usr/bin/env bash
# The tests of the CUDA backend under compute-sanitizer, a few in a process and a few processes at a time.
#   bench/cuda/run_sanitizers.sh BUILD TOOL SECONDS [RESULTS]
# BUILD     folder with the programs test_parity and test_cuda (built there or below), and perhaps those of run_checks.sh BUILD/checks
# TOOL      memcheck or racecheck (or synccheck, initcheck)
# SECONDS   after which everything ends; tests that did not get through are named
# RESULTS   folder, BUILD/sanitizer-TOOL if not given: report.txt (what was found, and a line per test), results.tsv (the same while it
#           runs), logs/
# Environment: SX_JOBS processes at a time (3), SX_LIMIT seconds for one of them (half of SECONDS), SX_FLAGS more flags for the tool,
# SX_ONLY a regular expression that names of tests must match, SX_DONE the results.tsv of an earlier run of the same tool, of which what
# was clean is left out (kernels that changed since are not the same).
# Exit status: 0 all are clean; 1 something was found, or a test failed or died, or the tool did; 2 neither, but not every test got through, or
# some were skipped.
#
# Cheapest first. Processes time-share the device, so that more than a few at a time only make each slower; starting one costs
# seconds, hence several tests for each, and long ones are divided (SPECEXTEND_TEST_SHARE), for racecheck into a few cases each. Prompts
# keep to our own kernels (SPECEXTEND_PROMPT_LINEAR=own): cuBLASLt is not ours to check, trying out its algorithms takes minutes under the
# tool, and racecheck breaks down in it. Of graphs that loop (CudaLevels) two tests, which have all their kernels, are looked at kind by
# kind of kernels (--kernel-name), a process for each: with all kinds at once the tools end with an illegal address at instruction 0 of no
# kernel. All other tests leave loops to the host (SPECEXTEND_LEVELS=0).
# racecheck keeps its records in the host's memory: a case of PromptsInAnyChunks can take more than 100 GB, and a process that the system
# ends for it is reported as died; SX_JOBS=1 and SX_FLAGS='--kernel-name kns=attend' (or few) make it less.
set -uo pipefail
[[ $# -ge 3 ]] || { sed -n '2,14s/^# \?//p' "${BASH_SOURCE[0]}"; exit 64; }
build=$(readlink -f "$1") tool=$2 seconds=$3
[[ -d $build ]] || { echo "run_sanitizers.sh: no folder '$1'" >&2; exit 64; }
results=${4:-$build/sanitizer-$tool}
export PATH="$PATH:/usr/local/cuda/bin"
[[ -z ${SX_DONE:-} || -r $SX_DONE ]] || { echo "run_sanitizers.sh: cannot read '$SX_DONE' (SX_DONE)" >&2; exit 64; }
command -v compute-sanitizer >/dev/null || { echo "run_sanitizers.sh: there is no compute-sanitizer" >&2; exit 64; }
mkdir -p "$results"; results=$(readlink -f "$results")
rm -rf "$results"/{logs,running,stop,*.tsv,report.txt}; mkdir -p "$results"/{logs,running}; : >"$results/results.tsv"
jobs=${SX_JOBS:-3} begin=$(date +%s)
deadline=$((begin + seconds - 8))  # the rest is for ending and reporting
limit=${SX_LIMIT:-$((seconds / 2))}
kinds='attend few stream parts many packed multiply norm rope embed gather half glu copy top_k grow reweigh'  # of kernels in graphs that loop

flags="--tool $tool --error-exitcode 9 --print-limit 20"
known=$(compute-sanitizer --help 2>&1)
offer() { [[ $known != *"$1"* ]] || flags+=" $1 $2"; }
offer --show-backtrace no
if [[ $tool == racecheck ]]; then offer --racecheck-report analysis; offer --racecheck-num-workers $((($(nproc) + jobs - 1) / jobs)); fi
flags+=" ${SX_FLAGS:-}"

# The queue has a line per process, by tabs: share (or @ and the kind of kernels), program, argument (none: tests are given as filter),
# tests with colons between.
program() { find "$build" -name "$1" -type f -perm -u+x 2>/dev/null | head -1; }
tests_of() {  # program, filter
  [[ -n $1 ]] || return 0
  "$1" --gtest_list_tests --gtest_filter="$2" 2>/dev/null | awk -v program="$1" '
    /^[^ ].*\.([ \t]*#.*)?$/ { suite = $1; next }
    /^  / { print suite $1 "\t" program "\t" }'
}
parity=$(program test_parity) cuda=$(program test_cuda)
{
  tests_of "$parity" 'Cuda/*'
  tests_of "$cuda" 'Cuda*'
  while read -r name argument; do
    path=$(program "check_$name"); [[ -z $path ]] || printf 'check_%s\t%s\t%s\n' "$name" "$path" "${argument:-all}"
  done <<<$'levels few\nretrieve few\nattend quick\nrows\nkv\nchoose'
} | awk -F'\t' -v parity="$parity" -v kinds="$kinds" -v only="${SX_ONLY:-.}" -v tool="$tool" '
  function cost(test) {  # milliseconds without a tool, roughly
    if (test ~ /_attend$/ || tool == "racecheck" && test ~ /InAnyChunks/) return 8000
    if (test ~ /_linear$/) return 2400
    if (test ~ /^check_/) return 2000
    if (test ~ /EveryKvType|_choose$|_kv_cells$|_law$|_kv_retrieve$/) return 1200
    if (test ~ /rule_|Wide|EveryWeight|_kv_score$|InAnyChunks/) return 800
    if (test ~ /_kv_move$|_rope_store$|CudaEngine/) return 300
    return 120
  }
  function cases(test) {  # that it can be divided into, at least (tests/backend/cuda/model_test.cc)
    if (test ~ /EveryShape/) return 20
    if (test ~ /EveryWeight/) return 13
    if (test ~ /Trees.EveryKvType|InAnyChunks/) return 12
    if (test ~ /LargeAnd|Golden/) return 9
    return test ~ /Wide|FormOf/ ? 6 : 1
  }
  $1 !~ only || $1 ~ /CudaLevels/ && $1 !~ /eagle3_sampled|model_opt_tree_retrieval/ { next }
  $1 ~ /CudaLevels/ { n = split(kinds, kind, " "); for (i = 1; i <= n; ++i) printf "%d\t@%s\t%s\t%s\t%s\n", cost($1), kind[i], $2, $3, $1; next }
  { ms = cost($1); shares = $2 == parity && ms > 1000 ? int(ms / 1000) : 1
    if ($2 == parity && tool == "racecheck" && shares > 1) shares *= 2
    if ($2 != parity && tool == "racecheck") shares = $1 ~ /InAnyChunks/ ? cases($1) : int((cases($1) + 1) / 2)
    for (s = 0; s < shares; ++s) printf "%d\t%d/%d\t%s\t%s\t%s\n", ms / shares, s, shares, $2, $3, $1 }' |
  awk -F'\t' -v done="${SX_DONE:-/dev/null}" '
    BEGIN { while ((getline line <done) > 0) { split(line, field, "\t"); if (field[1] == "clean") clean[field[2], field[3]] = 1 } }
    !(($5, $2) in clean)' |
  sort -s -n -k1,1 | awk -F'\t' '
    function put(key) { if (key in tests) print key "\t" tests[key]; delete tests[key]; sum[key] = 0 }
    { key = $2 "\t" $3 "\t" $4
      if (key in tests) tests[key] = tests[key] ":" $5
      else tests[key] = $5
      if ((sum[key] += $1) >= 1000 || $4 != "" || $2 !~ /^0\/1$|^@/) put(key) }
    END { for (key in tests) put(key) }' >"$results/queue.tsv"
[[ -s $results/queue.tsv ]] || { echo "run_sanitizers.sh: no tests are left in '$1' (test_parity, test_cuda; SX_ONLY, SX_DONE)" >&2; exit 64; }

findings() {  # of a log on stdin: what the tool says, less what it always says
  grep '^=========' | grep -vE "COMPUTE-SANITIZER|SUMMARY: |Target application|didn't terminate|was killed|^========= *$" | head -20
}
part_of() { awk -v run="[ RUN      ] $2" '$0 == run { on = 1; print; next } /^\[ RUN / { on = 0 } on' "$1"; }  # log, test
# Test, its part of the log, exit code of the process, whether the tool has summed up (bad: with errors that it did not show). What the tool
# says counts for the test that runs, or was the last to. `passed`: nothing was said until the process was ended.
verdict() {
  if grep -q 'Internal Sanitizer Error' <<<"$2"; then echo broken
  elif [[ -n $(findings <<<"$2") || $4 == bad ]]; then echo found
  elif grep -qF "[       OK ] $1 " <<<"$2"; then [[ $4 == no ]] && echo passed || echo clean
  elif grep -qF "[  SKIPPED ] $1 " <<<"$2"; then echo skipped
  elif [[ $3 == 124 || $3 == 137 || -e $results/stop ]]; then echo time
  elif [[ $1 == check_* ]] || grep -qF '[  FAILED  ]' <<<"$2"; then echo failed
  else echo died; fi
}
record() { printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$5" >>"$results/results.tsv"; }  # outcome, test, share, seconds, log
# A line of the queue. If a process dies, another one does the tests that it has left.
one() {
  local share path argument tests name left log code summed part rest begun port only levels cases
  IFS=$'\x1f' read -r share path argument tests <<<"${1//$'\t'/$'\x1f'}"
  port=$((49152 + 20 * ${SX_SLOT:-0}))
  while [[ -n $tests ]]; do
    begun=$(date +%s) left=$((deadline - $(date +%s))) rest=''
    if [[ -e $results/stop || $left -lt 3 ]]; then
      for name in ${tests//:/ }; do record waiting "$name" "$share" 0 -; done
      return
    fi
    log=$(mktemp "$results/logs/XXXXXX.log")
    only='' levels=0 cases=$share
    if [[ $share == @* ]]; then only="--kernel-name kns=${share#@}" levels='' cases=''; fi
    # shellcheck disable=SC2086
    SPECEXTEND_PROMPT_LINEAR=own SPECEXTEND_TEST_SHARE=$cases SPECEXTEND_LEVELS=$levels CUDA_MODULE_LOADING=LAZY \
      timeout -k 4 $((left < limit ? left : limit)) compute-sanitizer $flags $only --port $port "$path" ${argument:---gtest_filter=$tests} \
      >"$log" 2>&1 </dev/null &
    echo $! >"$results/running/$$"
    wait $!; code=$?
    rm -f "$results/running/$$"
    if [[ -n $argument ]]; then  # a check program, as if it were a test
      { echo "[ RUN      ] $tests"; cat "$log"; [[ $code != 0 ]] || echo "[       OK ] $tests "; } >"$log.whole"; mv "$log.whole" "$log"
    fi
    summed=no
    if grep -q 'SUMMARY: 0 ' "$log" || [[ -n $(findings <"$log") ]]; then summed=yes; elif grep -q 'SUMMARY: ' "$log"; then summed=bad; fi
    for name in ${tests//:/ }; do
      part=$(part_of "$log" "$name")
      if [[ -z $part ]]; then rest+=:$name
      else record "$(verdict "$name" "$part" "$code" "$summed")" "$name" "$share" $(($(date +%s) - begun)) "$log"; fi
    done
    rest=${rest#:}
    if [[ $rest == "$tests" ]]; then  # none was begun
      for name in ${tests//:/ }; do record "$(verdict "$name" "$(<"$log")" "$code" no)" "$name" "$share" 0 "$log"; done
      return
    fi
    tests=$rest
  done
}

report() {  # counts and every test that is not clean, what was found, then a line per test
  local what name share log
  awk -F'\t' '
    BEGIN { n = split("found broken failed died time waiting skipped passed clean", order, " "); for (i = 1; i <= n; ++i) rank[order[i]] = i }
    FNR == NR { count = split($4, names, ":"); for (i = 1; i <= count; ++i) { worst[names[i]] = "clean"; ++missing[names[i]] } next }
    { --missing[$2]; seconds[$2] += $4; if (rank[$1] < rank[worst[$2]]) worst[$2] = $1 }
    END { for (t in worst) { if (missing[t] > 0 && rank[worst[t]] > rank["waiting"]) worst[t] = "waiting"
      printf "%s\t%s\t%d s\n", worst[t], t, seconds[t] } }' "$results/queue.tsv" "$results/results.tsv" | sort >"$results/tests.tsv"
  {
    echo "$tool: $(grep -c '^clean' "$results/tests.tsv") of $(wc -l <"$results/tests.tsv") tests clean" \
      "after $(($(date +%s) - begin)) s, $jobs processes at a time"
    for what in found:'something found' broken:'the tool failed' failed:'test failed' died:'the process ended before the test, which says nothing' passed:'passed, but the process was ended later' \
      time:'out of time' waiting:'not begun' skipped:skipped; do
      name=$(awk -F'\t' -v what="${what%%:*}" '$1 == what { print $2 }' "$results/tests.tsv" | tr '\n' ' ')
      [[ -z $name ]] || echo "${what#*:}: $(wc -w <<<"$name"): ${name//SpeculationChangesNothing\/}"
    done
    grep -E '^(found|broken|failed|died)' "$results/results.tsv" | while IFS=$'\t' read -r what name share _ log; do
      echo "--- $what: $name $share"
      case $what in
        failed|died) { part_of "$log" "$name" | grep . || tail -8 "$log"; } | grep -vE '^(\[---|\[===|\[ RUN)' | head -8 ;;
        *) { part_of "$log" "$name" | grep . || cat "$log"; } | grep '^=========.*[A-Za-z]' | head -20 ;;
      esac | cut -c1-400
    done
  } >"$results/report.txt"
  cut -c1-500 "$results/report.txt" | head -c 3500
  cat "$results/tests.tsv" >>"$results/report.txt"
  echo "($results/report.txt)"
}
finish() {
  trap - TERM INT HUP
  touch "$results/stop"
  cat "$results"/running/* 2>/dev/null | while read -r pid; do kill -TERM "$pid" 2>/dev/null; done
  wait
  report
  cut -f1 "$results/tests.tsv" | grep -qxE 'found|broken|failed|died' && exit 1
  cut -f1 "$results/tests.tsv" | grep -qvx clean && exit 2
  exit 0
}
export tool results deadline limit flags
export -f one verdict record findings part_of
trap finish TERM INT HUP  # the workers get none of these, and report what they have
setsid xargs --process-slot-var=SX_SLOT -P "$jobs" -d '\n' -n1 bash -c 'one "$1"' _ <"$results/queue.tsv" &
wait $!
finish
