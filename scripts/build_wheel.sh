#!/bin/bash
# build_wheel.sh PYTHON DIR: builds the Python package's wheel for the interpreter PYTHON into DIR, named by the oldest glibc that it runs with.
set -euo pipefail
python=$1
dir=$2
tools=build/venv-wheel
"$(dirname "$0")/make_venv.sh" "$tools" "$(dirname "$0")/requirements_wheel.txt"
linked=$(mktemp -d)
trap 'rm -rf "$linked"' EXIT
# By the name that CMake finds by itself, so that ccache has what `make build` compiled.
CC=cc CXX=c++ "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$linked" .
PATH=$(realpath "$tools")/bin:$PATH auditwheel repair --wheel-dir "$dir" "$linked"/*.whl
