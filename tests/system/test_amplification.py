# SPDX-License-Identifier: Apache-2.0
"""What a miss costs at the source: the bytes that were asked for, and hardly more."""

import mmap
import os
import random

import pytest

from harness import drop_caches
from readers import Direct, opened, same_bytes

WINDOW = 512 * 1024
BLOCK = 4096


def picked(model, n, seed=3):
    """Some experts, in the order in which a router fires them."""
    return random.Random(seed).sample(model.slices, n)


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


def test_expert_slices_by_mmap(hot, slow, model):
    """A page fault reads around itself; no more than the slice and one readahead window each."""
    truth = (model.folder / model.name).read_bytes()
    slices = spread(model.slices, 4 * WINDOW)
    with slow(model.folder) as source, hot(source.path, readahead=WINDOW) as m, opened(m / model.name) as fd:
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            for off, length in slices:
                before = source.read_bytes
                same_bytes(truth[off:off + length], view[off:off + length], off, "map")
                cost = source.read_bytes - before
                assert length <= cost <= length + WINDOW + 2 * BLOCK, f"{cost} source bytes for {length} at {off}"


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
