# SPDX-License-Identifier: Apache-2.0
"""The cache directory never takes more than `size`, whatever is read; and what does not fit is declined and counted."""

import os
import random
import signal

import pytest

import trees
from children import Child, parallel
from harness import LoopDevice, Mount, cache_bytes, mirrors
from readers import Direct, direct, same_bytes

MIB = 1 << 20


def storm(m, source, names, size, reads, seed):
    """One reader: random reads of random lengths all over the files, compared."""
    rng = random.Random(seed)
    for _ in range(reads):
        name = rng.choice(names)
        off, length = rng.randrange(size - MIB), int(2 ** rng.uniform(12, 20))
        with open(source / name, "rb") as f:
            f.seek(off)
            want = f.read(length)
        same_bytes(want, direct(m / name, off, length), off, name)


def sampled(m, functions, timeout):
    """Run the functions at once; the largest the cache directory and `used_bytes` were meanwhile."""
    children = [Child(f) for f in functions]
    most, claimed, samples = 0, 0, 0
    try:
        while not all(c.is_done() for c in children):
            most = max(most, cache_bytes(m.cache))
            if samples % 20 == 0:
                claimed = max(claimed, m.status()["used_bytes"])
            samples += 1
        for c in children:
            c.result(timeout)
    finally:
        for c in children:
            c.is_running() and os.kill(c.pid, signal.SIGKILL)
    assert samples > 3, "the storm ended before anybody looked"
    return most, claimed


@pytest.mark.deadline(150)
@pytest.mark.parametrize("policy", ["lru", "hotness"])
def test_storm_of_32_readers_on_ten_times_the_cache(hot, big_files, policy):
    names = sorted(os.listdir(big_files))
    with hot(big_files, size="64M", policy=policy) as m:
        readers = [lambda i=i: storm(m, big_files, names, 64 * MIB, 120, i) for i in range(32)]
        most, claimed = sampled(m, readers, 120)
        assert 32 * MIB < most <= 64 * MIB, f"{most} bytes in the cache directory"
        assert claimed <= 64 * MIB
        m.settle()
        c = m.counters()
        assert c["evicted_bytes"] > 0 and c["corrupt_bytes"] == c["cache_errors"] == 0
        assert c["reads"] == c["hits"] + c["partials"] + c["misses"]
        assert c["read_bytes"] == c["hit_bytes"] + c["joined_bytes"] + c["miss_bytes"]
        m.restart()
        assert cache_bytes(m.cache) <= 64 * MIB
        storm(m, big_files, names, 64 * MIB, 100, 99)
        m.settle()
        assert cache_bytes(m.cache) <= 64 * MIB


@pytest.mark.deadline(120)
@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
def test_storm_on_other_file_systems(work, big_files, fstype):
    """xfs allocates ahead of a growing file; on btrfs a punched part of an extent may stay allocated."""
    names = sorted(os.listdir(big_files))
    with LoopDevice(work / "a", fstype, "400M") as disk:
        with Mount(big_files, work / "mnt", disk / "cache", size="32M", policy="lru", reserve=0) as m:
            empty = os.statvfs(disk)
            readers = [lambda i=i: storm(m, big_files, names, 64 * MIB, 60, i) for i in range(8)]
            most, claimed = sampled(m, readers, 100)
            assert 8 * MIB < most <= 32 * MIB and claimed <= 32 * MIB
            m.settle()
            os.sync()
            full = os.statvfs(disk)
            assert (empty.f_bfree - full.f_bfree) * full.f_frsize <= 40 * MIB, "the disk lost more than the budget"


@pytest.mark.deadline(120)
def test_many_small_files(hot, work):
    """Each mirror and sidecar takes whole blocks, each folder too: 3,000 files of 5 KB do not fit into 16 MiB, although
    their bytes do."""
    source = trees.aged(trees.make_files(work / "source", {f"f{i}": 5000 for i in range(3000)}))
    with hot(source, size="16M", policy="lru") as m:
        def reader(part):
            for i in range(part, 3000, 4):
                assert direct(m / f"f{i}", 0, 8192) == (source / f"f{i}").read_bytes()
        most, claimed = sampled(m, [lambda p=p: reader(p) for p in range(4)], 100)
        assert most <= 16 * MIB and claimed <= 16 * MIB
        m.settle()
        assert cache_bytes(m.cache) <= 16 * MIB
        assert m.counters()["evicted_bytes"] > 0


def test_a_range_larger_than_the_cache_is_declined(hot, one_file):
    """1 MiB reads against a cache of 1 MiB, of which the index and the checksums take their part."""
    truth = (one_file / "f").read_bytes()
    with hot(one_file, size="1M") as m:
        for _ in range(3):
            for off in range(0, 8 * MIB, MIB):
                same_bytes(truth[off:off + MIB], direct(m / "f", off, MIB), off, "f")
            m.settle()
            assert cache_bytes(m.cache) <= MIB
        c = m.counters()
        assert c["declined_bytes"] >= 8 * MIB
        assert c["evicted_bytes"] == 0, "something was thrown out for a range that can never fit"


def test_size_zero_passes_through_and_writes_nothing(hot, slow, one_file):
    size = os.stat(one_file / "f").st_size
    with slow(one_file) as source, hot(source.path, size=0) as m:
        for round_ in [1, 2]:
            assert direct(m / "f", 0, size) == (one_file / "f").read_bytes()
            m.settle()
            assert source.read_bytes == round_ * size
        c = m.counters()
        assert c["admitted_bytes"] == c["mirror_write_bytes"] == c["hit_bytes"] == 0
        assert mirrors(m.cache) == []
        files = [os.path.join(d, n) for d, _, names in os.walk(m.cache) for n in names]
        assert sum(os.stat(f).st_blocks for f in files) == 0, files


def test_a_smaller_size_at_the_next_mount(hot, big_files):
    """What is there already is cut down before anything is served."""
    with hot(big_files, size="64M", policy="lru") as m:
        direct(m / "f0", 0, 50 * MIB)
        m.settle()
        m.restart(size="16M")
        m.settle()
        assert cache_bytes(m.cache) <= 16 * MIB
        assert direct(m / "f0", 0, 50 * MIB) == (big_files / "f0").read_bytes()[:50 * MIB]


def test_the_reserve_is_left_free(work, one_file):
    """A disk of 64 MiB of which 40 MiB are to stay free."""
    with LoopDevice(work / "a", "ext4", "64M") as disk:
        with Mount(one_file, work / "mnt", disk / "cache", size="64M", reserve="40M", policy="lru") as m:
            with Direct(m / "f") as d:
                for off in range(0, 16 * MIB, MIB):
                    d.read(off, MIB)
            m.settle()
            os.sync()
            free = os.statvfs(disk)
            assert free.f_bavail * free.f_frsize >= 40 * MIB
            assert m.counters()["admitted_bytes"] > 0


def test_everything_fits_then_everything_hits(hot, slow, one_file):
    """The budget is not merely kept by caching little: data of three quarters of `size` is kept whole."""
    size = os.stat(one_file / "f").st_size
    with slow(one_file) as source, hot(source.path, size="22M") as m:
        direct(m / "f", 0, size)
        m.settle()
        source.reset()
        direct(m / "f", 0, size)
        assert source.read_bytes == 0
        assert cache_bytes(m.cache) <= 22 * MIB


@pytest.mark.deadline(120)
@pytest.mark.parametrize("verify", ["always", "off"])
def test_killed_in_the_storm(hot, big_files, verify):
    """After kill -9 the index may know less than the disk holds, or more: what was punched last.  The budget counts
    what is there, and even verify=off gives right bytes."""
    names = sorted(os.listdir(big_files))
    m = hot(big_files, size="32M", policy="lru", verify=verify)
    for round_ in range(3):
        m.start()
        parallel([lambda i=i: storm(m, big_files, names, 64 * MIB, 40, f"{round_}{i}") for i in range(4)], 60)
        m.kill()
        assert cache_bytes(m.cache) <= 32 * MIB
    with m:
        storm(m, big_files, names, 64 * MIB, 60, "last")
        m.settle()
        assert cache_bytes(m.cache) <= 32 * MIB
        assert m.status()["used_bytes"] <= 32 * MIB
