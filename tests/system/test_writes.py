# SPDX-License-Identifier: Apache-2.0
"""Writes through the mount reach the source first, and no cached byte that they touched is served again."""

import errno
import fcntl
import mmap
import os
import random

import pytest

import trees
from children import Child, wait_until
from harness import drop_caches, run
from readers import contents, direct, opened, same_bytes

SIZE = trees.Pool.SIZE
FALLOC_KEEP, FALLOC_PUNCH, FALLOC_COLLAPSE, FALLOC_ZERO = 1, 2, 8, 16


def fallocate(fd, mode, off, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def write(path):
    with opened(path, os.O_WRONLY) as fd:
        os.pwrite(fd, b"written" * 1000, 1_000_001)


def write_small(path):
    with opened(path, os.O_WRONLY) as fd:
        os.pwrite(fd, b"!", 4096)


def write_direct(path):
    with opened(path, os.O_WRONLY | os.O_DIRECT) as fd:
        buffer = mmap.mmap(-1, 8192)
        buffer[:] = b"d" * 8192
        os.pwrite(fd, buffer, 40_960)


def read_and_write(path):
    with opened(path, os.O_RDWR) as fd:
        got = os.pread(fd, 100_000, 500_000)
        os.pwrite(fd, got[::-1], 500_000)
        assert os.pread(fd, 100_000, 500_000) == got[::-1]


def append(path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"appended" * 10_000)


def append_a_byte(path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"a")


def truncate(path):
    os.truncate(path, 1_234_567)


def truncate_and_grow(path):
    os.truncate(path, 5000)
    os.truncate(path, SIZE)


def ftruncate(path):
    with opened(path, os.O_RDWR) as fd:
        os.ftruncate(fd, 4097)


def open_trunc(path):
    with opened(path, os.O_WRONLY | os.O_TRUNC) as fd:
        os.write(fd, b"begun anew" * 30_000)


def punch(path):
    with opened(path, os.O_RDWR) as fd:
        fallocate(fd, FALLOC_PUNCH | FALLOC_KEEP, 300_000, 700_000)


def zero_range(path):
    with opened(path, os.O_RDWR) as fd:
        fallocate(fd, FALLOC_ZERO, 300_000, 70_000)


def preallocate(path):
    with opened(path, os.O_RDWR) as fd:
        fallocate(fd, 0, SIZE - 100, 500_000)


def rename_over(path):
    trees.write(path.with_name("new"), trees.random_bytes("new", SIZE))
    os.rename(path.with_name("new"), path)


def exchange(path):
    """f and g change places."""
    g = path.with_name("g")
    os.rename(path, path.with_name("x"))
    os.rename(g, path)
    os.rename(path.with_name("x"), g)


def unlink_and_create(path):
    os.unlink(path)
    trees.write(path, trees.random_bytes("again", 700_000))


def by_map(path):
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED) as m:
        m[1_000_000:1_000_100] = b"M" * 100
        m[SIZE - 3:] = b"end"
        m.flush()


def copy_range(path):
    with opened(path.with_name("g")) as a, opened(path, os.O_WRONLY) as b:
        done = 0
        while done < 900_000:
            done += os.copy_file_range(a, b, 900_000 - done, 100_000 + done, 200_000 + done)


def sendfile_into(path):
    with opened(path.with_name("g")) as a, opened(path, os.O_WRONLY) as b:
        os.sendfile(b, a, 50_000, 400_000)


CHANGES = [write, write_small, write_direct, read_and_write, append, append_a_byte, truncate, truncate_and_grow,
           ftruncate, open_trunc, punch, zero_range, preallocate, rename_over, exchange, unlink_and_create, by_map,
           copy_range, sendfile_into]


def all_agree(m, source):
    """By read, by map and by O_DIRECT the mount has what the source has; sizes and times too."""
    for name in sorted(os.listdir(source)):
        truth = (source / name).read_bytes()
        same_bytes(truth, contents(m / name), 0, f"{name} by read")
        same_bytes(truth, direct(m / name, 0, len(truth) + 5000), 0, f"{name} by O_DIRECT")
        if truth:
            with opened(m / name) as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
                same_bytes(truth, view[:], 0, f"{name} by map")
        a, b = os.stat(source / name), os.stat(m / name)
        for field in ["st_size", "st_mtime_ns", "st_blocks", "st_ino"]:
            assert getattr(a, field) == getattr(b, field), (name, field)
    assert sorted(os.listdir(m.path)) == sorted(os.listdir(source))


def warm(m):
    for name in ["f", "g"]:
        direct(m / name, 0, SIZE), contents(m / name)
    m.settle()


def changed(folder, change):
    """{name: bytes} of a folder after the change, where the change was made to it plainly."""
    change(folder / "f")
    return {n: (folder / n).read_bytes() for n in os.listdir(folder)}


@pytest.mark.parametrize("change", CHANGES)
def test_change(work, hot, source, change):
    """Warm, change through the mount, and everybody agrees: at once, and while the cache is filled again."""
    run("cp", "-r", source, work / "plain")
    want = changed(work / "plain", change)
    with hot(source) as m:
        warm(m)
        change(m / "f")
        assert {n: (source / n).read_bytes() for n in os.listdir(source)} == want
        all_agree(m, source)
        trees.aged(source)
        for _ in ["fill", "hit"]:
            drop_caches()
            all_agree(m, source)
            m.settle()
        assert m.counters()["corrupt_bytes"] == 0


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_changes_then_an_end(work, hot, end):
    """All the changes, each to files of its own, and directly afterwards a restart or a kill -9."""
    top, names = work / "source", [c.__name__ for c in CHANGES]
    for name in names:
        trees.make_files(top / name, {"f": SIZE, "g": SIZE})
    trees.aged(top)
    run("cp", "-r", top, work / "plain")
    m = hot(top).start()
    for name in names:
        direct(m / name / "f", 0, SIZE), direct(m / name / "g", 0, SIZE)
    m.settle()
    for name, change in zip(names, CHANGES):
        change(m / name / "f")
    m.kill() if end == "kill" else m.stop()
    with m.start():
        for name, change in zip(names, CHANGES):
            want = changed(work / "plain" / name, change)
            assert {n: (top / name / n).read_bytes() for n in os.listdir(top / name)} == want, name
            for file, data in want.items():
                same_bytes(data, direct(m / name / file, 0, len(data) + 5000), 0, f"{name}/{file}")
                same_bytes(data, contents(m / name / file), 0, f"{name}/{file}")
        assert m.counters()["corrupt_bytes"] == 0


def test_writes_into_what_was_just_read_again(hot, source):
    """Read, write, read, at the same place, hundreds of times, also while admissions of it are still queued."""
    rng = random.Random(1)
    with hot(source) as m, opened(m / "f", os.O_RDWR) as fd:
        model = bytearray((source / "f").read_bytes())
        for i in range(400):
            off, length = rng.randrange(SIZE - 70_000), rng.randrange(1, 65_536)
            if rng.random() < 0.4:
                data = rng.randbytes(length)
                assert os.pwrite(fd, data, off) == length
                model[off:off + length] = data
            elif rng.random() < 0.5:
                assert os.pread(fd, length, off) == model[off:off + length], i
            else:
                assert direct(m / "f", off, length) == model[off:off + length], i
        assert contents(m / "f") == model == (source / "f").read_bytes()


def test_readers_beside_a_writer(hot, source):
    """A writer fills the file with one letter after another; a reader never sees a letter go back."""
    with hot(source) as m:
        warm(m)

        def writer():
            for letter in b"abcdefghijklmnop":
                with opened(m / "f", os.O_WRONLY) as fd:
                    os.pwrite(fd, bytes([letter]) * 65_536, 131_072)

        def reader():
            """The kernel may cut a write at a page, so a read may see two letters; but time runs forward."""
            last = b"a"
            while last != b"p":
                got = direct(m / "f", 131_072, 4096)
                if got[:1] in b"abcdefghijklmnop" and len(set(got)) == 1:
                    assert got[:1] >= last
                    last = got[:1]

        with opened(m / "f", os.O_WRONLY) as fd:
            os.pwrite(fd, b"a" * 65_536, 131_072)
        readers = [Child(reader) for _ in range(4)]
        writer()
        assert [r.result(30) for r in readers] == [None] * 4
        all_agree(m, source)


def test_unlink_while_open(hot, source):
    """The file goes on for whoever has it open: reads, writes, map, fstat."""
    truth = (source / "f").read_bytes()
    with hot(source) as m:
        warm(m)
        with opened(m / "f", os.O_RDWR) as fd:
            os.unlink(m / "f")
            assert not os.path.exists(source / "f")
            assert os.pread(fd, SIZE, 0) == truth
            os.pwrite(fd, b"ghost", 10)
            assert os.pread(fd, 20, 0) == truth[:10] + b"ghost" + truth[15:20]
            assert os.fstat(fd).st_nlink == 0
        assert os.listdir(m.path) == ["g"]


def test_new_files_and_folders(hot, source, work):
    """mkdir, create, symlink, link, rename, rmdir, chmod, utimes, xattrs, mknod: all of it is the source's."""
    with hot(source) as m:
        os.mkdir(m / "d", 0o750)
        trees.write(m / "d/file", b"x" * 100_000)
        os.symlink("file", m / "d/link")
        os.link(m / "d/file", m / "hard")
        os.mkfifo(m / "d/fifo")
        os.chmod(m / "hard", 0o604)
        os.setxattr(m / "hard", "user.a", b"b")
        os.utime(m / "hard", ns=(5, 1_234_567_890_123_456_789))
        os.rename(m / "d", m / "e")
        os.makedirs(m / "x/y/z")
        os.removedirs(m / "x/y/z")
        st = os.stat(source / "hard")
        assert (st.st_mode & 0o777, st.st_nlink, st.st_mtime_ns) == (0o604, 2, 1_234_567_890_123_456_789)
        assert os.getxattr(source / "e/file", "user.a") == b"b"
        assert os.readlink(source / "e/link") == "file" and (source / "e/link").read_bytes() == b"x" * 100_000
        assert os.stat(source / "e").st_mode & 0o777 == 0o750
        assert sorted(os.listdir(source)) == ["e", "f", "g", "hard"]
        run("diff", "-r", "--no-dereference", "-x", "fifo", source, m.path)


def test_a_cached_file_is_cut_only_where_it_was_written(hot, slow, source):
    """A write in the middle leaves the rest of the file in the cache."""
    with hot(source) as m:
        direct(m / "f", 0, SIZE)
        m.settle()
        write_small(m / "f")
        trees.aged(source)
        with m.counting() as c:
            assert direct(m / "f", 0, SIZE) == (source / "f").read_bytes()
        assert c["source_read_bytes"] <= 65_536
        assert c["hit_bytes"] >= SIZE - 65_536


def test_files_open_for_writing_are_not_admitted(hot, source):
    with hot(source) as m, opened(m / "f", os.O_RDWR):
        direct(m / "f", 0, SIZE)
        m.settle()
        assert m.counters()["admitted_bytes"] == 0


def test_locks_meet(hot, source):
    """flock and POSIX locks of two processes on one file of the mount exclude each other."""
    with hot(source) as m, opened(m / "f", os.O_RDWR) as fd:
        for lock, kind in [(fcntl.flock, fcntl.LOCK_EX), (fcntl.lockf, fcntl.LOCK_EX)]:
            lock(fd, kind)

            def other():
                with opened(m / "f", os.O_RDWR) as theirs:
                    try:
                        lock(theirs, kind | fcntl.LOCK_NB)
                    except OSError as e:
                        return e.errno
            assert Child(other).result(20) in (errno.EAGAIN, errno.EACCES)
            lock(fd, fcntl.LOCK_UN)
            assert Child(other).result(20) is None


def test_errors_are_the_sources(hot, source):
    """What cannot be done says why, as the plain directory would."""
    with hot(source) as m:
        os.mkdir(m / "d")
        trees.write(m / "d/x", b"x")
        for act, error in [(lambda p: os.rmdir(p / "d"), errno.ENOTEMPTY),
                           (lambda p: os.mkdir(p / "d"), errno.EEXIST),
                           (lambda p: os.unlink(p / "d"), errno.EISDIR),
                           (lambda p: os.rename(p / "d", p / "d/in"), errno.EINVAL),
                           (lambda p: os.unlink(p / "no"), errno.ENOENT),
                           (lambda p: os.open(p / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY), errno.EEXIST)]:
            codes = []
            for folder in [source, m.path]:
                with pytest.raises(OSError) as e:
                    act(folder)
                codes.append(e.value.errno)
            assert codes[1] == error == codes[0]


def test_source_disk_full(work, hot):
    """ENOSPC of the source reaches the writer, and nobody reads what was not written."""
    from harness import LoopDevice, Mount
    with LoopDevice(work / "a", "ext4", "32M") as disk:
        trees.write(disk / "f", trees.random_bytes("f", 1 << 20))
        trees.aged(disk)
        with Mount(disk, work / "mnt", work / "cache") as m:
            with pytest.raises(OSError) as e:
                with open(m / "big", "wb") as f:
                    for _ in range(64):
                        f.write(bytes(1 << 20))
                        f.flush()
                        os.fsync(f.fileno())
            assert e.value.errno == errno.ENOSPC
            same_bytes((disk / "big").read_bytes(), contents(m / "big"), 0, "big")


def test_killed_between_writes(hot, source):
    """kill -9 while a writer writes: what the source holds is the truth."""
    m = hot(source)
    for round_ in range(3):
        m.start()
        warm(m)

        def writer():
            rng = random.Random(round_)
            with opened(m / "f", os.O_RDWR) as fd:
                while True:
                    os.pwrite(fd, rng.randbytes(30_000), rng.randrange(SIZE - 30_000))
                    os.pread(fd, 30_000, rng.randrange(SIZE - 30_000))
        child = Child(writer)
        first = os.stat(source / "f").st_mtime_ns
        wait_until("something is written", lambda: os.stat(source / "f").st_mtime_ns != first)
        m.kill()
        child.kill()
    with m:
        all_agree(m, source)
        trees.aged(source)
        for _ in ["fill", "hit"]:
            drop_caches()
            all_agree(m, source)
            m.settle()
