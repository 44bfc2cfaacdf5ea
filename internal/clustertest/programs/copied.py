#!/usr/bin/env python3
"""shutil from Python: copied.py DIRECTORY OTHER LOCAL

DIRECTORY and OTHER are one directory through two mounts, LOCAL is on another file
system. A tree goes LOCAL -> DIRECTORY -> OTHER -> LOCAL, by copytree and by move.
"""

import os
import shutil
import stat
import sys


def make(root):
    os.makedirs(os.path.join(root, "a", "b", "empty"))
    for i in range(40):
        path = os.path.join(root, "a", f"file {i}")
        with open(path, "wb") as f:
            f.write(b"%d\n" % i * i * 100)
        os.chmod(path, 0o600 + i % 64)
        os.utime(path, ns=(1_000_000_000_000_000_000 + i, 1_100_000_000_123_456_000 + i))
        if i % 8 == 0:
            os.setxattr(path, "user.number", b"%d" % i)
    with open(os.path.join(root, "a", "b", "big"), "wb") as f:
        f.write(os.urandom(3 << 20))
    os.symlink("file 7", os.path.join(root, "a", "to a file"))
    os.symlink("../a", os.path.join(root, "a", "to itself"))
    os.symlink("nowhere", os.path.join(root, "dangling"))
    os.chmod(os.path.join(root, "a", "b"), 0o2750)
    for d in ("a/b/empty", "a/b", "a", ""):
        os.utime(os.path.join(root, d), ns=(10**18, 12 * 10**17 + len(d)))


def describe(root):
    """All that copytree keeps: names, kinds, modes, times, xattrs, targets, bytes."""
    found = {}
    for base, dirs, files in os.walk(root):
        for name in dirs + files + ["."]:
            path = os.path.join(base, name)
            st = os.lstat(path)
            what = [stat.filemode(st.st_mode)]
            if stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(path))
            else:
                what += [st.st_mtime_ns, [(x, os.getxattr(path, x)) for x in sorted(os.listxattr(path))]]
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    what.append(f.read())
            found[os.path.relpath(path, root)] = what
    return found


def same(found, wanted, what):
    if found == wanted:
        return
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            print(f"{what}: {name}: {str(found.get(name))[:200]}, wanted {str(wanted.get(name))[:200]}", file=sys.stderr)
    sys.exit(1)


here, there, local = sys.argv[1:4]
source = os.path.join(local, "tree")
make(source)
wanted = describe(source)

shutil.copytree(source, os.path.join(here, "tree"), symlinks=True)
same(describe(os.path.join(here, "tree")), wanted, "copied in")
same(describe(os.path.join(there, "tree")), wanted, "copied in, on the other mount")

# On one mount a move is a rename; between mounts, as between file systems, a copy.
inode = os.stat(os.path.join(here, "tree", "a", "b", "big")).st_ino
shutil.move(os.path.join(here, "tree"), os.path.join(here, "moved"))
assert not os.path.exists(os.path.join(here, "tree"))
assert os.stat(os.path.join(here, "moved", "a", "b", "big")).st_ino == inode
assert not os.path.exists(os.path.join(there, "tree"))
shutil.move(os.path.join(here, "moved"), os.path.join(there, "back"))
same(describe(os.path.join(here, "back")), wanted, "moved to the other mount")
shutil.move(os.path.join(here, "back"), os.path.join(local, "out"))
same(describe(os.path.join(local, "out")), wanted, "moved out")
assert not os.path.exists(os.path.join(here, "back"))

shutil.copytree(source, os.path.join(here, "followed"), symlinks=False, ignore=shutil.ignore_patterns("to itself", "dangling"))
followed = os.path.join(here, "followed", "a", "to a file")
assert os.path.isfile(followed) and not os.path.islink(followed)
shutil.copytree(source, os.path.join(here, "followed"), symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("to a file"))
shutil.rmtree(os.path.join(there, "followed"))
assert not os.path.exists(os.path.join(here, "followed"))
shutil.rmtree(os.path.join(local, "tree"))
shutil.rmtree(os.path.join(local, "out"))
print("ok")
