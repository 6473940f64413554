# SPDX-License-Identifier: Apache-2.0
"""Many at once, while somebody else changes the file.  How often is a matter of luck, so it is tried some thousand times;
HOTSET_TRIES=20 makes it 96,000 first reads (48,000 with mode=off), 152,000 opens of what grows behind the mount and
284,000 of what grows through it."""

import os
import re

import pytest

import trees
from harness import TRIES, run, tool

FILES = 600
"""Changed together, so that they need not each wait until the change is old enough to be trusted."""


def first_reads(m, source, files, how="read", processes=4):
    """{"reads": n, "stale": n, "failed": n}; one warm round and as many as TRIES says."""
    said = run(tool("firstread"), source, m.path, *map(str, [files, TRIES, processes, 2200]), how, timeout=60 + 10 * TRIES).stdout
    return {what: int(n) for what, n in re.findall(r"(\w+) (\d+)", said)}


@pytest.mark.deadline(90 + 10 * TRIES)
def test_all_who_open_at_once_read_the_new_bytes(hot, work):
    """After a rewrite of the same size behind the mount; by 4 processes that open each of 1,200 files together."""
    (work / "source").mkdir()
    with hot(work / "source") as m:
        assert first_reads(m, work / "source", 2 * FILES) == {"reads": 8 * FILES * TRIES, "stale": 0, "failed": 0}


@pytest.mark.deadline(90 + 10 * TRIES)
@pytest.mark.parametrize("how, options", [("read", {}), ("map", {"attr_timeout": 60})], ids=["read", "map"])
def test_all_who_open_at_once_read_the_new_bytes_with_mode_off(hot, work, how, options):
    """The kernel's pages are ours to drop, even where no byte is cached by us; and however long names are believed."""
    (work / "source").mkdir()
    with hot(work / "source", mode="off", **options) as m:
        assert first_reads(m, work / "source", FILES, how) == {"reads": 4 * FILES * TRIES, "stale": 0, "failed": 0}


NEVER = 256 << 20
"""Or hardly ever: a campaign need not fill the disk."""


def opens(changed, opened, count, cut):
    """What came of `count` opens by 4 processes, while 8 others append (and cut to nothing what is longer than `cut`)."""
    said = run(tool("growopen"), changed, opened, "8", "4", str(count), str(cut), timeout=60 + 10 * TRIES).stdout
    assert said.startswith(f"opens {count} "), said
    return said.strip().split(" ", 2)[2]


@pytest.mark.deadline(90 + 10 * TRIES)
@pytest.mark.parametrize("cut, options", [(NEVER, {}), (100_000, {}), (100_000, {"attr_timeout": 0}),
                                          (NEVER, {"mode": "off"})],
                         ids=["appended", "cut too", "attr_timeout=0", "mode=off"])
def test_what_changes_its_size_behind_the_mount_can_be_opened(hot, work, cut, options):
    """The source never refuses it, so no program gets ESTALE."""
    (work / "source").mkdir()
    (work / "source/log").touch()
    with hot(work / "source", **options) as m:
        assert opens(work / "source/log", m / "log", 7_600 * TRIES, cut) == "ESTALE 0 other 0 (none)"


@pytest.mark.deadline(90 + 10 * TRIES)
@pytest.mark.parametrize("cut, options", [(NEVER, {}), (100_000, {"attr_timeout": 0})],
                         ids=["appended", "attr_timeout=0"])
def test_what_changes_its_size_through_the_mount_can_be_opened(hot, work, cut, options):
    """Neither do those who append, truncate and open on the mount alone."""
    (work / "source").mkdir()
    (work / "source/log").touch()
    with hot(work / "source", **options) as m:
        assert opens(m / "log", m / "log", 14_200 * TRIES, cut) == "ESTALE 0 other 0 (none)"


@pytest.mark.deadline(90 + 10 * TRIES)
def test_a_file_that_was_removed_behind_the_mount_is_made_again(hot, work):
    """Its inode number often belonged to the one before: who makes it with O_EXCL has made it, and is told so."""
    (work / "source").mkdir()
    with hot(work / "source", attr_timeout=0) as m:
        for i in range(4000 * TRIES):
            fd = os.open(m / "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if i % 4 == 0:
                os.write(fd, b"some bytes")
            os.close(fd)
            os.unlink(work / "source/new")
            if i % 3 == 0:                      # the number goes to a file that the mount never sees
                trees.write(work / "source/other", b"")
                os.unlink(work / "source/other")
