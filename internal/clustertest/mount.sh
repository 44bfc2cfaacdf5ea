#!/usr/bin/env bash
# What people do on a mount, run on a real one: mount.sh MOUNTPOINT REPOSITORY
# un-tars and tars the Go tree, clones and builds this repository, syncs it
# twice, and verifies data that fio wrote. Ends with "ok" or at the first fault.
set -euo pipefail
mnt=$1
repo=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
work="$mnt/mount-script"
mkdir "$work"
step() { printf '%s %s\n' "$(date +%T)" "$*"; }

step "tar: the Go tree in, compared, and out again"
src="$(go env GOROOT)/src"
mkdir "$work/gosrc"
tar -C "$src" -cf - . | tar -C "$work/gosrc" -xf -
diff -r "$src" "$work/gosrc"
tar -C "$work/gosrc" --sort=name -cf - . | tar -C "$scratch" -xf -
diff -r "$src" "$scratch"

step "git: clone, commit, fsck"
git clone -q "$repo" "$work/clone"
cd "$work/clone"
git config user.name "Canopy"
git config user.email "canopy@example.org"
echo "written on the mount" > written.txt
git add written.txt
git commit -q -m "written on the mount"
git fsck --full --strict 2>&1 | grep -vE '^(Checking|notice|dangling)' && { echo "git fsck found something" >&2; exit 1; }
test -z "$(git status --porcelain)"

step "go build in the clone"
go build -o "$scratch/bin/" ./...

step "rsync: twice, the second moves nothing"
mkdir "$work/synced"
rsync -a --delete "$work/clone/" "$work/synced/"
moved=$(rsync -a --delete --itemize-changes "$work/clone/" "$work/synced/")
if [ -n "$moved" ]; then
  echo "the second rsync moved:" >&2
  echo "$moved" | head >&2
  exit 1
fi

step "fio: write and verify"
cd "$work"
fio --name=verify --directory="$work" --size=64m --bs=64k --rw=randwrite --ioengine=psync \
  --numjobs=2 --verify=crc32c --do_verify=1 --end_fsync=1 --minimal >/dev/null
cd /

step "remove it all"
rm -rf "$work"
test ! -e "$work"
echo ok
