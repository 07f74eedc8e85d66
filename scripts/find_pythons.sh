#!/bin/bash
# find_pythons.sh: the interpreters of this machine that the Python package is built for, a path a line; says on standard error which versions
# are missing. Fails where there is none.
set -euo pipefail
num_found=0
for version in 3.10 3.11 3.12 3.13; do
  found=
  for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3; do
    # Debian's has no venv until python3-venv is installed, and pyenv's commands of such names may find nothing.
    found=$("$python" -c '
import ensurepip, os, sys, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(sys.executable)' 2>/dev/null) && break
  done
  if [[ -n $found ]]; then
    echo "$found"
    num_found=$((num_found + 1))
  else
    echo "no CPython $version with headers and venv on this machine: its wheel is not built" >&2
  fi
done
[[ $num_found -gt 0 ]]
