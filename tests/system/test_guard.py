# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed while a thread of it waits in the kernel for a page which only the daemon could fill."""

import os
import signal

import pytest

import trees
from children import Child, is_running, wait_gone, wait_until, where
from harness import drop_caches, mounts_at, run
from readers import opened

MIB = 1 << 20


def quietly(look):
    """An error is an answer here."""
    try:
        look()
    except OSError as e:
        return e.errno
    return 0


@pytest.fixture
def waiting(hot, slow, work):
    """A mount of which a reader waits for the source, and a thread of the daemon for that reader's page."""
    class Waiting:
        folder = trees.make_files(work / "behind", {"f": 8 * MIB})
        source = slow(folder, hold=work / "hold", hold_glob="f")

        def __enter__(self):
            self.source.__enter__()
            self.m = hot(self.source.path, attr_timeout=0).start()
            with opened(self.m / "f") as fd:
                os.pread(fd, 4096, 4 * MIB)
            (work / "hold").touch()
            self.children = [Child(lambda: quietly(lambda: os.pread(os.open(self.m / "f", os.O_RDONLY), 4096, 0)))]
            wait_until("a read is held", lambda: self.source.stats()["held_now"] >= 1)
            os.utime(self.folder / "f")
            self.children += [Child(lambda: quietly(lambda: os.stat(self.m / "f")))]
            wait_until("the daemon waits in the kernel", lambda: "folio_lock" in where(self.m.pid))
            return self

        def __exit__(self, *how):
            (work / "hold").unlink(missing_ok=True)
            for c in self.children:
                c.kill(10)
            self.m.destroy()
            run("umount", "-l", self.source.path)
            self.source.process.wait(20)
    return Waiting()


def test_killed_while_it_waits_in_the_kernel(waiting):
    """It is gone, whoever was inside gets an error, and nothing on the machine waits for it."""
    with waiting as w:
        os.kill(w.m.pid, signal.SIGKILL)
        wait_gone(w.m.pid, 10)
        assert [c.result(10) for c in w.children] != [0, 0]
        Child(drop_caches).result(20)
        assert Child(lambda: quietly(lambda: os.stat(w.m.path))).result(10) != 0
        run("umount", "-l", w.m.path)
        assert not mounts_at(w.m.path)


def test_ended_while_it_waits_in_the_kernel(waiting):
    with waiting as w:
        os.kill(w.m.pid, signal.SIGTERM)
        wait_gone(w.m.pid, 6)
        assert not mounts_at(w.m.path)


def test_a_waiting_stat_can_be_killed(waiting):
    with waiting as w:
        w.children[1].kill(10)
        assert is_running(w.m.pid)


def test_no_guard_stays_behind(hot, source):
    """One guard a daemon; it ends with it."""
    def guards():
        found = run("pgrep", "-x", "hotset-guard", check=False).stdout.split()
        return [pid for pid in found if is_running(int(pid))]
    before = guards()
    m = hot(source).start()
    assert len(guards()) == len(before) + 1
    m.stop()
    assert guards() == before
    m.start().kill()
    wait_until("it has ended", lambda: guards() == before)
