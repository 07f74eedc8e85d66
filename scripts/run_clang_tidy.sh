#!/bin/bash
# run_clang_tidy.sh DEV_DIR BUILT_DIR JOBS: clang-tidy over the sources under minka/ (not the tests) with the checks of .clang-tidy, by
# the compile commands of DEV_DIR, which has one for each source, and the headers that the build of BUILT_DIR generates. Where
# MINKA_TEST_ROTATION is set, as in .ci/run, over those that were touched lately, or include what was, and a sixteenth of the others,
# another with every commit.
set -euo pipefail
dev_dir=$1
built_dir=$2
jobs=$3

generated=$(ninja -C "$built_dir" -t targets all | sed -n "s/^\(.*\.pb\.h\): .*/\1/p")
[[ -z $generated ]] || ninja -C "$built_dir" -j "$jobs" $generated
mkdir -p "$dev_dir/tidy"
sed "s#-I$PWD/$dev_dir#-I$PWD/$built_dir#g" "$dev_dir/compile_commands.json" >"$dev_dir/tidy/compile_commands.json"
sources() { git ls-files 'minka/*.cc' | grep -v -e '_test\.cc$' -e '_fuzzer\.cc$'; }
# What the last commits touched, and what includes their headers, which may have findings by them; of the others one in 16.
changed() { git diff --name-only HEAD~20 -- "$@"; }
touched() {
  changed 'minka/*.cc' 'minka/*.h' | sed 's/\.h$/.cc/'
  local headers
  headers=$(changed 'minka/*.h' | sed 's/.*/#include "&"/')
  [[ -z $headers ]] || git grep -l -F -f /dev/stdin -- 'minka/*.cc' <<<"$headers" || true
}
one_in_16() { sources | awk -v part=$((MINKA_TEST_ROTATION % 16)) 'NR % 16 == part'; }
chosen() {
  if [[ -n ${MINKA_TEST_ROTATION:-} ]] && git rev-parse --quiet --verify HEAD~20 >/dev/null; then
    { sources | grep -x -F -f <(touched) || true; one_in_16; } | sort -u
  else
    sources
  fi
}
mapfile -t files < <(chosen)
echo "clang-tidy of ${#files[@]} of $(sources | wc -l) sources"
printf '%s\n' "${files[@]}" |
  xargs --max-procs="$jobs" --max-args=4 build/venv/bin/clang-tidy -p "$dev_dir/tidy" --quiet \
  2> >(grep -v -e ' warnings\? generated' -e ' Processing file ' >&2)
