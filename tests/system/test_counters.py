# SPDX-License-Identifier: Apache-2.0
"""What the counters say, against a source that counts by itself.

Reads are O_DIRECT, so that the daemon sees exactly what was asked for, and small enough (128 KiB) to be one request,
where one request matters.
"""

import os
import random

import pytest

from harness import drop_caches
from readers import Direct, direct, same_bytes

KIB = 1024
BLOCK = 4096


@pytest.fixture
def truth(one_file):
    return (one_file / "f").read_bytes()


def check(m, truth, off, length, misaligned=0):
    same_bytes(truth[off:off + length], direct(m / "f", off, length, misaligned), off, "O_DIRECT")


def holds(c):
    """What is always true of the counters, or of a difference of two of them."""
    assert c["reads"] == c["hits"] + c["partials"] + c["misses"]
    assert c["read_bytes"] == c["hit_bytes"] + c["joined_bytes"] + c["miss_bytes"]


def test_every_read_is_one_of_hit_miss_partial(hot, slow, one_file, truth):
    """A thousand reads of all kinds; the sums hold after each hundred, and all requested bytes are counted once."""
    rng = random.Random(1)
    with slow(one_file) as source, hot(source.path) as m, Direct(m / "f") as d:
        for _ in range(10):
            asked = 0
            with m.counting() as c:
                for _ in range(100):
                    off, length = rng.randrange(len(truth)), int(2 ** rng.uniform(0, 20))
                    got = d.read(off, length, rng.randrange(BLOCK))
                    same_bytes(truth[off:off + length], got, off, "O_DIRECT")
                    asked += len(got)
            holds(c)
            assert c["read_bytes"] == asked
            assert c["reads"] >= 100
        total = m.counters()
        holds(total)
        assert min(total["hits"], total["partials"], total["misses"]) > 0
        assert total["source_read_bytes"] == source.read_bytes


def test_buffered_reads_and_maps_are_counted_too(hot, one_file):
    """Readahead and page faults reach the daemon as reads like any other."""
    with hot(one_file) as m:
        with open(m / "f", "rb") as f:
            f.read()
        m.settle()
        c = m.counters()
        holds(c)
        assert c["read_bytes"] == os.stat(m / "f").st_size
        assert c["hit_bytes"] == 0 and c["miss_bytes"] == c["read_bytes"]
        drop_caches()
        with m.counting() as c, open(m / "f", "rb") as f:
            f.read()
        holds(c)
        assert c["hit_bytes"] == c["read_bytes"] and c["misses"] == c["partials"] == 0


@pytest.mark.parametrize("off,length", [(0, 128 * KIB), (1_000_003, 100_001), (4095, 2), (8192, 4096), (16 << 20, 777),
                                        ((16 << 20) - 5000, 5777)])
def test_first_a_miss_then_full_hits_whatever_the_buffer(hot, slow, one_file, truth, off, length):
    """The kernel splits a request by the pages of the caller's buffer, so the second time it may look different."""
    with slow(one_file) as source, hot(source.path) as m:
        with m.counting() as c:
            check(m, truth, off, length)
        assert c["misses"] == c["reads"] > 0 and c["miss_bytes"] == length
        m.settle()
        source.reset()
        for misaligned in [0, 1, 8, 512, 2048, 4095]:
            with m.counting() as c:
                check(m, truth, off, length, misaligned)
            assert c["hits"] == c["reads"] > 0, f"buffer at {misaligned}"
            assert c["hit_bytes"] == c["read_bytes"] == length
        assert source.read_bytes == 0


def test_large_reads_hit_whatever_the_buffer(hot, slow, one_file, truth):
    """Several requests of at most 1 MiB; with an unaligned buffer the cuts between them move."""
    off, length = 12_345, 5 << 20
    with slow(one_file) as source, hot(source.path) as m:
        check(m, truth, off, length)
        m.settle()
        source.reset()
        for misaligned in [0, 1, 100, 4095]:
            with m.counting() as c:
                check(m, truth, off, length, misaligned)
            assert c["hit_bytes"] == c["read_bytes"] == length and c["misses"] == c["partials"] == 0
        assert source.read_bytes == 0


def test_another_length_at_the_same_offset(hot, one_file, truth):
    with hot(one_file) as m:
        for length in [70_000, 10, 4096, 69_999, 70_001, 131_072, 1, 300_000, 5]:
            check(m, truth, 1_234_567, length)
            m.settle()
        for length in [300_000, 299_999, 1]:
            with m.counting() as c:
                check(m, truth, 1_234_567, length)
            assert c["hit_bytes"] == length


def test_overlapping_ranges_reuse_what_is_present(hot, slow, one_file, truth):
    """Present in the front, at the back, on both sides, in the middle; and a hole between two."""
    with slow(one_file) as source, hot(source.path) as m:
        def partial(off, length, present):
            m.settle()
            source.reset()
            with m.counting() as c:
                check(m, truth, off, length)
            assert (c["partials"], c["hits"], c["misses"]) == (1, 0, 0)
            assert c["hit_bytes"] == present
            assert c["miss_bytes"] == source.read_bytes == length - present

        check(m, truth, 0, 64 * KIB)
        partial(0, 128 * KIB, 64 * KIB)                       # the front
        check(m, truth, 1088 * KIB, 64 * KIB)
        partial(1024 * KIB, 128 * KIB, 64 * KIB)              # the back
        check(m, truth, 2048 * KIB, 32 * KIB)
        check(m, truth, 2144 * KIB, 32 * KIB)
        partial(2048 * KIB, 128 * KIB, 64 * KIB)              # both sides
        check(m, truth, 3104 * KIB, 64 * KIB)
        partial(3072 * KIB, 128 * KIB, 64 * KIB)              # the middle
        m.settle()
        for off in [0, 1024, 2048, 3072]:
            with m.counting() as c:
                check(m, truth, off * KIB, 128 * KIB)
            assert c["hits"] == c["reads"] and c["hit_bytes"] == 128 * KIB


@pytest.mark.parametrize("off,length", [(1000, 4000), (4096, 1), (4095, 2), (5 << 20, 250_992),
                                        ((5 << 20) + 17, 250_992)])
def test_a_miss_is_aligned_outward_to_4_kib_and_no_further(hot, slow, one_file, truth, off, length):
    outward = -(-(off + length) // BLOCK) * BLOCK - off // BLOCK * BLOCK
    with slow(one_file) as source, hot(source.path) as m:
        with m.counting() as c:
            check(m, truth, off, length)
        m.settle()
        assert length <= source.read_bytes <= outward
        assert m.counters()["admitted_bytes"] <= outward
        assert c["read_bytes"] == c["miss_bytes"] == length


def test_the_tail_of_a_file(hot, slow, one_file, truth):
    """The last block is less than 4 KiB; it is cached like any other, and nothing is invented behind it."""
    with slow(one_file) as source, hot(source.path) as m:
        tail = (16 << 20) - 100
        for length in [877, 878, 5000, 100_000]:
            check(m, truth, tail, length)
            m.settle()
        source.reset()
        with m.counting() as c:
            check(m, truth, tail, 100_000)
        assert c["hit_bytes"] == 877 and source.read_bytes == 0
        with m.counting() as c:
            assert direct(m / "f", len(truth), 4096) == b""
            assert direct(m / "f", len(truth) + (1 << 30), 4096) == b""
        assert c["reads"] == 0


def test_two_names_of_one_file_share_its_bytes(hot, slow, odd_tree):
    with slow(odd_tree) as source, hot(source.path) as m:
        want = (odd_tree / "links/first").read_bytes()
        assert direct(m / "links/first", 0, 200_000) == want
        m.settle()
        source.reset()
        assert direct(m / "links/sub/second", 0, 200_000) == want
        assert direct(m / "third", 0, 200_000) == want
        assert direct(m / "links/to-file", 0, 200_000) == want
        # A source without stable inode numbers may see three files; this one hands on those of the disk below.
        assert m.status()["files"] >= 1


def test_hard_links_on_a_disk_are_one_mirror(hot, odd_tree):
    with hot(odd_tree) as m:
        for name in ["links/first", "links/sub/second", "third"]:
            with m.counting() as c:
                direct(m / name, 0, 123_456)
            m.settle()
        assert c["hit_bytes"] == c["read_bytes"] == 123_456
        assert m.status()["files"] == 1


def test_bytes_are_counted_on_both_devices(hot, one_file, truth):
    with hot(one_file) as m:
        check(m, truth, 0, 1 << 20)
        m.settle()
        c = m.counters()
        assert c["source_read_bytes"] == c["admitted_bytes"] == 1 << 20
        assert c["mirror_write_bytes"] >= 1 << 20 and c["mirror_read_bytes"] == 0
        check(m, truth, 0, 1 << 20)
        c = m.counters()
        assert c["source_read_bytes"] == 1 << 20 and c["mirror_read_bytes"] >= 1 << 20


def test_min_size_include_exclude(hot, work, one_file):
    """What is not to be cached is passed through, and counted apart."""
    import trees
    source = trees.aged(trees.make_files(work / "source", {"small": 65_535, "large": 65_536, "large.bin": 70_000}))
    with hot(source, min_size="64K", exclude="*.bin") as m:
        for name in ["small", "large", "large.bin"]:
            for _ in range(2):
                assert direct(m / name, 0, 100_000) == (source / name).read_bytes()
                m.settle()
        c = m.counters()
        assert c["admitted_bytes"] == c["hit_bytes"] == 65_536
        assert c["bypass_bytes"] == 2 * 65_535 + 2 * 70_000 and c["bypass_reads"] == 4
        assert c["read_bytes"] == 2 * 65_536
