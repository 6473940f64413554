# SPDX-License-Identifier: Apache-2.0
"""Begin and end: umount, SIGTERM, restart, crash; and nothing of anybody else's is taken away."""

import contextlib
import os
import signal
import subprocess
import time

import pytest

from children import is_running, wait_gone, wait_until
from harness import HOTSET, Mount, cache_bytes, hotset, mounts_at, mounts_below, run
from readers import Direct, contents, direct


def read_through(m, folder):
    """Every file of a flat folder by O_DIRECT, compared."""
    for name in os.listdir(folder):
        assert direct(m / name, 0, 64 << 20) == (folder / name).read_bytes()


@pytest.mark.parametrize("end", ["umount", "SIGTERM", "SIGINT", "fusermount3"])
def test_after_a_clean_end_everything_hits(hot, slow, one_file, end):
    """Ends of all polite kinds keep the cache: the next mount reads no byte of the source."""
    with slow(one_file) as source:
        m = hot(source.path).start()
        read_through(m, one_file)
        m.settle()
        if end == "fusermount3":
            run("fusermount3", "-u", m.path)
        elif end == "umount":
            run("umount", m.path)
        else:
            os.kill(m.pid, getattr(signal, end))
        wait_gone(m.pid)
        assert not mounts_at(m.path)
        source.reset()
        with m.start():
            read_through(m, one_file)
            c = m.counters()
            assert source.read_bytes == c["source_read_bytes"] == 0
            assert c["hits"] == c["reads"] > 0 and c["hit_bytes"] == os.stat(one_file / "f").st_size
            m.pid = m.status()["pid"]


def test_what_was_just_read_survives_a_clean_end_without_waiting(hot, slow, one_file):
    """The queue is written out at the end, or what it dropped is counted: nothing is lost silently."""
    with slow(one_file) as source:
        with hot(source.path) as m:
            read_through(m, one_file)
        source.reset()
        with m:
            read_through(m, one_file)
            assert source.read_bytes <= os.stat(one_file / "f").st_size // 4


def test_after_a_crash_bytes_are_right_and_most_is_still_there(hot, slow, one_file):
    with slow(one_file) as source:
        m = hot(source.path).start()
        read_through(m, one_file)
        m.settle()
        time.sleep(2)                       # the index is written behind, in batches
        m.kill()
        source.reset()
        with m:
            read_through(m, one_file)
            assert m.counters()["corrupt_bytes"] == 0
            assert source.read_bytes <= os.stat(one_file / "f").st_size // 4, "a crash emptied the cache"


def test_remount_waits_for_the_previous_daemon(hot, one_file):
    """umount returns before the daemon has let go of the cache directory: the next mount waits for the lock."""
    m = hot(one_file).start()
    for _ in range(5):
        old = m.pid
        read_through(m, one_file)
        run("umount", m.path)
        m.start()
        wait_gone(old)
    m.stop()


def test_lazy_umount_with_an_open_file(hot, one_file):
    """The tree is gone at once, the open file goes on until it is closed, and then the daemon ends."""
    m = hot(one_file).start()
    with Direct(m / "f") as d:
        run("umount", "-l", m.path)
        assert not mounts_at(m.path)
        assert d.read(0, 100_000) == (one_file / "f").read_bytes()[:100_000]
        assert is_running(m.pid)
    wait_gone(m.pid)


def test_sigterm_with_an_open_file(hot, one_file):
    """The mount point is free again; what the reader holds ends with an error, not with wrong bytes or a hang."""
    m = hot(one_file).start()
    with Direct(m / "f") as d:
        m.term()
        assert not mounts_at(m.path)
        with contextlib.suppress(OSError):
            assert d.read(0, 100_000) == (one_file / "f").read_bytes()[:100_000]


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_the_mount_below_stays(hot, work, kind):
    """hotset over a mount, taken away lazily with a reader inside, then SIGTERM: unmounting by path would now take
    the mount below."""
    below = work / "mnt"
    below.mkdir()
    (work / "real").mkdir()
    run(*(["mount", "-t", "tmpfs", "-o", "size=16M", "none", below] if kind == "tmpfs"
          else ["mount", "--bind", work / "real", below]))
    (below / "f").write_bytes(b"below" * 30_000)
    m = hot(below).start()
    with Direct(m / "f") as d:
        run("umount", "-l", m.path)
        assert len(mounts_at(below)) == 1
        os.kill(m.pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            d.read(0, 100)
    wait_gone(m.pid)
    assert len(mounts_at(below)) == 1, "the mount below was taken away"
    assert contents(below / "f") == b"below" * 30_000
    run("umount", below)


def test_another_mount_on_top_stays(hot, work, one_file):
    """Somebody mounts over us; our end takes only our own mount, or nothing."""
    m = hot(one_file).start()
    run("mount", "-t", "tmpfs", "-o", "size=1M", "none", m.path)
    (m / "theirs").write_bytes(b"x")
    os.kill(m.pid, signal.SIGTERM)
    wait_gone(m.pid)
    assert mounts_at(m.path)[-1]["fstype"] == "tmpfs"
    assert (m / "theirs").read_bytes() == b"x"
    run("umount", m.path)
    for _ in mounts_at(m.path):
        run("umount", "-l", m.path)


def test_a_newer_hotset_at_the_same_place_stays(work, one_file, odd_tree):
    """The old mount was taken away lazily and lives on for a reader; its end must not take its successor."""
    old = Mount(one_file, work / "mnt", work / "old").start()
    with Direct(old / "f") as d:
        run("umount", "-l", old.path)
        with Mount(odd_tree, work / "mnt", work / "new") as new:
            os.kill(old.pid, signal.SIGTERM)
            with contextlib.suppress(OSError):
                d.read(0, 100)
            wait_gone(old.pid)
            assert len(mounts_at(new.path)) == 1
            assert contents(new / "size-4097") == (odd_tree / "size-4097").read_bytes()


def test_the_command_does_not_keep_the_callers_pipe(hot, one_file):
    """out=$(hotset mount ...) must return: the daemon lets go of stdout and stderr, and of every other descriptor."""
    m = hot(one_file)
    m.path.mkdir(), m.cache.mkdir()
    r, w = os.pipe()
    done = subprocess.run([HOTSET, *m.argv()], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, pass_fds=[w])
    assert done.returncode == 0
    m.pid = m.status()["pid"]
    held = [os.readlink(f"/proc/{m.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{m.pid}/fd")]
    assert os.readlink(f"/proc/self/fd/{w}") not in held
    assert os.readlink(f"/proc/{m.pid}/cwd") == "/"
    os.close(r), os.close(w)
    m.stop()


def test_it_answers_when_the_command_returns(hot, work, one_file):
    """No window in which the mount point still shows what is below, or a request fails."""
    m = hot(one_file)
    for _ in range(10):
        m.start()
        assert os.listdir(m.path) == ["f"]
        m.stop()
        assert os.listdir(m.path) == []


def test_foreground(hot, one_file):
    """-f: the daemon is the process that was started, and a signal ends it with status 0."""
    m = hot(one_file)
    m.path.mkdir(), m.cache.mkdir()
    process = subprocess.Popen([HOTSET, *m.argv(), "-f"], stdin=subprocess.DEVNULL)
    wait_until("mounted", lambda: mounts_at(m.path))
    assert contents(m / "f") == (one_file / "f").read_bytes()
    assert m.status()["pid"] == process.pid
    process.terminate()
    assert process.wait(20) == 0
    assert not mounts_at(m.path)


def test_mount_point_with_an_odd_name(work, one_file):
    """mountinfo escapes spaces, newlines and backslashes."""
    with Mount(one_file, work / "m n\tt\\x", work / "cache") as m:
        assert contents(m / "f") == (one_file / "f").read_bytes()
        assert m.status()["mountpoint"] == str(m.path)


def test_two_mounts_side_by_side(work, one_file, odd_tree):
    with Mount(one_file, work / "a", work / "ca") as a, Mount(odd_tree, work / "b", work / "cb") as b:
        assert a.status()["pid"] != b.status()["pid"]
        a.stop()
        assert contents(b / "size-4097") == (odd_tree / "size-4097").read_bytes()
        a.start()


def test_nothing_is_written_outside_the_cache(work, hot, one_file):
    """The source folder and the mount point stay as they are."""
    before = sorted(os.listdir(one_file)), os.stat(one_file).st_mtime_ns
    with hot(one_file) as m:
        read_through(m, one_file)
    assert (sorted(os.listdir(one_file)), os.stat(one_file).st_mtime_ns) == before
    assert os.listdir(m.path) == []
    assert cache_bytes(m.cache) > 16 << 20


def test_cache_files_are_private(hot, one_file):
    """Cached bytes are as secret as the source: 0700 folders, 0600 files."""
    with hot(one_file) as m:
        read_through(m, one_file)
        m.settle()
        for folder, _, files in os.walk(m.cache):
            if folder != str(m.cache):
                assert os.stat(folder).st_mode & 0o777 == 0o700, folder
            for name in files:
                assert os.stat(os.path.join(folder, name)).st_mode & 0o177 == 0, name


def test_reader_survives_nothing_but_sees_an_error_after_a_crash(hot, one_file):
    """kill -9 under a reader: an error at once, no hang."""
    m = hot(one_file).start()
    with Direct(m / "f") as d:
        d.read(0, 4096)
        os.kill(m.pid, signal.SIGKILL)
        wait_gone(m.pid)
        with pytest.raises(OSError):
            d.read(8 << 20, 4096)
    run("umount", "-l", m.path)
    assert hotset("status", "--json").returncode == 0
    assert not mounts_below(m.path)
