#!/bin/bash
# install_packages.sh LIST: installs the Debian packages named in LIST that are missing, as root or by sudo; without
# either it prints the line to type and fails.
set -euo pipefail

missing=()
for package in $(cat "$1"); do
  if [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
    missing+=("$package")
  fi
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [[ $(command -v apt-get) == "" ]]; then
  echo "error: these Debian packages are missing and there is no apt-get: ${missing[*]}" >&2
  echo "Install what corresponds to them here; CONTRIBUTING.md says what each is for." >&2
  exit 1
elif [[ $(id -u) -eq 0 ]]; then
  sudo=""
elif [[ $(command -v sudo) != "" ]] && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
  sudo="sudo"
else
  echo "error: Debian packages are missing. As root type:" >&2
  echo "  apt-get update && $install" >&2
  exit 1
fi
echo "Installing: ${missing[*]}"
# A stale or partly unreachable list of packages may still hold what is needed.
$sudo apt-get update -qq || echo "warning: apt-get update failed; trying with the lists at hand" >&2
$sudo env DEBIAN_FRONTEND=noninteractive $install
