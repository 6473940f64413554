# SPDX-License-Identifier: Apache-2.0
"""The mixture-of-experts case: a range that is routed again and again must outlive a flood of others.

Tokens of 1,000 lookups each.  One lookup per token is the hot range; the others run through three times the cache of
ranges, each read once or twice.  Between two uses of the hot range passes more than the whole cache, so what counts
only recency (lru) loses it every time.  Reads are O_DIRECT: each reaches the daemon, as when the page cache is small.
"""

import os
import random

import pytest

from readers import Direct

KIB = 1024
RANGE = 128 * KIB
CACHE = 64 << 20
RANGES = 3 * CACHE // RANGE
PER_TOKEN = 1000


def flood():
    """Every range once or twice, the repeats of a range further apart than the cache is large."""
    rng = random.Random(11)
    once = list(range(RANGES))
    rng.shuffle(once)
    again = [r for r in once if rng.random() < 0.5]
    return once + again


def run_tokens(m, names, hot_range):
    """The hot range is learnt, then the tokens pass.  Returns for each token whether the hot lookup hit."""
    per_file = (64 << 20) // RANGE
    flood_files = [Direct(m / n) for n in names]
    with Direct(m / hot_range) as hot_file:
        for i in range(20):
            hot_file.read(0, RANGE)
            m.settle() if i == 0 else None
        hits, lookups = [], flood()
        while lookups:
            token, lookups = lookups[:PER_TOKEN - 1], lookups[PER_TOKEN - 1:]
            for i, r in enumerate(token, 1):
                flood_files[r // per_file].read(r % per_file * RANGE, RANGE)
                if i % 250 == 0:
                    m.settle()              # a full queue drops admissions: then nothing would be evicted
            m.settle()
            with m.counting() as c:
                hot_file.read(0, RANGE)
            hits.append(c["hits"] == c["reads"] == 1)
    for f in flood_files:
        f.__exit__()
    return hits


@pytest.mark.deadline(120)
@pytest.mark.parametrize("policy,keeps", [("hotness", True), ("auto", True), ("lru", False)])
def test_a_hot_range_outlives_a_flood(hot, big_files, policy, keeps):
    names = sorted(os.listdir(big_files))
    with hot(big_files, size=CACHE, policy=policy) as m:
        hits = run_tokens(m, names[:RANGES * RANGE // (64 << 20)], names[-1])
        c = m.counters()
        assert len(hits) >= 3
        assert c["evicted_bytes"] > 0
        if keeps:
            assert all(hits), f"the hot range was lost: {hits}"
        else:
            assert not any(hits[:-1]), f"lru kept what it cannot keep: {hits}"


def test_a_loop_larger_than_the_cache_keeps_a_part(hot, slow, big_files):
    """A dense model reads all its layers in a circle.  lru would hit nothing at all; a fixed part stays."""
    total = 128 << 20
    with slow(big_files) as source, hot(source.path, size=CACHE, policy="hotness") as m:
        for round_ in range(4):
            with m.counting() as c:
                for name in ["f0", "f1"]:
                    with Direct(m / name) as d:
                        for off in range(0, 64 << 20, 1 << 20):
                            d.read(off, 1 << 20)
            m.settle()
        assert c["read_bytes"] == total
        assert c["hit_bytes"] >= 0.35 * total, f"{c['hit_bytes'] / total:.2f} of the loop hit"


def test_what_was_learnt_survives_a_restart(hot, big_files):
    """Heat is kept with the index: the hot range outlives a flood that comes after the restart."""
    names = sorted(os.listdir(big_files))
    with hot(big_files, size=CACHE, policy="hotness") as m:
        with Direct(m / names[-1]) as d:
            for i in range(30):
                d.read(0, RANGE)
                m.settle() if i == 0 else None
        m.restart()
        per_file = (64 << 20) // RANGE
        for r in flood():
            with Direct(m / names[r // per_file]) as d:
                d.read(r % per_file * RANGE, RANGE)
        m.settle()
        with m.counting() as c, Direct(m / names[-1]) as d:
            d.read(0, RANGE)
        assert c["hits"] == 1


@pytest.mark.skip(reason="admit=second is not built yet: mount refuses it and says so")
def test_second_sight_only(hot, one_file):
    """admit=second: the first open admits nothing, however often it reads; another open does."""
    with hot(one_file, admit="second") as m:
        with Direct(m / "f") as d:
            d.read(0, RANGE), d.read(0, RANGE)
        m.settle()
        assert m.counters()["admitted_bytes"] == 0
        with Direct(m / "f") as d:
            d.read(0, RANGE)
        m.settle()
        assert m.counters()["admitted_bytes"] == RANGE


def test_shadow_mode_writes_nothing(hot, one_file):
    with hot(one_file, mode="shadow") as m:
        with Direct(m / "f") as d:
            for _ in range(3):
                assert d.read(0, 1 << 20) == (one_file / "f").read_bytes()[:1 << 20]
        m.settle()
        c = m.counters()
        assert c["shadow_hit_bytes"] > 0 and c["shadow_admitted_bytes"] > 0
        assert c["hit_bytes"] == c["mirror_write_bytes"] == c["admitted_bytes"] == 0
