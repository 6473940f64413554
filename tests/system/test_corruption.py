# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the cache directory, readers get the source's bytes and no error: a fault is a miss."""

import os
import random
import sqlite3

import pytest

import trees
from harness import mirrors, run, sidecar
from readers import Direct, same_bytes

SIZE = 3 << 20
NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def three(sources):
    """Three files of one size, so that swapped mirrors fit each other."""
    return trees.aged(trees.make_files(sources / "three", {n: SIZE for n in NAMES}))


def flip(path, n=40, seed=5):
    """Turn over `n` bytes somewhere in the data of a file."""
    rng = random.Random(seed)
    with open(path, "r+b") as f:
        size = os.stat(path).st_size
        for _ in range(n):
            at = rng.randrange(size)
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ (1 << rng.randrange(8))]))


def swap(a, b):
    a.rename(a.with_name("swapping"))
    b.rename(a)
    a.with_name("swapping").rename(b)


def zero(path, off=SIZE // 3, length=70_000):
    with open(path, "r+b") as f:
        f.seek(min(off, os.stat(path).st_size // 2))
        f.write(bytes(min(length, os.stat(path).st_size // 4)))


DAMAGES = {
    "flip mirror bytes": lambda m: [flip(x) for x in m],
    "flip one bit": lambda m: flip(m[0], 1),
    "zero a stretch": lambda m: zero(m[1]),
    "flip sidecar bytes": lambda m: [flip(sidecar(x)) for x in m],
    "zero a sidecar": lambda m: zero(sidecar(m[0])),
    "truncate a mirror": lambda m: os.truncate(m[0], SIZE // 2 + 100),
    "empty a mirror": lambda m: os.truncate(m[0], 0),
    "truncate a sidecar": lambda m: os.truncate(sidecar(m[0]), 100),
    "grow a mirror": lambda m: os.truncate(m[0], SIZE + 9999),
    "delete a mirror": lambda m: m[0].unlink(),
    "delete a sidecar": lambda m: sidecar(m[0]).unlink(),
    "delete all": lambda m: [x.unlink() for x in m],
    "swap mirrors": lambda m: swap(m[0], m[1]),
    "swap sidecars": lambda m: swap(sidecar(m[0]), sidecar(m[1])),
    "swap both": lambda m: (swap(m[0], m[1]), swap(sidecar(m[0]), sidecar(m[1]))),
    "a mirror is a folder": lambda m: (m[0].unlink(), m[0].mkdir()),
    "a mirror is a symlink": lambda m: (m[0].rename(m[0].with_name("x")), m[0].symlink_to(m[0].with_name("x"))),
    "strangers in the folder": lambda m: [trees.write(m[0].with_name(n), b"x" * 5000)
                                          for n in ["x", "y.sum", "\udcff"]],
}
COUNTED = {"flip mirror bytes", "flip one bit", "zero a stretch", "flip sidecar bytes", "zero a sidecar",
           "swap mirrors", "swap sidecars", "swap both"}
"""Damage that only a checksum can see: it has to be counted as corrupt."""


def read_and_compare(m, three, step=256 * 1024):
    for name in NAMES:
        truth = (three / name).read_bytes()
        with Direct(m / name) as d:
            for off in range(0, SIZE, step):
                same_bytes(truth[off:off + step], d.read(off, step), off, name)


def fill(m, three):
    read_and_compare(m, three)
    m.settle()
    found = mirrors(m.cache)
    assert len(found) == 3
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_at_rest(hot, slow, three, damage):
    with slow(three) as source:
        m = hot(source.path).start()
        found = fill(m, three)
        m.stop()
        DAMAGES[damage](found)
        source.reset()
        with m.start():
            read_and_compare(m, three)
            m.settle()
            c = m.counters()
            if damage in COUNTED:
                assert c["corrupt_bytes"] > 0
            assert c["corrupt_bytes"] % 4096 == 0
            assert damage == "strangers in the folder" or damage == "grow a mirror" or source.read_bytes > 0
            healed(m, source, three)


def healed(m, source, three):
    """What was damaged has been fetched again: the next pass costs nothing, and finds nothing wrong."""
    source.reset()
    with m.counting() as c:
        read_and_compare(m, three)
    assert source.read_bytes == 0 and c["corrupt_bytes"] == 0


MOUNTED = [d for d in DAMAGES if "folder" not in d and "symlink" not in d]


@pytest.mark.parametrize("damage", MOUNTED)
def test_while_mounted(hot, slow, three, damage):
    """The daemon may hold what it has open; but a byte that it takes from there is checked."""
    with slow(three) as source, hot(source.path) as m:
        found = fill(m, three)
        DAMAGES[damage](found)
        read_and_compare(m, three)
        if damage in COUNTED - {"swap mirrors", "swap sidecars", "swap both"}:
            assert m.counters()["corrupt_bytes"] > 0
        m.settle()
        read_and_compare(m, three)
        m.restart()
        read_and_compare(m, three)


@pytest.mark.parametrize("damage", ["flip mirror bytes", "swap both", "truncate a mirror"])
def test_verify_first_sees_it_too(hot, slow, three, damage):
    """verify=first checks at the first read since the mount."""
    with slow(three) as source:
        m = hot(source.path, verify="first").start()
        found = fill(m, three)
        m.stop()
        DAMAGES[damage](found)
        with m.start():
            read_and_compare(m, three)
            assert m.counters()["corrupt_bytes"] > 0 or damage not in COUNTED
            m.settle()
            healed(m, source, three)


def test_one_wrong_bit_costs_one_block(hot, slow, three):
    """Only the block that does not verify is fetched again."""
    with slow(three) as source, hot(source.path) as m:
        found = fill(m, three)
        flip(found[0], 1)
        source.reset()
        read_and_compare(m, three)
        assert m.counters()["corrupt_bytes"] == 4096
        assert 0 < source.read_bytes <= 256 * 1024


def index(cache):
    return cache / "index.db"


def flip_pages(path):
    """Bytes in the headers of the database's pages, where they hurt most."""
    rng = random.Random(6)
    with open(path, "r+b") as f:
        for page in range(0, os.stat(path).st_size, 4096):
            f.seek(page + rng.randrange(0, 16))
            f.write(bytes([rng.randrange(256)]))


def wrong_rows(path):
    """A valid database that lies: every integer column of every table is off by a bit."""
    db = sqlite3.connect(path)
    tables = db.execute("select name from sqlite_master where type='table' and name not like 'sqlite_%'").fetchall()
    for (table,) in tables:
        for column in db.execute(f"pragma table_info({table})").fetchall():
            if "INT" in column[2].upper() and not column[5]:
                try:
                    db.execute(f"update {table} set {column[1]} = {column[1]} + 4096")
                except sqlite3.Error:
                    pass
    db.commit()
    db.close()


def other_schema(path):
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("create table something_else (x)")
    db.commit()
    db.close()


INDEX_DAMAGES = {
    "flip pages": flip_pages,
    "flip bytes": lambda p: flip(p, 60),
    "truncate": lambda p: os.truncate(p, os.stat(p).st_size // 2 + 77),
    "empty": lambda p: os.truncate(p, 0),
    "delete": lambda p: p.unlink(),
    "garbage": lambda p: p.write_bytes(trees.random_bytes(1, 50_000)),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "wrong rows": wrong_rows,
    "another schema": other_schema,
    "garbage beside it": lambda p: [trees.write(f"{p}{x}", trees.random_bytes(2, 40_000))
                                    for x in ["-wal", "-journal", "-shm"]],
}


@pytest.mark.parametrize("damage", INDEX_DAMAGES)
def test_index_at_rest(hot, slow, three, damage):
    """A corrupt or lost index is an empty cache, no more; and the bytes it no longer knows do not stay on the disk."""
    with slow(three) as source:
        m = hot(source.path, size="12M").start()
        fill(m, three)
        m.stop()
        INDEX_DAMAGES[damage](index(m.cache))
        with m.start():
            read_and_compare(m, three)
            m.settle()
            healed(m, source, three)
            assert m.status()["used_bytes"] <= 12 << 20
            m.restart()
            read_and_compare(m, three)


@pytest.mark.parametrize("damage", ["flip pages", "truncate", "delete", "garbage"])
def test_index_while_mounted(hot, three, damage):
    with hot(three) as m:
        fill(m, three)
        INDEX_DAMAGES[damage](index(m.cache))
        read_and_compare(m, three)
        m.settle()
        m.restart()
        read_and_compare(m, three)


def test_the_whole_cache_directory_disappears(hot, three):
    """rm -rf of everything in it while mounted: readers do not notice."""
    with hot(three) as m:
        fill(m, three)
        run("find", m.cache, "-mindepth", "1", "-delete")
        read_and_compare(m, three)
        m.settle()
        read_and_compare(m, three)
        m.restart()
        read_and_compare(m, three)


def test_an_older_copy_of_the_cache_is_put_back(hot, work):
    """A restored backup: mirrors and index that fit each other, but the file has changed since."""
    source = trees.aged(trees.make_files(work / "source", {n: SIZE for n in NAMES}))
    m = hot(source).start()
    fill(m, source)
    m.stop()
    run("cp", "-a", m.cache, work / "backup")
    trees.write(source / "a", trees.random_bytes("new a", SIZE))
    trees.aged(source)
    with m.start():
        read_and_compare(m, source)
        m.settle()
    run("rm", "-r", m.cache)
    run("cp", "-a", work / "backup", m.cache)
    with m.start():
        read_and_compare(m, source)


@pytest.mark.parametrize("how", ["behind", "through"])
def test_mirrors_of_one_time_with_the_index_of_another(hot, work, how):
    """What a crash can leave: the index knows the new range, the mirror and its sidecar are the old ones.  They fit
    each other, so only a nonce that is new with each change tells."""
    source = trees.aged(trees.make_files(work / "source", {n: SIZE for n in NAMES}))
    with hot(source) as m:
        fill(m, source)
        os.sync()
        run("cp", "-a", m.cache / "mirrors", work / "old-mirrors")
        with open((m.path if how == "through" else source) / "a", "r+b") as f:
            f.seek(1 << 20)
            f.write(trees.random_bytes("new a", 600_000))      # a part, so that the mirror stays in use
        trees.aged(source)
        read_and_compare(m, source)
        m.settle()
    kept = 0
    for old in (work / "old-mirrors").glob("*/*"):
        new = m.cache / "mirrors" / old.parent.name / old.name
        if new.exists():
            run("cp", old, new)
            kept += 1
    assert kept >= (6 if how == "through" else 4)
    with m.start():
        read_and_compare(m, source)
