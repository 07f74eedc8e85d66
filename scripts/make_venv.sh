#!/bin/bash
# make_venv.sh DIR REQUIREMENTS [PIP_OPTION...]: makes the virtual environment DIR if it is not there, of the interpreter $PYTHON if that is
# set, and installs REQUIREMENTS into it.
set -euo pipefail
dir=$1
requirements=$2

# The python3 on PATH may be one without venv; Debian's has it once python3-venv is installed.
python_with_venv() {
  local python
  for python in ${PYTHON:-python3 /usr/bin/python3}; do
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  echo "error: no python3 with the module venv; install the Debian package python3-venv" >&2
  return 1
}

if [[ ! -x $dir/bin/python ]]; then
  python=$(python_with_venv)
  mkdir -p "$(dirname "$dir")"
  "$python" -m venv "$dir"
fi
if ! "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" "${@:3}"; then
  echo "error: could not install $(paste -sd' ' "$requirements") from PyPI into $dir;" \
       "check the network or pip's configuration and run the command again" >&2
  exit 1
fi
