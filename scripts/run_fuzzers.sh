#!/bin/bash
# run_fuzzers.sh BUILD_DIR SECONDS JOBS: builds every fuzz target and runs each for SECONDS, JOBS at a time, from the corpus beside
# its source.
set -euo pipefail
export build_dir=$1 seconds=$2
jobs=$3
# See minka_test.
export UCX_MEM_EVENTS=n
cmake --build "$build_dir" -j "$jobs" --target fuzzers

run_fuzzer() {
  set -o pipefail
  local name seeds
  name=$(basename "$1")
  seeds=$(git ls-files "minka/*/testdata/${name}_corpus/*" | xargs -r dirname | sort -u)
  mkdir -p "$build_dir/corpus/$name" "$build_dir/findings"
  local status=0 log
  log=$("$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$build_dir/findings/$name-" "$build_dir/corpus/$name" $seeds 2>&1 | tail -n 25) || status=1
  printf '== %s for %s s\n%s\n' "$name" "$seconds" "$log"
  return "$status"
}
export -f run_fuzzer
find "$build_dir/bin" -name '*_fuzzer' -print0 | sort -z | xargs -0 --max-procs="$jobs" -I{} bash -c 'run_fuzzer {}'
