#!/bin/bash
# build_tools.sh JOBS: builds the executables that users run, with preset release, and links them from build/.
set -euo pipefail
known_targets=$(ninja -C build/release -t targets all)
for tool in minka minka-worker; do
  if grep -q "^bin/$tool:" <<<"$known_targets"; then
    cmake --build build/release -j "$1" --target "bin/$tool"
    ln -sfn "release/bin/$tool" "build/$tool"
  fi
done
