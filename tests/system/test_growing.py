# SPDX-License-Identifier: Apache-2.0
"""Files that grow, shrink and grow again behind the mount, under readers that never wait: no byte that the writers'
log does not allow, and no old end that goes on in zeros.

tests/tools/growcheck writes, reads and judges; what it saw it prints.  HOTSET_TRIES=N runs N times as long (6 is a
minute and more in all)."""

import os

import pytest

from harness import run, tool

TRIES = float(os.environ.get("HOTSET_TRIES", "1"))


def check(source, view, seconds, attr_timeout=0):
    (source / "links").mkdir(parents=True)
    seconds = max(1, round(seconds * TRIES))
    done = run(tool("growcheck"), source, view, "-t", str(seconds), "-a", str(attr_timeout), check=False,
               timeout=seconds + 60)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.deadline(90 + 2 * TRIES)
def test_the_source_itself_is_not_accused(work):
    """What is found below must be the mount's doing: the same load on the source alone finds nothing."""
    check(work / "source", work / "source", 2)


@pytest.mark.deadline(90 + 5 * TRIES)
@pytest.mark.parametrize("attr_timeout", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["prod", "off"])
def test_a_growing_file_reads_as_it_was_written(hot, work, mode, attr_timeout):
    """8 writers append, truncate and grow behind the mount, 8 readers read by read, pread, mmap and sendfile through
    either of two links, and one only looks: each reading is one that the writers allowed."""
    (work / "source").mkdir()
    with hot(work / "source", attr_timeout=attr_timeout, mode=mode) as m:
        check(work / "source", m.path, 4 if mode == "prod" else 1, attr_timeout)
