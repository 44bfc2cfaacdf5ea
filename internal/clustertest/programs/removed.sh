#!/usr/bin/env bash
# rm -rf of one tree from two mounts at once: removed.sh DIRECTORY OTHER
# DIRECTORY and OTHER are one directory through two mounts. As on any file system one
# may remove what the other has just found: -f is silent about a name that is gone, and
# a directory that vanishes under the walk may be reported. Nothing else may be (a
# directory that is not empty had a name which its listing did not show), and the
# tree is gone.
set -euo pipefail
dir=$1
other=$2
for ((round = 0; round < 3; round++)); do
  for ((d = 0; d < 12; d++)); do
    mkdir -p "$dir/tree/$d/sub/empty"
    for ((f = 0; f < 12; f++)); do echo "$d $f" > "$dir/tree/$d/file$f"; done
    ln -s ../file1 "$dir/tree/$d/sub/link"
    ln "$dir/tree/$d/file2" "$dir/tree/$d/sub/hard"
  done
  complaints=$(
    rm -rf "$dir/tree" 2>&1 & here=$!
    rm -rf "$other/tree" 2>&1 & there=$!
    wait "$here" || echo "here: status $?"
    wait "$there" || echo "there: status $?"
  )
  if grep -vE ': No such file or directory$|: status 1$' <<< "$complaints" | grep .; then
    echo "round $round: rm says what it never should" >&2
    exit 1
  fi
  [ -z "$complaints" ] || echo "$complaints"
  for name in "$dir/tree" "$other/tree"; do
    if [ -e "$name" ]; then
      echo "round $round: $name is still there: $complaints" >&2
      find "$name" >&2
      exit 1
    fi
  done
done
echo ok
