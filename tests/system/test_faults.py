# SPDX-License-Identifier: Apache-2.0
"""The disk of the cache is full, the source fails or goes away: readers get right bytes, or the source's own error."""

import contextlib
import errno
import mmap
import os
import resource

import pytest

import trees
from children import Child, ChildFailed, wait_until
from harness import LoopDevice, Mount, drop_caches
from readers import Direct, contents, direct, opened, same_bytes

MIB = 1 << 20


def fill_disk(path):
    """Write until there is no room."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for step in [MIB, 4096]:
        try:
            while os.write(fd, trees.random_bytes(0, step)):
                os.fsync(fd)
        except OSError as e:
            assert e.errno == errno.ENOSPC
    os.close(fd)


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_full_disk(work, slow, one_file, fstype):
    """Somebody else fills the cache's disk: misses, right bytes, no error; and when there is room, it fills again."""
    truth = (one_file / "f").read_bytes()
    with LoopDevice(work / "a", fstype, {"ext4": "64M", "xfs": "300M", "btrfs": "128M"}[fstype]) as disk:
        with slow(one_file) as source, Mount(source.path, work / "mnt", disk / "cache", size="40M", reserve=0) as m:
            half = 8 * MIB
            assert direct(m / "f", 0, half) == truth[:half]
            m.settle()
            fill_disk(disk / "filler")
            for _ in range(2):
                assert direct(m / "f", 0, len(truth)) == truth
                m.settle()
            assert contents(m / "f") == truth
            m.restart()
            assert direct(m / "f", 0, len(truth)) == truth
            os.unlink(disk / "filler")
            os.sync()

            def all_hits():
                source.reset()
                same_bytes(truth, direct(m / "f", 0, len(truth)), 0, "f")
                m.settle()
                return source.read_bytes == 0
            wait_until("the cache fills again once there is room", all_hits, 30, 0.5)


def test_disk_out_of_inodes(work):
    """Out of inodes is like out of space."""
    source = trees.aged(trees.make_files(work / "source", {f"f{i}": 9000 for i in range(100)}))
    with LoopDevice(work / "a", "ext4", "64M", ["-N", "64"]) as disk:
        with Mount(source, work / "mnt", disk / "cache", size="40M", reserve=0) as m:
            for _ in range(2):
                for name in os.listdir(source):
                    assert direct(m / name, 0, 10_000) == (source / name).read_bytes()
                m.settle()
            assert m.status()["pid"] == m.pid


def test_cache_disk_turns_read_only(work, one_file):
    """As after an I/O error: what is cached may still be read, what is new is passed through."""
    from harness import run
    truth = (one_file / "f").read_bytes()
    with LoopDevice(work / "a", "ext4", "64M") as disk:
        with Mount(one_file, work / "mnt", disk / "cache", size="40M", reserve=0) as m:
            assert direct(m / "f", 0, 4 * MIB) == truth[:4 * MIB]
            m.settle()
            run("mount", "-o", "remount,ro,abort", disk, check=False)
            for _ in range(2):
                assert direct(m / "f", 0, len(truth)) == truth
                m.settle()


class TestFailingSource:
    @pytest.fixture
    def failing(self, hot, slow, work, one_file):
        """failing(): (mount, switch, truth).  The source's reads fail while the file `switch` exists; the first MiB is
        cached."""
        @contextlib.contextmanager
        def make():
            switch = work / "fail"
            with slow(one_file, fail=switch) as source, hot(source.path) as m:
                direct(m / "f", 0, MIB)
                m.settle()
                yield m, switch, (one_file / "f").read_bytes()
        return make

    @pytest.mark.parametrize("how", ["read", "direct"])
    def test_eio_reaches_the_reader_and_goes_away(self, failing, how):
        with failing() as (m, switch, truth):
            switch.touch()
            for _ in range(3):
                with opened(m / "f") as fd, pytest.raises(OSError) as e:
                    os.pread(fd, 10_000, 5 * MIB) if how == "read" else direct(m / "f", 5 * MIB, 10_000)
                assert e.value.errno == errno.EIO
            c = m.counters()
            assert c["source_errors"] > 0 and c["failed_reads"] > 0
            assert c["corrupt_bytes"] == 0
            switch.unlink()
            wait_until("right bytes once the source is back", lambda: attempt(m / "f", 5 * MIB) is not None)
            assert attempt(m / "f", 5 * MIB) == truth[5 * MIB:5 * MIB + 10_000]
            assert contents(m / "f") == truth

    def test_what_is_cached_is_served_meanwhile(self, failing):
        with failing() as (m, switch, truth):
            with Direct(m / "f") as d:
                switch.touch()
                for off in range(0, MIB, 100_000):
                    assert d.read(off, 48_576) == truth[off:off + 48_576]
            with Direct(m / "f") as d:
                assert d.read(0, MIB) == truth[:MIB]

    def test_a_read_that_is_half_there_fails_whole(self, failing):
        """A short reply would make the kernel believe that the file ends there."""
        with failing() as (m, switch, truth):
            with Direct(m / "f") as d:
                switch.touch()
                with pytest.raises(OSError) as e:
                    d.read(MIB - 65_536, 131_072)
                assert e.value.errno == errno.EIO
                switch.unlink()
            assert os.stat(m / "f").st_size == len(truth)
            wait_until("source back", lambda: attempt(m / "f", MIB - 5000) is not None)
            assert contents(m / "f") == truth

    def test_a_map_gets_sigbus_and_the_daemon_lives(self, failing):
        with failing() as (m, switch, truth):
            switch.touch()

            def touch():
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                with opened(m / "f") as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
                    return view[9 * MIB]
            with pytest.raises(ChildFailed, match="ended without an answer"):
                Child(touch).result(20)
            assert m.status()["pid"] == m.pid
            switch.unlink()
            wait_until("source back", lambda: attempt(m / "f", 9 * MIB) is not None)
            drop_caches()
            assert contents(m / "f") == truth

    def test_all_who_joined_get_the_error(self, failing):
        with failing() as (m, switch, truth):
            switch.touch()
            children = [Child(lambda: attempt(m / "f", 7 * MIB)) for _ in range(8)]
            assert [c.result(20) for c in children] == [None] * 8
            switch.unlink()
            wait_until("source back", lambda: attempt(m / "f", 7 * MIB) is not None)


def attempt(path, off, length=10_000):
    """The bytes, or None on EIO."""
    try:
        return direct(path, off, length)
    except OSError as e:
        assert e.errno == errno.EIO
        return None


def test_source_gone_and_back(hot, slow, one_file):
    """The source's daemon is killed and its mount is dead: an errno, no hang, and a clean end of ours."""
    truth = (one_file / "f").read_bytes()
    with slow(one_file) as source, hot(source.path) as m:
        assert direct(m / "f", 0, MIB) == truth[:MIB]
        m.settle()
        with Direct(m / "f") as d:
            source.kill()
            assert d.read(0, MIB) == truth[:MIB], "what is cached needs no source"
            with pytest.raises(OSError):
                d.read(9 * MIB, 10_000)
        for act in [lambda: contents(m / "f"), lambda: os.listdir(m.path)]:
            try:
                act()
            except OSError:
                pass
        assert m.status()["pid"] == m.pid
