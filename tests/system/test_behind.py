# SPDX-License-Identifier: Apache-2.0
"""Somebody writes to the source behind the mount at the moment when somebody writes through it, or by a shared map."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
import time

import pytest

import trees
from children import LIBC, Child, wait_until, where
from harness import LoopDevice, drop_caches
from readers import contents, direct, opened

KIB = 1 << 10
SIZE = 300_001


def stale(m, source, names, look=contents):
    return [n for n in names if look(m / n) != (source / n).read_bytes()]


def later(m, source, names):
    """Names of files that are read wrongly as soon as they are trusted again, with the kernel's pages and without."""
    trees.aged(source)
    found = stale(m, source, names)
    drop_caches()
    return found + stale(m, source, names)


# ---- a write through the mount and one behind it, at once ------------------------------------------------------------

def flush(view):
    """msync without Python's lock, which view.flush() keeps."""
    start = ctypes.c_char.from_buffer(view)
    assert LIBC.msync(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(view)), 4) == 0
    del start


class Thread(threading.Thread):
    """A thread whose failure is seen by who waits for it."""

    def __init__(self, work, *args):
        super().__init__(daemon=True)
        self.work, self.args, self.error = work, args, None
        self.start()

    def run(self):
        try:
            self.work(*self.args)
        except BaseException as e:
            self.error = e

    def end(self):
        self.join(20)
        assert not self.is_alive(), "it hangs"
        if self.error:
            raise self.error


def overlap(m, source, name):
    """128 KiB are written through the mount over and over; meanwhile 4 KiB elsewhere in the source."""
    count, enough = [0], threading.Event()

    def write():
        with opened(m / name, os.O_WRONLY) as fd:
            while not enough.is_set():
                os.pwrite(fd, bytes(128 * KIB), 0)
                count[0] += 1
    writer = Thread(write)
    wait_until("it is being written", lambda: count[0] or not writer.is_alive(), interval=0.0002)
    with opened(source / name, os.O_WRONLY) as fd:
        os.pwrite(fd, b"behind the mount" * 256, 130 * KIB)
    enough.set()
    writer.end()


def test_a_write_through_the_mount_hides_none_behind_it(hot, work):
    """Two writers to different places of a file, one of them behind the mount: 1,500 times, both are read."""
    names = [f"f{i}" for i in range(1500)]
    source = trees.aged(trees.make_files(work / "source", {n: 136 * KIB for n in names}))
    with hot(source, size="512M") as m:
        assert not stale(m, source, names)
        m.settle()
        for name in names:
            overlap(m, source, name)
        wrong = {"at once": len(stale(m, source, names[::2])), "later": len(later(m, source, names))}
        assert not any(wrong.values()), wrong


def through_pwrite(fd, path):
    os.pwrite(fd, bytes(128 * KIB), 0)


def through_append(fd, path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"appended")


def through_truncate(fd, path):
    os.ftruncate(fd, 290_000)


def through_growth(fd, path):
    os.truncate(path, 310_000)


def fallocate(fd, mode, off, length):
    if LIBC.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def through_punch(fd, path):
    fallocate(fd, 3, 0, 64 * KIB)


def through_preallocation(fd, path):
    fallocate(fd, 1, 310_000, 90_000)


def through_copy(fd, path):
    with opened(path.with_name("other")) as other:
        os.copy_file_range(other, fd, 64 * KIB, 0, 0)


def through_map(fd, path):
    with mmap.mmap(fd, 64 * KIB) as view:
        view[:5] = b"store"
        flush(view)


def through_chmod(fd, path):
    os.chmod(path, 0o600)


def through_rename(fd, path):
    os.rename(path, path.with_name("renamed"))


def through_link(fd, path):
    os.link(path, path.with_name("link"))


def through_unlink(fd, path):
    os.unlink(path.with_name("second"))


def through_xattr(fd, path):
    os.setxattr(path, "user.x", b"y")


CONTENT = [through_pwrite, through_append, through_truncate, through_growth, through_punch, through_preallocation,
           through_copy, through_map]
ATTRIBUTES = [through_chmod, through_rename, through_link, through_unlink, through_xattr]
EACH = 4


FIFREEZE, FITHAW = 0xC0045877, 0xC0045878


def thaw(folder_fd):
    """By ioctl: a command would be forked, and closing our files in the fork waits for what waits for the thaw."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(folder_fd, FITHAW, 0)


@contextlib.contextmanager
def frozen(folder):
    """Every write to the file system waits for the end of the block, which comes although we may hang in it."""
    with opened(folder) as fd:
        guard = Child(lambda: time.sleep(10) or thaw(fd))
        fcntl.ioctl(fd, FIFREEZE, 0)
        try:
            yield
        finally:
            thaw(fd)
            guard.kill()


def waiting_threads(pid):
    return where(pid).count("] D ")


def write_behind(fd, restore_time):
    """First where it may be: the change through the mount has begun then, and ends afterwards."""
    st = os.fstat(fd)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.pwrite(fd, b"behind the mount" * 256, 200_000)
    if restore_time:
        os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns))


def all_at_once(m, source, folders, change, restore_time):
    """In each folder two writes to `f`, that end together: one behind the mount and `change` through it."""
    threads = []
    with contextlib.ExitStack() as open_files:
        behind = [open_files.enter_context(opened(source / n / "f", os.O_WRONLY)) for n in folders]
        above = [open_files.enter_context(opened(m / n / "f", os.O_RDWR)) for n in folders]
        with frozen(source):
            threads += [Thread(write_behind, fd, restore_time) for fd in behind]
            wait_until("the writers behind wait", lambda: waiting_threads(os.getpid()) >= len(folders))
            threads += [Thread(change, fd, m / n / "f") for fd, n in zip(above, folders)]
            wait_until("the daemon waits", lambda: waiting_threads(m.pid) >= len(folders))
        for t in threads:
            t.end()


@pytest.mark.parametrize("changes, restore_time", [(CONTENT, False), (ATTRIBUTES, True)], ids=["content", "attributes"])
def test_no_change_through_the_mount_hides_a_write_behind_it(hot, work, changes, restore_time):
    """Whatever is done to a file through the mount while somebody writes to it behind, even restoring its mtime."""
    folders = {c: [f"{c.__name__}-{i}" for i in range(EACH)] for c in changes}
    with LoopDevice(work / "a", "ext4", "512M") as source:
        os.rmdir(source / "lost+found")
        for name in sum(folders.values(), []):
            trees.make_files(source / name, {"f": SIZE, "other": SIZE})
            os.link(source / name / "f", source / name / "second")
        trees.aged(source)

        def files():
            return sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())
        with hot(source, attr_timeout=0) as m:
            assert not stale(m, source, files())
            m.settle()
            for change, names in folders.items():
                all_at_once(m, source, names, change, restore_time)
            wrong = stale(m, source, files()) + later(m, source, files())
            assert not wrong, "stale: " + " ".join(sorted({n.split("-")[0] for n in wrong}))


# ---- stores through a shared map of the source -----------------------------------------------------------------------

class Mapped:
    """A file of the source, mapped writable by somebody who stores into it now and then."""

    def __init__(self, path):
        with opened(path, os.O_RDWR) as fd:
            self.path, self.view = path, mmap.mmap(fd, 0)

    def store(self, text):
        self.view[100_000:100_000 + len(text)] = text


def by_direct(path):
    return direct(path, 0, SIZE + 1)


def test_a_second_store_to_a_mapped_page_is_read(hot, work):
    """Stored behind the mount, read through it, and stored once more into the page that is dirty already."""
    source = trees.make_files(work / "source", {"f": SIZE})
    one = Mapped(source / "f")
    one.store(b"first")
    trees.aged(source)
    with hot(source) as m:
        assert not stale(m, source, ["f"])
        m.settle()
        one.store(b"second")
        assert not stale(m, source, ["f"])
        one.view.flush()
        assert not stale(m, source, ["f"])


@pytest.mark.parametrize("mode", ["prod", "off"])
def test_stores_through_a_map_behind_the_mount(hot, work, mode):
    """On each file system and by each look, each new open reads what has been stored, and after a remount too."""
    source, wrong = work / "source", []
    with LoopDevice(source / "x", "xfs", "512M") as xfs, LoopDevice(source / "b", "btrfs", "512M") as btrfs:
        names = {}
        for fstype, top in {"xfs": xfs, "btrfs": btrfs, "ext4": source / "plain"}.items():
            trees.make_files(top, {how: SIZE for how in ["read", "direct", "flushed"]})
            names.update({f"{fstype} {how}": top.relative_to(source) / how for how in ["read", "direct", "flushed"]})
        maps = {n: Mapped(source / path) for n, path in names.items()}

        def look(when):
            for name in maps:
                seen = (by_direct if name.endswith("direct") else contents)(m / names[name])
                wrong.extend([f"{name} {when}"] if seen != (source / names[name]).read_bytes() else [])
        with hot(source, mode=mode) as m:
            for round_ in ["first", "second"]:
                for name, one in maps.items():
                    one.store(round_.encode())
                    one.view.flush() if name.endswith("flushed") else None
                look(f"at the {round_} store")
                trees.aged(*map(source.joinpath, names.values()))
                look(f"after the {round_} store")
                m.settle() if mode == "prod" else None
            m.stop()
            for one in maps.values():
                one.store(b"nobody there")
            m.start()
            look("after a remount")
            for one in maps.values():
                one.view.close()
        assert not wrong, "\n".join(wrong)
