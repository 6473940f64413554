# SPDX-License-Identifier: Apache-2.0
"""Appending through the mount while somebody appends behind it: nothing that anybody wrote is lost."""

import fcntl
import os

import pytest

import trees
from children import barrier, parallel
from harness import drop_caches, run
from readers import contents, opened, same_bytes

SIZE = 300_001


def wrong(m, source, names):
    return [n for n in names if contents(m / n) != (source / n).read_bytes()]


def append(path, data):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        assert os.write(fd, data) == len(data)


def opened_to_append(path, how):
    """A descriptor that appends."""
    if how != "set later":
        return os.open(path, os.O_WRONLY | os.O_APPEND | {"direct": os.O_DIRECT, "sync": os.O_SYNC}.get(how, 0))
    fd = os.open(path, os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


HOW = ["plain", "direct", "sync", "set later"]


def test_appending_keeps_what_was_appended_behind(hot, work):
    """Two append to a log, one through the mount and one behind it: every line is there, in order, and read."""
    source = trees.make_files(work / "source", {"log": 0})
    with hot(source) as m, opened(m / "log", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"the first\n")
        append(source / "log", b"from behind the mount\n")
        trees.aged(source)
        os.write(fd, b"the last\n")
        assert (source / "log").read_bytes() == b"the first\nfrom behind the mount\nthe last\n"
        assert not wrong(m, source, ["log"])


def test_every_way_to_append(hot, work):
    """However the descriptor came to append, and whatever was cached of the file: it appends, and all of it is read."""
    names = {how: how.replace(" ", "-") for how in HOW}
    source = trees.aged(trees.make_files(work / "source", {n: SIZE for n in names.values()}))
    want = {n: trees.random_bytes(n, SIZE) for n in names.values()}
    with hot(source) as m:
        assert not wrong(m, source, want)
        m.settle()
        fds = {n: opened_to_append(m / n, how) for how, n in names.items()}
        held = {n: os.open(m / n, os.O_RDONLY) for n in want}
        for data in [b"a line\n", bytes(range(256)) * 20, trees.random_bytes("large", 3_000_001)]:
            for n, fd in fds.items():
                append(source / n, b"from behind\n" * 700)
                assert os.pwrite(fd, data, 10) == len(data)
                want[n] += b"from behind\n" * 700 + data
                same_bytes(want[n], (source / n).read_bytes(), 0, f"source/{n}")
                same_bytes(want[n], contents(m / n), 0, n)
                same_bytes(want[n], os.pread(held[n], len(want[n]) + 1, 0), 0, f"{n} by who has it open")
        for fd in [*fds.values(), *held.values()]:
            os.close(fd)
        trees.aged(source)
        for _ in ["fill", "hit"]:
            drop_caches()
            assert not wrong(m, source, want)
            m.settle()
        m.restart()
        assert not wrong(m, source, want)


def test_appending_can_be_ended(hot, source):
    """Without O_APPEND, taken from the open descriptor, a write lands where it says."""
    want = bytearray((source / "f").read_bytes())
    with hot(source) as m, opened(m / "f", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"at the end")
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
        os.pwrite(fd, b"in the middle", 5000)
        want[5000:5013] = b"in the middle"
        same_bytes(bytes(want + b"at the end"), (source / "f").read_bytes(), 0, "source/f")
        assert not wrong(m, source, ["f"])


def test_many_append_at_once(hot, work):
    """Records of several writers through the mount and two behind it: each is there once, whole, and nothing else."""
    source = trees.make_files(work / "source", {"log": 0})
    writers = [(True, how) for how in HOW] + [(False, "plain")] * 2

    def record(who, i):
        length = (who + 1) * 997 * i % 5000
        return b"%02d %04d %04d " % (who, i, length) + b"%c" % (65 + who) * length + b"\n"
    with hot(source) as m:
        gate = barrier(len(writers))

        def write(who):
            through, how = writers[who]
            fd = opened_to_append((m.path if through else source) / "log", how)
            gate.wait(20)
            for i in range(200):
                assert os.write(fd, record(who, i)) == len(record(who, i))
        parallel([lambda who=who: write(who) for who in range(len(writers))], 40)
        lines = (source / "log").read_bytes().split(b"\n")[:-1]
        found = {who: [line for line in lines if line[:3] == b"%02d " % who] for who in range(len(writers))}
        missing = {who: sum(record(who, i)[:-1] not in found[who] for i in range(200)) for who in found}
        assert not any(missing.values()), f"records missing, by writer (the last two are behind the mount): {missing}"
        assert len(lines) == 200 * len(writers)
        assert not wrong(m, source, ["log"])


def test_a_file_for_appending_only(hot, work):
    """chattr +a: it is appended to through the mount as well, and nothing else is done to it."""
    source = trees.make_files(work / "source", {"log": 10_000})
    want = (source / "log").read_bytes()
    run("chattr", "+a", source / "log")
    try:
        with hot(source) as m:
            for how in ["plain", "direct", "sync"]:
                fd = opened_to_append(m / "log", how)
                append(source / "log", b"from behind\n")
                os.write(fd, b"a line\n")
                os.close(fd)
                want += b"from behind\na line\n"
            same_bytes(want, (source / "log").read_bytes(), 0, "source/log")
            assert not wrong(m, source, ["log"])
            for act in [lambda: os.truncate(m / "log", 5), lambda: os.open(m / "log", os.O_WRONLY),
                        lambda: os.unlink(m / "log")]:
                with pytest.raises(PermissionError):
                    act()
    finally:
        run("chattr", "-a", source / "log")
