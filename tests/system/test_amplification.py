# SPDX-License-Identifier: Apache-2.0
"""What a miss costs at the source: the bytes that were asked for, and hardly more."""

import mmap
import os
import random

import pytest

from children import wait_until
from harness import drop_caches
from readers import Direct, opened, same_bytes

WINDOW = 512 * 1024
BLOCK = 4096


def picked(model, n, seed=3):
    """Some experts, in the order in which a router fires them.  No two are neighbours: a buffered read that begins
    where another one ended is a stream to the kernel, which then reads ahead on its own account."""
    return random.Random(seed).sample(model.slices[::2], n)


@pytest.mark.parametrize("how", ["direct", "buffered"])
def test_expert_slices_by_pread(hot, slow, model, how):
    """At most 1.05 source bytes per distinct byte; the second time, after the page cache is gone, none."""
    truth = (model.folder / model.name).read_bytes()
    slices = picked(model, 60)
    asked = sum(length for _, length in slices)
    with slow(model.folder) as source, hot(source.path) as m:
        def read_all():
            flags = os.O_RDONLY
            with Direct(m / model.name) as d, opened(m / model.name, flags) as fd:
                for off, length in slices:
                    got = d.read(off, length) if how == "direct" else os.pread(fd, length, off)
                    same_bytes(truth[off:off + length], got, off, how)
        read_all()
        first = source.read_bytes
        assert asked <= first <= 1.05 * asked, f"{first / asked:.3f} source bytes per byte"
        m.settle()
        drop_caches()
        source.reset()
        read_all()
        assert source.read_bytes == 0


def test_a_slice_read_in_small_pieces_costs_its_bytes_once(hot, slow, model):
    """4 KiB steps through an expert, unaligned: each block of the source is read once."""
    off, length = picked(model, 1)[0]
    with slow(model.folder) as source, hot(source.path) as m, Direct(m / model.name) as d:
        for at in range(off, off + length, 4096):
            d.read(at, min(4096, off + length - at))
            m.settle() if at == off else None
        assert source.read_bytes <= 1.05 * length


def test_one_page_by_mmap(hot, slow, model):
    """A page fault reads around itself: one readahead window, not more."""
    truth = (model.folder / model.name).read_bytes()
    with slow(model.folder) as source, hot(source.path, readahead=WINDOW) as m, opened(m / model.name) as fd:
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            for off, _ in spread(model.slices, 4 * WINDOW):
                before = source.read_bytes
                assert view[off] == truth[off]
                settled = wait_stable(lambda: source.read_bytes)
                assert BLOCK <= settled - before <= WINDOW, f"{settled - before} source bytes for a byte at {off}"


def test_expert_slices_by_mmap(hot, slow, model):
    """A mapped slice costs the window around the first fault, and the one that the kernel asks for ahead when the
    reader has come to the last quarter of the first; nothing on the daemon's own account."""
    truth = (model.folder / model.name).read_bytes()
    with slow(model.folder) as source, hot(source.path, readahead=WINDOW) as m, opened(m / model.name) as fd:
        with m.counting() as c, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            for off, length in spread(model.slices, 4 * WINDOW):
                before = source.read_bytes
                same_bytes(truth[off:off + length], view[off:off + length], off, "map")
                cost = wait_stable(lambda: source.read_bytes) - before
                assert length <= cost <= 2 * WINDOW, f"{cost} source bytes for {length} at {off}"
        assert source.read_bytes == c["source_read_bytes"] == c["read_bytes"], "more than the kernel asked for"


def wait_stable(value):
    """The value once it has stopped to change: the kernel's readahead goes on behind the reader's back."""
    seen = [value()]
    wait_until("nothing is read any more", lambda: seen.append(value()) or seen[-3:] == [seen[-1]] * 3)
    return seen[-1]


def spread(slices, distance):
    """Slices so far from each other that no window touches two."""
    found, last = [], -distance
    for off, length in sorted(slices):
        if off - last >= distance:
            found.append((off, length))
            last = off + length
    return random.Random(4).sample(found, len(found))


def test_front_to_back_costs_the_file_once(hot, slow, one_file):
    size = os.stat(one_file / "f").st_size
    with slow(one_file) as source, hot(source.path) as m:
        with open(m / "f", "rb") as f:
            while f.read(300_000):
                pass
        assert size <= source.read_bytes <= size + BLOCK
