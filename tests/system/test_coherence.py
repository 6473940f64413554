# SPDX-License-Identifier: Apache-2.0
"""The source changes behind the mount: the next open has the new bytes.  No waiting for attr_timeout, no old page."""

import mmap
import os
import time

import pytest

import readers
import trees
from harness import drop_caches, remove
from readers import contents, direct, opened, same_bytes

SIZE = trees.Pool.SIZE


def rewrite(path):
    trees.write(path, trees.random_bytes("rewritten", SIZE))


def rewrite_in_the_middle(path):
    with open(path, "r+b") as f:
        f.seek(1_000_000)
        f.write(b"changed in place" * 10)


def replace(path):
    trees.write(f"{path}.new", trees.random_bytes("replaced", SIZE))
    os.rename(f"{path}.new", path)


def replace_keeping_size_and_mtime(path):
    """As rsync --times and cp -p do."""
    st = os.stat(path)
    replace(path)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def rewrite_keeping_mtime(path):
    """Only the ctime tells."""
    st = os.stat(path)
    rewrite_in_the_middle(path)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def truncate(path):
    os.truncate(path, 777_777)


def truncate_and_grow(path):
    """The size is the same again, the tail is zeros now."""
    os.truncate(path, 1000)
    os.truncate(path, SIZE)


def grow(path):
    with open(path, "ab") as f:
        f.write(trees.random_bytes("more", 500_000))


def empty(path):
    os.truncate(path, 0)


def swap(path):
    g = path.with_name("g")
    os.rename(path, f"{path}.x")
    os.rename(g, path)
    os.rename(f"{path}.x", g)


def chmod(path):
    os.chmod(path, 0o640)


def write_by_map(path):
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as m:
        m[4000:5000] = b"m" * 1000
        m.flush()


CHANGES = [rewrite, rewrite_in_the_middle, replace, replace_keeping_size_and_mtime, rewrite_keeping_mtime, truncate,
           truncate_and_grow, grow, empty, swap, chmod, write_by_map]


def by_map(path):
    if os.stat(path).st_size == 0:
        return b""
    with opened(path) as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as m:
        return m[:]


LOOKS = {"read": contents, "map": by_map, "direct": lambda p: direct(p, 0, SIZE + 1_000_000)}


@pytest.fixture(scope="module")
def coherence_folders(sources):
    """For each change one folder for each way to look, so that each looks first after the change."""
    top = sources / "coherence"
    for change in CHANGES:
        for name in LOOKS:
            trees.make_files(top / change.__name__ / name, {"f": SIZE, "g": SIZE})
    yield trees.aged(top)
    remove(top)


def agree(m, source, name, look):
    for file in ["f", "g"]:
        if look is by_map:
            os.close(os.open(m / name / file, os.O_RDONLY))   # st_size may be attr_timeout old, so let an open ask
        same_bytes((source / name / file).read_bytes(), look(m / name / file), 0, f"{file} by {name}")


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_open_sees_it(hot, coherence_folders, change):
    """Warm in the cache and, by read and by map, in the kernel's page cache; then changed."""
    folders = coherence_folders / change.__name__
    with hot(folders) as m:
        for name in LOOKS:
            for look in LOOKS.values():
                agree(m, folders, name, look)
        m.settle()
        for name in LOOKS:
            change(folders / name / "f")
        for name, look in LOOKS.items():
            agree(m, folders, name, look)
        trees.aged(folders)
        for _ in ["refetched", "cached again"]:
            drop_caches()
            for name in LOOKS:
                for look in LOOKS.values():
                    agree(m, folders, name, look)
            m.settle()
        assert m.counters()["corrupt_bytes"] == 0


def test_a_shorter_file_has_no_byte_behind_its_end(hot, work):
    """The kernel still believes the old size when the file is opened, and reads ahead beyond the new end.  Forty times:
    it is a matter of which of two short replies comes first."""
    names = [f"f{i}" for i in range(40)]
    top = trees.aged(trees.make_files(work / "source", {n: SIZE for n in names}))
    with hot(top) as m:
        for name in names:
            contents(m / name)
        m.settle()
        for i, name in enumerate(names):
            os.truncate(top / name, 600_000 + 10_001 * i)
            same_bytes((top / name).read_bytes(), contents(m / name), 0, name)


def test_changes_while_not_mounted(hot, work):
    top = work / "source"
    for change in CHANGES:
        trees.make_files(top / change.__name__, {"f": SIZE, "g": SIZE})
    trees.aged(top)
    m = hot(top).start()
    for change in CHANGES:
        agree(m, top, change.__name__, LOOKS["direct"])
    m.settle()
    assert m.counters()["admitted_bytes"] > 0
    m.stop()
    for change in CHANGES:
        change(top / change.__name__ / "f")
    trees.aged(top)
    with m.start():
        for _ in ["refetched", "cached again"]:
            for change in CHANGES:
                for look in LOOKS.values():
                    agree(m, top, change.__name__, look)
            m.settle()
        assert m.counters()["corrupt_bytes"] == 0


def test_a_young_change_is_served_but_not_admitted(hot, source):
    """The ctime of a file that changed a moment ago says nothing about the next change."""
    with hot(source) as m:
        rewrite(source / "f")
        with m.counting() as c:
            assert contents(m / "f") == (source / "f").read_bytes()
            m.settle()
        assert c["admitted_bytes"] == 0
        trees.aged(source)
        drop_caches()
        contents(m / "f")
        m.settle()
        assert m.counters()["admitted_bytes"] >= SIZE


def test_many_changes_in_quick_succession(hot, source):
    """Each open sees what was there when it opened, also within one tick of the clock."""
    with hot(source) as m:
        for i in range(200):
            data = b"%04d" % i * 25_000
            with open(source / "f", "r+b") as f:
                f.write(data)
            assert direct(m / "f", 0, 100_000) == data
            with open(m / "f", "rb") as f:
                assert f.read(100_000) == data, i


def test_chmod_behind_keeps_the_cache(hot, source):
    """Only the ctime changed: the extents are suspect, compared once and trusted again; nothing is thrown away."""
    with hot(source) as m:
        direct(m / "f", 0, SIZE)
        m.settle()
        os.chmod(source / "f", 0o600)
        trees.aged(source)
        for _ in range(2):
            assert direct(m / "f", 0, SIZE) == (source / "f").read_bytes()
            m.settle()
        with m.counting() as c:
            assert direct(m / "f", 0, SIZE) == (source / "f").read_bytes()
        assert c["hits"] == c["reads"]
        assert c["source_read_bytes"] == 0


def test_an_old_reader_keeps_or_gets_an_error_but_never_a_mix(hot, source):
    """A file replaced by rename: who has it open keeps reading the old file."""
    old = (source / "f").read_bytes()
    with hot(source) as m, readers.Direct(m / "f") as d:
        assert d.read(0, 100_000) == old[:100_000]
        replace(source / "f")
        for off in range(0, SIZE, 250_000):
            assert d.read(off, 250_000) == old[off:off + 250_000]
        assert direct(m / "f", 0, SIZE) == (source / "f").read_bytes()
        assert d.read(500_000, 1000) == old[500_000:501_000]


def test_unlinked_behind(hot, source):
    """Gone for the next open; who has it open goes on."""
    old = (source / "f").read_bytes()
    with hot(source) as m, readers.Direct(m / "f") as d:
        d.read(0, 100_000)
        os.unlink(source / "f")
        assert d.read(0, SIZE) == old
        with pytest.raises(FileNotFoundError):
            open(m / "f", "rb")
        trees.write(source / "f", b"another file of this name")
        with open(m / "f", "rb") as f:
            assert f.read() == b"another file of this name"


def test_names_and_sizes_after_attr_timeout(hot, source):
    with hot(source, attr_timeout=1) as m:
        os.listdir(m.path), os.stat(m / "f")
        trees.write(source / "fresh", b"x" * 10)
        os.mkdir(source / "folder")
        os.unlink(source / "g")
        os.truncate(source / "f", 5)
        time.sleep(1.2)
        assert sorted(os.listdir(m.path)) == ["f", "folder", "fresh"]
        assert os.stat(m / "fresh").st_size == 10 and os.stat(m / "f").st_size == 5
        assert not os.path.exists(m / "g")


def test_inode_number_reused_by_another_file(hot, source):
    """ext4 gives a freed inode number to the next file: size, mtime and ctime tell them apart."""
    with hot(source) as m:
        for i in range(10):
            path = source / f"gen{i}"
            trees.write(path, trees.random_bytes(i, 100_000))
            if i == 5:
                trees.aged(source)
            assert direct(m / f"gen{i}", 0, 100_000) == path.read_bytes()
            m.settle() if i == 5 else None
            os.unlink(path)


def test_file_becomes_folder_and_back(hot, source):
    with hot(source) as m:
        contents(m / "g")
        os.unlink(source / "g")
        os.mkdir(source / "g")
        trees.write(source / "g/inside", b"inside")
        time.sleep(1.2)
        assert os.listdir(m / "g") == ["inside"]
        os.unlink(source / "g/inside")
        os.rmdir(source / "g")
        trees.write(source / "g", b"a file again")
        time.sleep(1.2)
        assert contents(m / "g") == b"a file again"
