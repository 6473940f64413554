# SPDX-License-Identifier: Apache-2.0
"""Many readers, one source read per byte; and nobody waits for a lock while the source is read."""

import hashlib
import mmap
import os
import random

import pytest

from children import Child, ChildFailed, barrier, parallel, wait_until
from harness import hotset
from readers import Direct, direct, opened

MIB = 1 << 20


def digest(path, step=MIB):
    """The whole file by O_DIRECT, from front to back."""
    seen, off = hashlib.sha256(), 0
    with Direct(path) as d:
        while part := d.read(off, step):
            seen.update(part)
            off += len(part)
    return seen.hexdigest()


def test_sixteen_processes_cost_one_read_of_the_source(hot, slow, one_file):
    """All from one barrier.  The source takes some milliseconds per read, so that the readers do meet."""
    size = os.stat(one_file / "f").st_size
    with slow(one_file, latency_ms=5) as source, hot(source.path) as m:
        together = barrier(16)

        def reader():
            together.wait(30)
            return digest(m / "f")

        got = parallel([reader] * 16, 60)
        assert set(got) == {hashlib.sha256((one_file / "f").read_bytes()).hexdigest()}
        assert source.read_bytes == size
        c = m.counters()
        assert c["joined_bytes"] > 0
        assert c["read_bytes"] == 16 * size == c["hit_bytes"] + c["joined_bytes"] + c["miss_bytes"]
        assert c["miss_bytes"] == size


def test_overlapping_readers_share_too(hot, slow, one_file):
    """Readers with different steps: what one has asked for, the others join in part."""
    size = os.stat(one_file / "f").st_size
    with slow(one_file, latency_ms=5) as source, hot(source.path) as m:
        together = barrier(8)

        def reader(step):
            together.wait(30)
            return digest(m / "f", step)

        got = parallel([lambda s=s: reader(s) for s in [MIB, MIB // 2, 700_000, 64_000] * 2], 80)
        assert set(got) == {hashlib.sha256((one_file / "f").read_bytes()).hexdigest()}
        # Two pieces of a read that end inside one 4 KiB block may both fetch that block.
        assert size <= source.read_bytes <= 1.01 * size


@pytest.fixture
def two_files(sources):
    import trees
    folder = sources / "two"
    if not folder.exists():
        trees.aged(trees.make_files(folder, {"warm": 4 * MIB, "held": 8 * MIB}))
    return folder


@pytest.fixture
def held(hot, slow, work, two_files):
    """A mount whose source keeps every read of `held` waiting while the file work/hold exists; `warm` is cached."""
    class Held:
        hold = work / "hold"
        source = slow(two_files, hold=hold, hold_glob="held")
        truth = {n: (two_files / n).read_bytes() for n in ["warm", "held"]}

        def __enter__(self):
            self.source.__enter__()
            self.m = hot(self.source.path).__enter__()
            direct(self.m / "warm", 0, 4 * MIB)
            self.m.settle()
            self.hold.touch()
            self.source.reset()
            return self

        def reader(self, off, length=128 * 1024):
            """A child that reads from `held` and says whether the bytes were right."""
            return Child(lambda: direct(self.m / "held", off, length) == self.truth["held"][off:off + length])

        def stuck(self, offsets):
            """Readers that are waiting for the source when this returns."""
            children = [self.reader(off) for off in offsets]
            wait_until("the reads are held at the source", lambda: held_reads(self.source) >= len(offsets))
            return children

        def __exit__(self, *how):
            self.hold.unlink(missing_ok=True)
            self.m.__exit__(*how)
            self.source.__exit__(*how)
    return Held()


def held_reads(source):
    """Reads that wait at the source now."""
    return source.stats()["held_now"]


def thousand_hits(m, truth, seed):
    rng = random.Random(seed)
    with Direct(m / "warm") as d:
        for _ in range(1000 // 8):
            off = rng.randrange(len(truth) - 70_000)
            assert d.read(off, 65_536) == truth[off:off + 65_536]


def test_hits_and_status_go_on_while_a_source_read_is_held(held):
    with held:
        children = held.stuck([0])
        with held.m.counting() as c:
            parallel([lambda i=i: thousand_hits(held.m, held.truth["warm"], i) for i in range(8)], 40)
        assert c["hits"] == c["reads"] >= 1000
        assert "hit" in hotset("status", held.m.path, timeout=10).stdout
        assert os.listdir(held.m.path) and os.stat(held.m / "held").st_size == 8 * MIB
        assert not children[0].is_done(), "the held read came back: nothing was held"
        held.hold.unlink()
        assert children[0].result(20)


def test_fifty_held_reads_do_not_starve_hits(held):
    """More than the kernel's default of 12 background requests, and more than any pool of workers."""
    with held:
        children = held.stuck([i * 131_072 for i in range(50)])
        with held.m.counting() as c:
            parallel([lambda i=i: thousand_hits(held.m, held.truth["warm"], i) for i in range(8)], 40)
        assert c["hits"] == c["reads"] >= 1000
        assert held.m.status()["pid"] == held.m.pid
        held.hold.unlink()
        assert all(c.result(20) for c in children)


def test_buffered_held_reads_do_not_starve_hits(held):
    """Readahead of a held file occupies background requests; other files' pages still come."""
    with held:
        readers = [Child(lambda i=i: os.pread(os.open(held.m / "held", os.O_RDONLY), 4096, i * MIB)) for i in range(8)]
        wait_until("reads held", lambda: held_reads(held.source) >= 8)
        parallel([lambda i=i: thousand_hits(held.m, held.truth["warm"], i) for i in range(4)], 40)
        held.hold.unlink()
        assert [r.result(20) for r in readers] == [held.truth["held"][i * MIB:i * MIB + 4096] for i in range(8)]


@pytest.mark.parametrize("how", ["direct", "buffered", "map"])
def test_a_held_reader_can_be_killed(held, how):
    """SIGKILL ends it while the source still waits, and the bytes that come later are of use to the next reader."""
    def read():
        if how == "direct":
            return direct(held.m / "held", 0, 131_072)
        with opened(held.m / "held") as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            return os.pread(fd, 131_072, 0) if how == "buffered" else view[:131_072]

    with held:
        other = held.stuck([4 * MIB])[0]
        victim = Child(read)
        wait_until("both are held", lambda: held_reads(held.source) >= 2)
        victim.kill(10)
        assert not other.is_done()
        held.hold.unlink()
        assert other.result(20)
        assert direct(held.m / "held", 0, 131_072) == held.truth["held"][:131_072]


def test_a_joined_reader_can_be_killed(held):
    """Two wait for one source read.  Either may be killed; the other gets its bytes."""
    with held:
        for victim_first in [True, False]:
            off = (3 + victim_first) * MIB
            first = held.stuck([off])[0]
            with held.m.counting() as c:
                second = held.reader(off)
                wait_until("the second reader waits", lambda: not second.is_done() and in_read(second.pid))
                victim, other = (first, second) if victim_first else (second, first)
                victim.kill(10)
                held.hold.unlink()
                assert other.result(20)
                held.hold.touch()
            assert c["source_read_bytes"] <= 131_072
            wait_until("nothing is held", lambda: held_reads(held.source) == 0)


def in_read(pid):
    """The process sleeps in a FUSE request."""
    with open(f"/proc/{pid}/stack") as f:
        return "fuse" in f.read()


def test_unmount_while_a_read_is_held_is_refused_not_hung(held):
    from harness import run
    with held:
        child = held.stuck([0])[0]
        assert run("umount", held.m.path, check=False, timeout=20).returncode != 0
        held.hold.unlink()
        assert child.result(20)


def test_sigterm_while_a_read_is_held(held):
    """The daemon ends although the source does not answer, and the reader gets an error rather than a hang."""
    with held:
        child = held.stuck([0])[0]
        held.m.term()
        with pytest.raises(ChildFailed, match="OSError|ConnectionAbortedError"):
            child.result(20)
        held.hold.unlink()
        held.m.start()
