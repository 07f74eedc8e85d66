#!/bin/bash
# Random programs of many seeds, beyond those of CI, in ranges of 500 that can be taken up again:
#
#   scripts/run_random_programs.sh FIRST_SEED LAST_SEED LOG_DIR
#
# Runs a copy of build/release/bin/random_programs_test at low priority, one range after the other, a log each under
# LOG_DIR/<checksum of the program>. Ranges that have passed with the same program are left out. Goes on after a
# range that fails and then ends with 1.
set -uo pipefail
cd "$(dirname "$0")/.."
first=$1 last=$2
built=build/release/bin/random_programs_test
logs=$3/$(sha256sum "$built" | cut -c1-12)
program=$logs/random_programs_test
mkdir -p "$logs"
[[ -e $program ]] || cp "$built" "$program"

result=0
for ((seed = first; seed <= last; seed += 500)); do
  count=$((last - seed + 1 < 500 ? last - seed + 1 : 500))
  log=$logs/$seed-$((seed + count - 1)).log
  if grep -qas 'PASSED  . 1 test' "$log"; then continue; fi
  if MINKA_RANDOM_SEED=$seed MINKA_RANDOM_PROGRAMS=$count nice -n 19 "$program" --gtest_filter=RandomPrograms.* >"$log" 2>&1; then
    echo "$log: passed"
  else
    echo "$log: FAILED"
    result=1
  fi
done
exit $result
