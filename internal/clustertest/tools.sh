#!/usr/bin/env bash
# Installs the Debian packages that `make check` needs and that are missing.
set -euo pipefail
missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v rsync >/dev/null || missing+=(rsync)
command -v fio >/dev/null || missing+=(fio)
command -v python3 >/dev/null || missing+=(python3)
command -v npm >/dev/null || missing+=(npm)
command -v fusermount3 >/dev/null || missing+=(fuse3)
[ "${#missing[@]}" -eq 0 ] && exit 0
echo "make check needs: ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install them and run it again" >&2
  exit 1
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
