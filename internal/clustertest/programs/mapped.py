#!/usr/bin/env python3
"""mmap from Python: mapped.py DIRECTORY OTHER

DIRECTORY and OTHER are one directory through two mounts.
"""

import mmap
import os
import subprocess
import sys

PAGE = mmap.PAGESIZE


def other_process(path, start, length):
    """What another process sees through a mapping of its own."""
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ);"
        " s, n = int(sys.argv[2]), int(sys.argv[3]); sys.stdout.buffer.write(m[s:s + n])"
    )
    return subprocess.run([sys.executable, "-c", program, path, str(start), str(length)], check=True, capture_output=True).stdout


def read(path, start, length):
    with open(path, "rb") as f:
        f.seek(start)
        return f.read(length)


def shared(directory, other):
    path, there = os.path.join(directory, "mapped"), os.path.join(other, "mapped")
    f = open(path, "w+b")
    f.truncate(64 * PAGE)
    m = mmap.mmap(f.fileno(), 64 * PAGE)
    assert m[:] == bytes(64 * PAGE)
    for i in range(64):
        m[i * PAGE : i * PAGE + 8] = b"page %3d" % i
    # Processes of one mount share the pages, before any msync.
    for i in (0, 17, 63):
        assert other_process(path, i * PAGE, 8) == b"page %3d" % i
        assert read(path, i * PAGE, 8) == b"page %3d" % i
    # What write(2) writes is in the mapping, at once.
    os.pwrite(f.fileno(), b"by write", 5 * PAGE + 100)
    assert m[5 * PAGE + 100 : 5 * PAGE + 108] == b"by write"
    # After msync and fsync the other mount has it.
    m.flush()
    os.fsync(f.fileno())
    for i in (0, 17, 63):
        assert other_process(there, i * PAGE, 8) == b"page %3d" % i
    assert read(there, 5 * PAGE + 100, 8) == b"by write"

    # Grown by ftruncate, a new mapping has all of it, the old one what it had.
    os.ftruncate(f.fileno(), 100 * PAGE)
    assert os.fstat(f.fileno()).st_size == 100 * PAGE
    grown = mmap.mmap(f.fileno(), 100 * PAGE)
    assert grown[64 * PAGE :] == bytes(36 * PAGE)
    grown[99 * PAGE :] = b"z" * PAGE
    m[0:8] = b"old map."
    assert grown[0:8] == b"old map."
    m.resize(80 * PAGE)  # ftruncate and mremap
    assert m[63 * PAGE : 63 * PAGE + 8] == b"page  63"
    assert os.path.getsize(path) == 80 * PAGE
    m.resize(120 * PAGE)
    assert m[99 * PAGE : 100 * PAGE] == bytes(PAGE), "cut off, yet still there"
    m[119 * PAGE :] = b"e" * PAGE
    m.flush()
    m.close()
    grown.close()
    f.close()
    assert os.path.getsize(there) == 120 * PAGE
    assert other_process(there, 119 * PAGE, PAGE) == b"e" * PAGE
    assert read(there, 0, 8) == b"old map."


def private(directory):
    path = os.path.join(directory, "private")
    with open(path, "wb") as f:
        f.write(b"a" * PAGE)
    with open(path, "r+b") as f:
        m = mmap.mmap(f.fileno(), PAGE, access=mmap.ACCESS_COPY)
        m[:4] = b"mine"
        m.close()
    assert read(path, 0, 4) == b"aaaa"


def unlinked(directory):
    path = os.path.join(directory, "unlinked")
    f = open(path, "w+b")
    f.truncate(4 * PAGE)
    m = mmap.mmap(f.fileno(), 4 * PAGE)
    f.close()
    os.unlink(path)
    m[:] = b"u" * (4 * PAGE)
    m.flush()
    assert m[:] == b"u" * (4 * PAGE)
    m.close()


shared(*sys.argv[1:3])
private(sys.argv[1])
unlinked(sys.argv[1])
print("ok")
