# SPDX-License-Identifier: Apache-2.0
"""SOURCE is MOUNTPOINT: the overlay lies over the very directory that it reads."""

import os

import pytest

import readers
import trees
from harness import LoopDevice, Mount, drop_caches, hotset, mounts_at
from readers import contents


@pytest.fixture
def folder(work):
    """A small tree of its own, since it is mounted over."""
    top = trees.make_files(work / "data", {"a": 3 << 20, "b": 100_001})
    (top / "sub").mkdir()
    os.link(top / "a", top / "sub/link")
    return trees.aged(top)


def test_same_tree_before_during_after(work, folder):
    truth = {n: (folder / n).read_bytes() for n in ["a", "b", "sub/link"]}
    inodes = {n: os.stat(folder / n).st_ino for n in truth}
    for round_ in range(3):
        with Mount(folder, folder, work / "cache") as m:
            assert len(mounts_at(folder)) == 1
            for name, data in truth.items():
                assert contents(folder / name) == data
                assert os.stat(folder / name).st_ino == inodes[name]
            m.settle()
            drop_caches()
            if round_:
                assert m.counters()["source_read_bytes"] == 0, "the second mount did not know what the first had read"
        assert not mounts_at(folder)
        assert {n: (folder / n).read_bytes() for n in truth} == truth


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
@pytest.mark.parametrize("end", ["umount", "SIGTERM", "kill"])
def test_over_the_root_of_a_mounted_disk(work, fstype, end):
    """The usual case: a disk is mounted, and hotset over it.  The disk's own mount stays, whatever end we come to."""
    with LoopDevice(work / "a", fstype, "512M") as disk:
        trees.make_files(disk / "models", {"m": 2 << 20})
        trees.aged(disk / "models")
        truth = (disk / "models/m").read_bytes()
        m = Mount(disk, disk, work / "cache").start()
        assert [x["fstype"] for x in mounts_at(disk)][0] == fstype and len(mounts_at(disk)) == 2
        assert contents(disk / "models/m") == truth
        {"umount": m.stop, "SIGTERM": m.term, "kill": m.kill}[end]()
        assert [x["fstype"] for x in mounts_at(disk)] == [fstype]
        assert contents(disk / "models/m") == truth


def test_a_file_opened_before_the_mount_goes_on(work, folder):
    with readers.opened(folder / "a") as fd:
        with Mount(folder, folder, work / "cache") as m:
            assert os.fstat(fd).st_dev != os.stat(m / "a").st_dev
            assert os.pread(fd, 4096, 4096) == contents(folder / "a")[4096:8192]


def test_mounts_inside_the_source_are_not_shown_or_hidden_wrongly(work, folder):
    """A file system below the source's root: what the plain directory shows there is what the overlay may show; it
    must not hang, and the mount must come up."""
    with LoopDevice(folder / "disk", "ext4", "64M") as inner:
        (inner / "x").write_bytes(b"inner")
        with Mount(folder, work / "mnt", work / "cache") as m:
            assert sorted(os.listdir(m.path)) == ["a", "b", "disk", "sub"]
            assert os.path.isdir(m / "disk/ext4")
            assert (m / "disk/ext4/x").read_bytes() == b"inner"


def test_status_finds_it_from_below(work, folder):
    with Mount(folder, folder, work / "cache") as m:
        assert m.status()["source"] == m.status()["mountpoint"] == str(folder)
        assert hotset("status", folder / "sub", check=False).returncode in (0, 2)
