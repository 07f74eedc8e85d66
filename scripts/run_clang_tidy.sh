#!/bin/bash
# run_clang_tidy.sh BUILD_DIR JOBS: clang-tidy over the sources under minka/ (not the tests) with the checks of .clang-tidy.
set -euo pipefail
build_dir=$1
jobs=$2

# Headers that the build generates must be there before a source that includes them can be read.
generated=$(ninja -C "$build_dir" -t targets all | sed -n "s/^\(.*\.pb\.h\): .*/\1/p")
[[ -z $generated ]] || ninja -C "$build_dir" -j "$jobs" $generated
git ls-files 'minka/*.cc' | grep -v -e '_test\.cc$' -e '_fuzzer\.cc$' |
  xargs --max-procs="$jobs" --max-args=4 build/venv/bin/clang-tidy -p "$build_dir" --quiet \
  2> >(grep -v ' warnings\? generated' >&2)
