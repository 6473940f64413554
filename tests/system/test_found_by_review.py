# SPDX-License-Identifier: Apache-2.0
"""What a close reading of the code found once, each made to happen."""

import os
import socket
import subprocess
import time

import pytest

from children import wait_gone
from harness import HOTSET, hotset, mounts_at
from readers import Direct, direct

KIB, MIB = 1 << 10, 1 << 20


def test_a_range_in_shreds_heals(hot, slow, one_file):
    """4 KiB of every 8 first, as a gather of embedding rows does; then the loader comes."""
    truth = (one_file / "f").read_bytes()
    with slow(one_file) as source, hot(source.path) as m:
        with Direct(m / "f") as d:
            for off in range(0, 4 * MIB, 8 * KIB):
                d.read(off, 4 * KIB)
        m.settle()
        for _ in range(4):
            assert direct(m / "f", 0, 4 * MIB) == truth[:4 * MIB]
            m.settle()
        source.reset()
        assert direct(m / "f", 0, 4 * MIB) == truth[:4 * MIB]
        assert source.read_bytes == 0


def test_unaligned_megabytes_hit_when_they_repeat(hot, slow, one_file):
    """Each spans one block more than a mebibyte, and the neighbour has its edge already."""
    truth = (one_file / "f").read_bytes()
    with slow(one_file) as source, hot(source.path) as m, open(m / "f", "rb", buffering=0) as f:
        for _ in range(2):
            for i in range(8):
                off = 512 + i * MIB
                with Direct(m / "f") as d:
                    assert d.read(off, MIB) == truth[off:off + MIB]
                m.settle()
        with m.counting() as c, Direct(m / "f") as d:
            for i in range(8):
                d.read(512 + i * MIB, MIB)
        assert c["misses"] == c["partials"] == 0 and c["hits"] > 0
        assert f.read(1) == truth[:1]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_closed_standard_streams(work, one_file, closed):
    """A file of ours must not become descriptor 0, 1 or 2, which the daemon points elsewhere."""
    (work / "mnt").mkdir()
    command = f"exec '{HOTSET}' mount '{one_file}' '{work}/mnt' -o cache='{work}/cache',size=64M {closed}"
    assert subprocess.run(["bash", "-c", command], timeout=30).returncode == 0
    assert direct(work / "mnt/f", 0, 100_000) == (one_file / "f").read_bytes()[:100_000]
    pid = int(subprocess.run([HOTSET, "status", work / "mnt", "--json"], timeout=10, capture_output=True,
                             text=True).stdout.split('"pid":')[1].split(",")[0])
    subprocess.run(["umount", work / "mnt"], timeout=10, check=True)
    wait_gone(pid)


def test_a_client_that_dawdles_holds_nobody_up(hot, one_file):
    """One byte now and then on the control socket: status still answers, and umount ends the daemon."""
    m = hot(one_file).start()
    minor = os.minor(os.stat(m.path).st_dev)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"/run/hotset/{minor}.sock")
        s.send(b"{")
        begin = time.monotonic()
        assert hotset("status", m.path).returncode == 0
        assert time.monotonic() - begin < 10
        s2 = socket.socket(socket.AF_UNIX)
        s2.connect(f"/run/hotset/{minor}.sock")
        s2.send(b"{")
        m.stop()
        s2.close()
    assert not mounts_at(m.path)


@pytest.mark.deadline(90)
def test_killed_between_punch_and_index(hot, big_files):
    """verify=off trusts presence; what an index claims may have been punched since it was written."""
    truth = (big_files / "f0").read_bytes()[:52 * MIB]
    m = hot(big_files, size="40M", policy="lru", verify="off")
    for _ in range(3):
        m.start()
        direct(m / "f0", 0, 24 * MIB)
        time.sleep(1.6)
        direct(m / "f0", 24 * MIB, 28 * MIB)
        m.kill()
    with m:
        assert direct(m / "f0", 0, 52 * MIB) == truth


def test_a_time_restored_behind_a_chmod(hot, source):
    """Written behind the mount, then chmod through it: the chmod must not vouch for the content."""
    with hot(source) as m:
        direct(m / "f", 0, MIB)
        m.settle()
        with open(source / "f", "r+b") as f:
            f.write(b"written behind")
        os.chmod(m / "f", 0o600)
        assert direct(m / "f", 0, MIB) == (source / "f").read_bytes()[:MIB]
