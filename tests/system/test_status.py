# SPDX-License-Identifier: Apache-2.0
"""`hotset status`, --help, --version: what scripts and people read."""

import json
import os
import re

import pytest

from harness import HOTSET, Mount, hotset, mounts, run
from readers import contents, direct

FIELDS = {"pid": int, "mountpoint": str, "source": str, "cache": str, "mode": str, "policy": str, "policy_active": str,
          "size_bytes": int, "used_bytes": int, "extents": int, "files": int, "source_state": str, "counters": dict,
          "warnings": list}
COUNTERS = """reads read_bytes hits partials misses hit_bytes miss_bytes joined_bytes admitted_bytes declined_bytes
    dropped_bytes evicted_bytes readmitted_bytes corrupt_bytes promoted_opens bypass_opens source_errors cache_errors
    source_read_bytes mirror_read_bytes mirror_write_bytes shadow_hit_bytes shadow_admitted_bytes
    empty_reads failed_reads bypass_reads bypass_bytes""".split()


def test_every_field(hot, one_file):
    with hot(one_file, size="100M", policy="hotness") as m:
        status = m.status()
        for name, kind in FIELDS.items():
            assert isinstance(status[name], kind), name
        for name in COUNTERS:
            assert type(status["counters"][name]) is int, name
        assert all(isinstance(w, str) for w in status["warnings"])
        assert status["mountpoint"] == str(m.path) and status["source"] == str(one_file)
        assert status["cache"] == str(m.cache) and status["size_bytes"] == 100 << 20
        assert status["mode"] == "prod" and status["policy"] == status["policy_active"] == "hotness"
        assert status["source_state"] == "ok"


def test_it_counts(hot, one_file):
    with hot(one_file) as m:
        assert m.status()["extents"] == m.status()["files"] == 0
        assert all(v == 0 for k, v in m.counters().items() if k not in ("mirror_write_bytes",)), m.counters()
        direct(m / "f", 0, 100_000)
        direct(m / "f", 1 << 20, 100_000)
        m.settle()
        status = m.status()
        assert status["files"] == 1 and status["extents"] == 2
        assert 200_000 < status["used_bytes"] < 10 << 20


def test_counters_begin_anew_with_each_mount(hot, one_file):
    with hot(one_file) as m:
        contents(m / "f")
        m.settle()
        used = m.status()["used_bytes"]
        m.restart()
        assert m.counters()["reads"] == m.counters()["admitted_bytes"] == 0
        assert m.status()["files"] == 1 and m.status()["used_bytes"] >= used // 2


def test_used_bytes_is_what_the_disk_holds(hot, one_file):
    from harness import cache_bytes
    with hot(one_file) as m:
        contents(m / "f")
        m.settle()
        physical = cache_bytes(m.cache)
        assert abs(m.status()["used_bytes"] - physical) <= 1 << 20


def test_all_mounts(work, one_file, odd_tree):
    others = {m["point"] for m in mounts() if "hotset" in m["fstype"]}

    def listed():
        done = hotset("status", "--json")
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return [s for s in found if s["mountpoint"] not in others]

    assert listed() == []
    if not others:
        assert json.loads(hotset("status", "--json").stdout) == []
    with Mount(one_file, work / "a", work / "ca") as a, Mount(odd_tree, work / "b", work / "cb") as b:
        assert {s["mountpoint"] for s in listed()} == {str(a.path), str(b.path)}
        assert {s["pid"] for s in listed()} == {a.pid, b.pid}
        text = hotset("status").stdout
        assert str(a.path) in text and str(b.path) in text
    assert listed() == []


def test_a_dead_mount_does_not_break_the_list(work, one_file, odd_tree):
    """One daemon was killed; the command still answers for the others, soon."""
    with Mount(one_file, work / "a", work / "ca") as a, Mount(odd_tree, work / "b", work / "cb") as b:
        os.kill(a.pid, 9)
        found = json.loads(hotset("status", "--json", check=False, timeout=20).stdout)
        assert str(b.path) in [s["mountpoint"] for s in found]
        run("umount", "-l", a.path)
        a._ended()
        a.start()


@pytest.mark.parametrize("path", ["/", "/proc", "nowhere"])
def test_a_path_outside_exits_2(work, path):
    done = hotset("status", work / path, "--json", check=False)
    assert done.returncode == 2
    assert done.stderr.strip() and done.stdout.strip() in ("", "null")


def test_for_people(hot, one_file):
    with hot(one_file) as m:
        for _ in range(3):
            direct(m / "f", 0, 1 << 20)
            m.settle()
        text = hotset("status", m.path).stdout
        assert re.search("hit ratio", text, re.I), text
        assert re.search(r"66(\.\d+)? ?%", text), "two of three reads hit:\n" + text
        assert str(m.path) in text and str(m.cache) in text


def test_the_hit_ratio_of_nothing(hot, one_file):
    """A fresh mount has read nothing; no division by zero, no nan."""
    with hot(one_file) as m:
        assert "nan" not in hotset("status", m.path).stdout.lower()


def test_names_that_are_not_utf8_are_encoded(work, one_file):
    target = os.fsdecode(os.fsencode(work) + b"/m\xffnt")
    with Mount(one_file, target, work / "cache") as m:
        assert m.status()["mountpoint"] == f"{work}/m%FFnt"


def test_source_unreachable(hot, slow, one_file):
    with slow(one_file) as source, hot(source.path) as m:
        direct(m / "f", 0, 4096)
        source.kill()
        with pytest.raises(OSError):
            direct(m / "f", 1 << 20, 4096)
        status = m.status()
        assert status["source_state"] == "unreachable"
        assert any("unreachable" in w for w in status["warnings"])


def test_help_and_version():
    for argv in [["--help"], ["mount", "--help"], ["status", "--help"]]:
        assert "hotset" in hotset(*argv).stdout, argv
    options = hotset("mount", "--help").stdout
    for word in ["cache", "size", "reserve", "mode", "policy", "admit", "verify", "include", "exclude", "min_size",
                 "write_rate", "promote", "readahead", "attr_timeout", "log"]:
        assert re.search(rf"\b{word}\b", options), word
    assert re.search(r"\d+\.\d+", hotset("--version").stdout)


def test_other_users_may_ask(hot, one_file, work):
    """The socket is for all; the peer's uid decides what it may change."""
    with hot(one_file) as m:
        run("cp", HOTSET, work / "hotset")
        got = run("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", work / "hotset", "status", m.path,
                  "--json")
        assert json.loads(got.stdout)["pid"] == m.pid
