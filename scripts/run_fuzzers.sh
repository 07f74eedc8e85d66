#!/bin/bash
# run_fuzzers.sh BUILD_DIR SECONDS JOBS: builds every fuzz target and runs each for SECONDS, from the corpus beside its source.
set -euo pipefail
build_dir=$1
seconds=$2
cmake --build "$build_dir" -j "$3" --target fuzzers

shopt -s nullglob
status=0
for fuzzer in "$build_dir"/bin/*_fuzzer; do
  name=$(basename "$fuzzer")
  seeds=$(git ls-files --directory "minka/*/testdata/${name}_corpus/*" | xargs -r dirname | sort -u)
  mkdir -p "$build_dir/corpus/$name" "$build_dir/findings"
  echo "== $name for $seconds s"
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$build_dir/findings/$name-" "$build_dir/corpus/$name" $seeds 2>&1 | tail -n 25 || status=1
done
exit $status
