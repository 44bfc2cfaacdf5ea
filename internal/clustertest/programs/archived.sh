#!/usr/bin/env bash
# tar of what was written just now: archived.sh DIRECTORY OTHER
# DIRECTORY and OTHER are one directory through two mounts. tar looks at each
# file's size and times before it reads and afterwards, and says "file changed as we
# read it" if they differ: nobody changes anything, so it must be silent.
set -euo pipefail
dir=$1
other=$2
rounds=4
files=16

# archive DIRECTORY: without a word, and it holds what is there (bytes, sizes, times).
archive() {
  local said
  said=$(tar -C "$1" -cf "$scratch/tar" tree 2>&1) || { echo "$said" >&2; exit 1; }
  if [ -n "$said" ]; then
    echo "tar says: $said" >&2
    exit 1
  fi
  tar -C "$1" -df "$scratch/tar"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# write DIRECTORY ROUND: small files, a large one, one that is overwritten, one that
# grows, one that is cut, one that is renamed to its place.
write() {
  mkdir -p "$1/tree"
  for ((f = 0; f < files; f++)); do
    head -c $((f * 1997 + $2)) /dev/urandom > "$1/tree/file$f"
  done
  head -c 3000000 /dev/urandom > "$1/tree/large"
  printf 'round %d' "$2" | dd of="$1/tree/large" conv=notrunc bs=1 seek=100000 status=none
  echo "round $2" >> "$1/tree/log"
  truncate -s 1500000 "$1/tree/large"
  echo "$2" > "$1/tree/.new"
  mv "$1/tree/.new" "$1/tree/current"
}

for ((round = 0; round < rounds; round++)); do
  write "$dir" "$round"
  archive "$dir"
  archive "$other"
  write "$other" "$round"
  archive "$dir"
done
# Files that somebody still has open for writing, and wrote to a moment ago.
exec 7> "$dir/tree/open"
for ((round = 0; round < 2 * rounds; round++)); do
  printf 'more, in round %d\n' "$round" >&7
  archive "$dir"
done
exec 7>&-
archive "$other"
echo ok
