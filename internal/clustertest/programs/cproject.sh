#!/usr/bin/env bash
# make -j4 of a C program of a hundred files: cproject.sh DIRECTORY OTHER
# DIRECTORY and OTHER are one directory through two mounts. make compares times:
# what was just built must not be built again, and what a header is newer than must.
set -euo pipefail
dir=$(realpath "$1")
other=$(realpath "$2")
units=100
mkdir "$dir/project" "$dir/project/obj"
cd "$dir/project"

{
  echo "CFLAGS = -O0 -MMD -MP"
  echo "sources = \$(wildcard *.c)"
  echo "objects = \$(sources:%.c=obj/%.o)"
  echo "program: \$(objects)"
  printf '\t@echo LINK; cc -o $@ $^\n'
  echo "obj/%.o: %.c"
  printf '\t@echo CC $<; cc $(CFLAGS) -c -o $@ $<\n'
  echo "-include \$(objects:.o=.d)"
} > Makefile
printf '#define BASE 1\n' > common.h
{
  for ((i = 0; i < units; i++)); do echo "int part$i(void);"; done
} > parts.h
for ((i = 0; i < units; i++)); do
  # Every tenth file knows the common header.
  if ((i % 10 == 0)); then
    printf '#include "common.h"\nint part%d(void) { return BASE; }\n' "$i" > "part$i.c"
  else
    printf 'int part%d(void) { return %d; }\n' "$i" "$i" > "part$i.c"
  fi
done
{
  printf '#include "parts.h"\n#include <stdio.h>\nint main(void) {\n  int sum = 0;\n'
  for ((i = 0; i < units; i++)); do echo "  sum += part$i();"; done
  printf '  printf("%%d\\n", sum);\n  return 0;\n}\n'
} > main.c

# make_in DIRECTORY WHY COMPILED LINKED: make there does exactly that much.
make_in() {
  local out
  out=$(make -C "$1" --no-print-directory -j4 program 2>&1) || { echo "$2: $out" >&2; exit 1; }
  local compiled linked
  compiled=$(grep -c '^CC' <<< "$out" || true)
  linked=$(grep -c '^LINK' <<< "$out" || true)
  if [ "$compiled $linked" != "$3 $4" ] || grep -qi 'clock skew\|modification time' <<< "$out"; then
    echo "$2: $compiled compiled, $linked linked; wanted $3 and $4:" >&2
    head -20 <<< "$out" >&2
    exit 1
  fi
}

sum=$(((units - 1) * units / 2 - 450)) # of the numbers without the tens
make_in . "the first make" $((units + 1)) 1
test "$(./program)" = $((sum + 10))
make_in . "make again" 0 0
make_in "$other/project" "make again, on the other mount" 0 0
printf '#define BASE 2\n' > common.h
make_in . "the header changed" 10 1
test "$(./program)" = $((sum + 20))
make_in "$other/project" "and then on the other mount" 0 0
touch "$other/project/parts.h"
make_in . "touched on the other mount" 1 1
make_in . "and again" 0 0
rm obj/part7.o
make_in "$other/project" "one object is gone" 1 1
test "$("$other/project/program")" = $((sum + 20))
echo ok
