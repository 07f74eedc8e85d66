#!/bin/bash
# run_clang_tidy.sh DEV_DIR BUILT_DIR JOBS: clang-tidy over the sources under minka/ (not the tests) with the checks of .clang-tidy, by
# the compile commands of DEV_DIR, which has one for each source, and the headers that the build of BUILT_DIR generates.
set -euo pipefail
dev_dir=$1
built_dir=$2
jobs=$3

generated=$(ninja -C "$built_dir" -t targets all | sed -n "s/^\(.*\.pb\.h\): .*/\1/p")
[[ -z $generated ]] || ninja -C "$built_dir" -j "$jobs" $generated
mkdir -p "$dev_dir/tidy"
sed "s#-I$PWD/$dev_dir#-I$PWD/$built_dir#g" "$dev_dir/compile_commands.json" >"$dev_dir/tidy/compile_commands.json"
git ls-files 'minka/*.cc' | grep -v -e '_test\.cc$' -e '_fuzzer\.cc$' |
  xargs --max-procs="$jobs" --max-args=4 build/venv/bin/clang-tidy -p "$dev_dir/tidy" --quiet \
  2> >(grep -v -e ' warnings\? generated' -e ' Processing file ' >&2)
