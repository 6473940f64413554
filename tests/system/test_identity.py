# SPDX-License-Identifier: Apache-2.0
"""The mount has the source's bytes: every odd file, every way to read, in every state of the cache."""

import os

import pytest

import readers
import trees
from children import parallel
from harness import LoopDevice, Mount, drop_caches


def compare(m, source, checks=readers.ALL, seed=0):
    readers.compare_tree(source, m.path, checks, trees.regular_files(source), seed)


def warm_up(m, source):
    """Read every file once, so that all of it is in the cache; then forget the pages that the kernel kept."""
    compare(m, source, [readers.by_read], seed="warm up")
    m.settle()
    drop_caches()


@pytest.mark.deadline(150)
@pytest.mark.parametrize("verify", ["always", "first", "off"])
def test_every_way_to_read_in_every_state(work, odd_tree, verify):
    with Mount(odd_tree, work / "mnt", work / "cache", verify=verify) as m:
        compare(m, odd_tree, seed="cold")
        warm_up(m, odd_tree)
        with m.counting() as c:
            compare(m, odd_tree, seed="warm")
        assert c["hit_bytes"] > 4 << 20 and c["corrupt_bytes"] == 0, "the warm pass did not read the cache"

        m.restart()
        with m.counting() as c:
            compare(m, odd_tree, seed="restarted")
        assert c["hit_bytes"] > 4 << 20 and c["corrupt_bytes"] == 0, "the restarted mount did not read the cache"

        m.kill()
        m.start()
        compare(m, odd_tree, seed="after a crash")
        assert m.counters()["corrupt_bytes"] == 0


@pytest.mark.deadline(120)
def test_killed_while_it_fills(work, odd_tree):
    """kill -9 in the middle of admissions: what the index, the mirrors and the sidecars then say may disagree."""
    m = Mount(odd_tree, work / "mnt", work / "cache")
    for round_ in range(4):
        m.start()
        files = trees.regular_files(odd_tree)
        readers.compare_tree(odd_tree, m.path, [readers.by_direct_unaligned], files[round_ * 7:], seed=round_)
        m.kill()
    with m:
        compare(m, odd_tree, seed="after four crashes")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("state", ["cold", "warm"])
def test_sixteen_readers(work, odd_tree, state):
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        if state == "warm":
            warm_up(m, odd_tree)
        parallel([lambda i=i: compare(m, odd_tree, readers.THROUGH_DAEMON, seed=i) for i in range(16)], 100)


@pytest.mark.deadline(120)
def test_with_everything_on_as_a_user_mounts_it(work, odd_tree):
    """No option but the cache: promotion, the contest of policies and the default least size."""
    m = Mount(odd_tree, work / "mnt", work / "cache")
    m.options = {}
    with m:
        for state in ["cold", "warm", "warm again"]:
            compare(m, odd_tree, seed=state)
            m.settle()
            drop_caches()
            assert m.counters()["corrupt_bytes"] == 0
        m.restart()
        compare(m, odd_tree, seed="restarted")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_source_and_cache_on_each_file_system(work, odd_tree, fstype):
    """Holes, block sizes, punching and O_DIRECT tails differ between them."""
    with LoopDevice(work / "a", fstype, "1G") as source, LoopDevice(work / "b", fstype, "1G") as disk:
        os.rmdir(source / "lost+found") if fstype == "ext4" else None
        top = trees.make_odd_tree(source / "odd")
        trees.aged(top)
        with Mount(top, work / "mnt", disk / "cache", reserve=0) as m:
            compare(m, top, seed="cold")
            warm_up(m, top)
            with m.counting() as c:
                compare(m, top, readers.THROUGH_DAEMON + [readers.by_seek], seed="warm")
            assert c["hit_bytes"] > 4 << 20 and c["corrupt_bytes"] == 0
            m.restart()
            compare(m, top, readers.THROUGH_DAEMON, seed="restarted")


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_whole_huge_file(work, odd_tree):
    """Every byte of the file of more than 4 GiB, holes included, cold and warm."""
    with Mount(odd_tree, work / "mnt", work / "cache", size="8G") as m:
        with readers.Reading(odd_tree / "huge", m / "huge") as r:
            r.windows = lambda: [(off, 4 << 20) for off in range(0, r.size, 4 << 20)]
            readers.by_read(r)
            m.settle()
            drop_caches()
            readers.by_read(r)
