#!/usr/bin/env python3
"""SQLite, two processes on one database: sqlite.py JOURNAL COMMITS DIRECTORY DIRECTORY

JOURNAL is wal or delete; the two directories are one directory, seen through one
mount or through two. WAL keeps its index in memory that the processes share by
mmap, so it is for one mount only, as on any file system of several machines.
"""

import multiprocessing
import os
import sqlite3
import sys


def connect(path, journal):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    (mode,) = db.execute(f"PRAGMA journal_mode={journal}").fetchone()
    assert mode == journal, f"journal mode {mode}, wanted {journal}"
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_autocheckpoint=16")  # pages: both processes carry the log over into the database
    return db


def total(db):
    """What was committed, counted twice in one snapshot."""
    db.execute("BEGIN")
    (counter,) = db.execute("SELECT n FROM counter").fetchone()
    (rows,) = db.execute("SELECT count(*) FROM log").fetchone()
    db.execute("COMMIT")
    assert counter == rows, f"half a transaction: the counter says {counter}, there are {rows} rows"
    return rows


def write(path, journal, commits, me, ready):
    db = connect(path, journal)
    ready.wait()
    seen = 0
    for i in range(commits):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO log VALUES (?, ?, ?)", (me, i, f"{me}-{i} " * 200))
        db.execute("UPDATE counter SET n = n + 1")
        db.execute("COMMIT")
        if i % 4 == 0:
            now = total(db)
            assert now > max(seen, i), f"{now} rows after {seen} were seen and {i + 1} written"
            seen = now
    db.close()


def verify(path, commits):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    assert total(db) == 2 * commits, f"{total(db)} commits, {2 * commits} were made"
    for me in (0, 1):
        found = [i for (i,) in db.execute("SELECT i FROM log WHERE who = ? ORDER BY i", (me,))]
        assert found == list(range(commits)), f"writer {me}: {found}"
    (answer,) = db.execute("PRAGMA integrity_check").fetchone()
    assert answer == "ok", answer
    db.close()


def main():
    journal, commits, directories = sys.argv[1], int(sys.argv[2]), sys.argv[3:5]
    paths = [os.path.join(d, f"sqlite-{journal}.db") for d in directories]
    db = connect(paths[0], journal)
    db.execute("CREATE TABLE log (who INT, i INT, text TEXT, PRIMARY KEY (who, i))")
    db.execute("CREATE TABLE counter (n INT)")
    db.execute("INSERT INTO counter VALUES (0)")
    if journal == "delete":
        db.close()  # in WAL mode it stays: the last who closes removes the -wal and -shm files

    ready = multiprocessing.Barrier(2)
    writers = [multiprocessing.Process(target=write, args=(path, journal, commits, me, ready)) for me, path in enumerate(paths)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert all(w.exitcode == 0 for w in writers), "a writer failed"
    if journal == "wal":
        assert os.path.getsize(paths[0] + "-shm") > 0
        db.close()
        assert not os.path.exists(paths[0] + "-shm")
    for path in paths:
        verify(path, commits)
    assert not os.path.exists(paths[0] + "-journal")
    print("ok")


if __name__ == "__main__":
    main()
