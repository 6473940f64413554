# SPDX-License-Identifier: Apache-2.0
"""The daemon's memory is bounded: nothing grows with what is read."""

import os
import random

import pytest

from children import parallel, wait_until
from readers import Direct

MIB = 1 << 20
BOUND = 256 * MIB
"""As README and hotset(8) state it, for the default of 16 million known ranges and any number of readers."""


def peak(pid):
    """The most resident memory that the process ever had."""
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.deadline(150)
def test_reading_ten_times_the_bound(hot, big_files):
    """2.6 GB by 32 readers through a cache of 64 MiB: misses, hits, admissions and evictions all the time."""
    names = sorted(os.listdir(big_files))
    with hot(big_files, size="64M", policy="lru") as m:
        def reader(seed):
            name, start = names[seed % len(names)], seed * 3 * MIB
            with Direct(m / name) as d:
                done = 0
                while done < 84 * MIB:
                    done += len(d.read((start + done) % (64 * MIB), MIB)) or MIB
        parallel([lambda i=i: reader(i) for i in range(32)], 140)
        assert m.counters()["read_bytes"] >= 10 * BOUND
        assert peak(m.pid) <= BOUND


@pytest.mark.deadline(150)
def test_many_small_ranges(hot, big_files):
    """Ranges that never repeat and never touch each other: 100,000 of 512 bytes to 4 KiB."""
    names = sorted(os.listdir(big_files))
    with hot(big_files, size="64M") as m:
        def reader(part):
            rng = random.Random(part)
            with Direct(m / names[part]) as d:
                for _ in range(12_500):
                    d.read(rng.randrange(64 * MIB - 4096), rng.choice([512, 1000, 4096]))
        parallel([lambda p=p: reader(p) for p in range(8)], 140)
        assert peak(m.pid) <= BOUND


def test_many_open_files_and_names(hot, odd_tree):
    """2,500 names looked up and forgotten, 500 files open at once."""
    with hot(odd_tree) as m:
        for _ in range(3):
            for name in os.listdir(m / "wide"):
                os.stat(m / "wide" / name)
        fds = [os.open(m / "size-65537", os.O_RDONLY) for _ in range(500)]
        assert all(os.pread(fd, 10, 100) for fd in fds)
        for fd in fds:
            os.close(fd)
        assert peak(m.pid) <= BOUND
        # RELEASE comes behind close().
        wait_until("descriptors are closed", lambda: len(os.listdir(f"/proc/{m.pid}/fd")) < 200)
