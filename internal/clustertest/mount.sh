#!/usr/bin/env bash
# What people do on a mount, run on a real one: mount.sh MOUNTPOINT REPOSITORY
# un-tars and tars the Go tree, clones and builds this repository, syncs it
# twice, and verifies data that fio wrote, all at the same time as several users
# would. Ends with "ok" or, after all of them, with what failed.
set -euo pipefail
mnt=$1
repo=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
work="$mnt/mount-script"
mkdir "$work"
step() { printf '%s %s\n' "$(date +%T)" "$*"; }

tree() {
  local src
  src="$(go env GOROOT)/src"
  step "tar: the Go tree in"
  mkdir "$work/gosrc" "$scratch/gosrc"
  tar -C "$src" -cf - . | tar -C "$work/gosrc" -xf -
  step "tar: compared"
  diff -r "$src" "$work/gosrc"
  step "tar: out again"
  tar -C "$work/gosrc" --sort=name -cf - . | tar -C "$scratch/gosrc" -xf -
  diff -r "$src" "$scratch/gosrc"
  step "tar: done"
}

repository() {
  step "git: clone, commit, fsck"
  git clone -q "$repo" "$work/clone"
  cd "$work/clone"
  git config user.name "Canopy"
  git config user.email "canopy@example.org"
  echo "written on the mount" > written.txt
  git add written.txt
  git commit -q -m "written on the mount"
  git fsck --full --strict > "$scratch/fsck" 2>&1 || { cat "$scratch/fsck" >&2; exit 1; }
  grep -vE '^(Checking|notice|dangling)' "$scratch/fsck" && { echo "git fsck found something" >&2; exit 1; }
  test -z "$(git status --porcelain)"

  step "go build in the clone, and a program that runs from the mount"
  go build ./...
  go build -o "$work/clone/bin/" ./cmd/mdsctl
  "$work/clone/bin/mdsctl" --help > /dev/null

  step "rsync: twice, the second moves nothing"
  mkdir "$work/synced"
  rsync -a --delete "$work/clone/" "$work/synced/"
  local moved
  moved=$(rsync -a --delete --itemize-changes "$work/clone/" "$work/synced/")
  if [ -n "$moved" ]; then
    echo "the second rsync moved:" >&2
    echo "$moved" | head >&2
    exit 1
  fi
  step "git, go build, rsync: done"
}

verify() {
  step "fio: write and verify"
  mkdir "$work/fio"
  cd "$work/fio"
  fio --name=verify --directory="$work/fio" --size=64m --bs=64k --rw=randwrite --ioengine=psync \
    --numjobs=2 --verify=crc32c --do_verify=1 --end_fsync=1 --minimal >/dev/null
  step "fio: done"
}

# Each in a shell of its own, which ends at its first fault. (No `||` around the
# functions: it would switch that off.)
declare -A users
for user in tree repository verify; do
  "$user" &
  users[$user]=$!
done
failed=()
for user in "${!users[@]}"; do
  wait "${users[$user]}" || failed+=("$user")
done
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi

step "remove it all"
rm -rf "$work"
test ! -e "$work"
step "removed"
echo ok
