#!/bin/bash
# run_test_part.sh PARTS PROGRAM ARGS...: of the cases of a gtest program one in PARTS; MINKA_TEST_ROTATION says which, so that as
# many commits after each other run all of them.
set -euo pipefail
export GTEST_TOTAL_SHARDS=$1
export GTEST_SHARD_INDEX=$((${MINKA_TEST_ROTATION:-0} % $1))
shift
exec "$@"
