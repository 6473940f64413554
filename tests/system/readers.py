# SPDX-License-Identifier: Apache-2.0
"""Every way a program reads a file, each compared with the source byte by byte.

A check is called as check(reading), where `reading` knows the source file (the truth), the file on the mount, its
size, which windows of it to look at, and a seeded random generator.  It raises AssertionError naming the first byte
that differs.
"""

import errno
import mmap
import os
import random
import socket

MIB = 1 << 20
WHOLE = 64 * MIB
"""Files up to this size are read whole, larger ones (which are mostly holes) in windows around what is in them."""


class Reading:
    def __init__(self, source, mounted, seed=0):
        self.source, self.mounted = source, mounted
        self.truth = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
        self.size = os.fstat(self.truth).st_size
        self.random = random.Random(f"{seed}{mounted}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.truth)

    def windows(self):
        """(offset, length) of what to look at, in order."""
        if self.size <= WHOLE:
            return [(0, self.size)]
        found, pos = [], 0
        while len(found) < 20:
            try:
                pos = os.lseek(self.truth, pos, os.SEEK_DATA)
                end = os.lseek(self.truth, pos, os.SEEK_HOLE)
            except OSError:
                break
            start = max(0, pos - 10_001)
            found.append((start, min(end + 10_001, self.size, start + 4 * MIB) - start))
            pos = end
        return found + [(self.size - 5001, 5001)]

    def spots(self, n):
        """Random (offset, length), unaligned, of all magnitudes, some reaching over the end of the file."""
        for _ in range(n):
            start, length = self.random.choice(self.windows())
            off = start + self.random.randint(0, length + 2)
            yield off, int(2 ** self.random.uniform(0, 21))

    def same(self, off, got, length=None, how=""):
        """`got` is what the file holds at `off` (to its end, if `length` reaches over it)."""
        want = os.pread(self.truth, len(got) if length is None else length, off)
        same_bytes(want, got, off, f"{self.mounted} by {how}")


def same_bytes(want, got, off, what):
    if want == got:
        return
    assert len(want) == len(got), f"{what}: {len(got)} bytes at {off}, the source has {len(want)}"
    first = next(i for i in range(len(want)) if want[i] != got[i])
    wrong = sum(a != b for a, b in zip(want, got))
    raise AssertionError(f"{what}: byte {off + first} differs (and {wrong - 1} more of {len(want)} read at {off}); "
                         f"source {want[first:first + 16].hex()} got {bytes(got[first:first + 16]).hex()}")


def read_all(fd, off, length, step):
    """read(2) until there is nothing more, in steps."""
    os.lseek(fd, off, os.SEEK_SET)
    parts = []
    while length > 0:
        part = os.read(fd, min(step, length))
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def by_read(r):
    with opened(r.mounted) as fd:
        for off, length in r.windows():
            r.same(off, read_all(fd, off, length + 1, 300_007), length + 1, "read")


def by_pread(r):
    with opened(r.mounted) as fd:
        for off, length in r.spots(40):
            r.same(off, os.pread(fd, length, off), length, "pread")


def by_mmap(r, flags, how):
    if r.size == 0:
        return
    with opened(r.mounted) as fd, mmap.mmap(fd, r.size, flags, mmap.PROT_READ) as m:
        for off, length in r.windows():
            r.same(off, m[off:off + length], length, how)
        for off, length in r.spots(10):
            r.same(off, m[off:off + length], length, how)


def by_mmap_shared(r):
    by_mmap(r, mmap.MAP_SHARED, "shared map")


def by_mmap_private(r):
    by_mmap(r, mmap.MAP_PRIVATE, "private map")


def by_mmap_private_written(r):
    """A private map may be written; the file must not see it."""
    if r.size == 0:
        return
    with opened(r.mounted) as fd, mmap.mmap(fd, r.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as m:
        for off, _ in r.spots(5):
            if off < r.size:
                m[off] ^= 0xFF
    by_mmap_private(r)


def by_direct_aligned(r):
    with Direct(r.mounted) as d:
        for off, length in r.windows():
            start = off // 4096 * 4096
            end = -(-(off + length) // 4096) * 4096
            r.same(start, d.read(start, end - start), end - start, "aligned O_DIRECT")


def by_direct_unaligned(r):
    """FUSE takes O_DIRECT at any offset, length and address."""
    with Direct(r.mounted) as d:
        for off, length in r.spots(20):
            r.same(off, d.read(off, length, misaligned=r.random.randrange(4096)), length, "unaligned O_DIRECT")


def by_sendfile(r):
    with opened(r.mounted) as fd, opened_memory() as out:
        for off, length in list(r.spots(5)) + r.windows():
            os.ftruncate(out, 0)
            os.lseek(out, 0, os.SEEK_SET)
            done = 0
            while done < length and (n := os.sendfile(out, fd, off + done, length - done)):
                done += n
            r.same(off, os.pread(out, done, 0), length, "sendfile")


def by_sendfile_to_socket(r):
    """As a web server does it: the pages go by reference."""
    a, b = socket.socketpair()
    with a, b, opened(r.mounted) as fd:
        for off, length in r.spots(5):
            n = os.sendfile(a.fileno(), fd, off, min(length, 50_000))
            got = b.recv(n, socket.MSG_WAITALL) if n else b""
            r.same(off, got, min(length, 50_000) if n == 0 else n, "sendfile to a socket")


def by_splice(r):
    out, into = os.pipe()
    with opened(r.mounted) as fd:
        for off, length in list(r.spots(5)) + r.windows():
            parts, done = [], 0
            while done < length and (n := os.splice(fd, into, min(length - done, 65536), offset_src=off + done)):
                got = b""
                while len(got) < n:
                    got += os.read(out, n - len(got))
                parts.append(got)
                done += n
            r.same(off, b"".join(parts), length, "splice")
    os.close(out), os.close(into)


def by_seek(r):
    """Data and holes are where the source has them."""
    with opened(r.mounted) as fd:
        assert data_ranges(fd) == data_ranges(r.truth), f"{r.mounted}: SEEK_DATA/SEEK_HOLE"
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            for off in (r.size, r.size + 1):
                assert seek_error(fd, off, whence) == seek_error(r.truth, off, whence) == errno.ENXIO
        assert os.lseek(fd, 0, os.SEEK_END) == r.size


def data_ranges(fd):
    found, pos = [], 0
    while len(found) < 1000:
        try:
            start = os.lseek(fd, pos, os.SEEK_DATA)
        except OSError as e:
            assert e.errno == errno.ENXIO
            break
        pos = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, pos))
    return found


def seek_error(fd, off, whence):
    try:
        os.lseek(fd, off, whence)
    except OSError as e:
        return e.errno
    return 0


ALL = [by_read, by_pread, by_mmap_shared, by_mmap_private, by_mmap_private_written, by_direct_aligned,
       by_direct_unaligned, by_sendfile, by_sendfile_to_socket, by_splice, by_seek]
THROUGH_DAEMON = [by_read, by_pread, by_mmap_shared, by_direct_aligned, by_direct_unaligned]


class opened:
    """A descriptor for the length of a with block."""

    def __init__(self, path, flags=os.O_RDONLY):
        self.fd = os.open(path, flags)

    def __enter__(self):
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


class opened_memory(opened):
    def __init__(self):
        self.fd = os.memfd_create("copy")


class Direct:
    """O_DIRECT reads: each reaches the daemon, none is answered by the page cache or widened by readahead."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.buffer = b""

    def read(self, off, length, misaligned=0):
        """pread(2) into a buffer that begins `misaligned` bytes after a page boundary, continued while short."""
        if len(self.buffer) < length + misaligned:
            self.buffer = mmap.mmap(-1, length + misaligned)
        view = memoryview(self.buffer)[misaligned:misaligned + length]
        done = 0
        while done < length:
            n = os.preadv(self.fd, [view[done:]], off + done)
            if n == 0:
                break
            done += n
        return bytes(view[:done])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


def direct(path, off, length, misaligned=0):
    """One O_DIRECT read of a file opened for it."""
    with Direct(path) as d:
        return d.read(off, length, misaligned)


def contents(path):
    """The whole file by plain read(2)."""
    with opened(path) as fd:
        return read_all(fd, 0, 1 << 62, MIB)


def compare_tree(source, mounted, checks, files, seed=0):
    """Every check on every file (bytes paths relative to both trees)."""
    for name in files:
        with Reading(os.path.join(os.fsencode(source), name), os.path.join(os.fsencode(mounted), name), seed) as r:
            for check in checks:
                check(r)
