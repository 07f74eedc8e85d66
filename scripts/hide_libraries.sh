#!/bin/bash
# hide_libraries.sh FOLDER COMMAND...: runs COMMAND where FOLDER lies in the place of Debian's libraries. Exit code 77: no namespace of mounts
# is allowed here.
#
# hide_libraries.sh --keep FOLDER [INTERPRETER]: fills FOLDER with glibc and the libraries of gcc, and with what INTERPRETER and the modules
# that came with it load, as zlib.
set -euo pipefail
libraries=/usr/lib/$(cc -print-multiarch)

if [[ $1 == --keep ]]; then
  folder=$2
  mkdir -p "$folder"
  dpkg -L libc6 libgcc-s1 libstdc++6 | grep "/$(cc -print-multiarch)/[^/]*\.so" | xargs -I{} cp -a {} "$folder"
  if [[ -n ${3:-} ]]; then
    modules=$(dirname "$("$3" -c 'import _ctypes; print(_ctypes.__file__)')")
    ldd "$(realpath "$3")" "$modules"/*.so | sed -n 's|.*=> \(/[^ ]*\).*|\1|p' | sort -u |
      grep -E "^(/usr)?/lib/" | xargs -I{} cp -nL {} "$folder"
  fi
  exit
fi

for flags in --mount "--mount --map-root-user"; do
  # shellcheck disable=SC2086
  if unshare $flags mount --bind "$1" "$libraries" 2>/dev/null; then
    # shellcheck disable=SC2086,SC2016
    exec unshare $flags bash -c 'mount --bind "$1" "$0" && shift && exec "$@"' "$libraries" "$@"
  fi
done
exit 77
