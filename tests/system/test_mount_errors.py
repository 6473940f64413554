# SPDX-License-Identifier: Apache-2.0
"""A mount that cannot be: the exit code, one line that says what, which path and what to do; and nothing left."""

import os
import pytest

from harness import LoopDevice, Mount, SlowSource, hotset, mounts_below, run
from readers import contents


def refused(work, source, target, status, *words, options):
    """`hotset mount` exits with `status`; the one line that it prints holds all the words."""
    target.mkdir(exist_ok=True)
    before = mounts_below(work)
    done = hotset("mount", source, target, "-o", options, check=False, timeout=40)
    assert done.returncode == status, done.stderr
    message = done.stderr.strip()
    assert message and "\n" not in message, f"not one line: {message!r}"
    for word in words:
        assert str(word) in message, f"{word} is not named: {message}"
    assert mounts_below(work) == before
    return message


def test_without_cache_it_names_the_way_out(work, one_file):
    refused(work, one_file, work / "mnt", 1, "cache=", options="size=64M")


def test_mode_off_needs_no_cache(work, one_file):
    m = Mount(one_file, work / "mnt", mode="off")
    with m:
        assert contents(m / "f") == (one_file / "f").read_bytes()
        assert m.status()["counters"]["hits"] == 0


@pytest.mark.parametrize("options", ["size=much", "size=-1", "policy=best", "mode=on", "verify=never", "nonsense=1",
                                     "reserve=120%", "attr_timeout=x", "nonsense"])
def test_bad_options_are_usage_errors(work, one_file, options):
    refused(work, one_file, work / "mnt", 1, options.split("=")[0], options=f"cache={work}/cache,{options}")


@pytest.mark.parametrize("argv", [["mount"], ["mount", "/tmp"], ["frobnicate"], ["mount", "a", "b", "c"],
                                  ["--nonsense"], []])
def test_bad_command_lines_are_usage_errors(work, argv):
    assert hotset(*argv, check=False).returncode == 1


def test_generic_mount_words_are_taken(work, one_file):
    words = "nofail,noauto,user,users,owner,_netdev,defaults,x-systemd.automount,comment=hello"
    m = Mount(one_file, work / "mnt", work / "cache")
    m.options = {w: None for w in words.split(",")}
    with m:
        assert contents(m / "f") == (one_file / "f").read_bytes()


def test_missing_source_and_mount_point(work, one_file):
    refused(work, work / "nowhere", work / "mnt", 32, work / "nowhere", options=f"cache={work}/cache")
    done = hotset("mount", one_file, work / "no-mount-point", "-o", f"cache={work}/cache", check=False)
    assert done.returncode == 32 and str(work / "no-mount-point") in done.stderr


def test_source_that_is_a_file(work, one_file):
    refused(work, one_file / "f", work / "mnt", 32, one_file / "f", options=f"cache={work}/cache")


def test_locked_by_another_mount(work, one_file, odd_tree):
    """One cache directory belongs to one mount; the second is told which is the first."""
    with Mount(one_file, work / "first", work / "cache") as m:
        refused(work, odd_tree, work / "second", 32, work / "first", work / "cache", options=f"cache={m.cache}")
        assert contents(m / "f") == (one_file / "f").read_bytes()


def unusable(work, kind):
    """Cache directories that cannot be used."""
    if kind == "is a file":
        (work / "cache").write_bytes(b"")
        return work / "cache"
    if kind == "below a file":
        (work / "file").write_bytes(b"")
        return work / "file/cache"
    if kind == "read-only":
        (work / "cache").mkdir()
        run("mount", "-t", "tmpfs", "-o", "ro", "none", work / "cache")
        return work / "cache"
    (work / "cache").mkdir()
    run("mount", "-t", "sysfs", "none", work / "cache")
    return work / "cache"


KINDS = ["is a file", "below a file", "read-only", "sysfs"]


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_cache(work, one_file, kind):
    cache = unusable(work, kind)
    refused(work, one_file, work / "mnt", 32, cache, options=f"cache={cache}")
    run("umount", cache, check=False)


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_cache_with_nofail_is_a_bypass_with_a_warning(work, one_file, kind):
    cache = unusable(work, kind)
    m = Mount(one_file, work / "mnt", nofail=None)
    m.options["cache"] = cache
    with m:
        assert contents(m / "f") == (one_file / "f").read_bytes()
        status = m.status()
        assert any(str(cache) in w for w in status["warnings"]), status["warnings"]
        assert status["counters"]["hits"] == status["counters"]["admitted_bytes"] == 0
    run("umount", cache, check=False)


@pytest.mark.parametrize("inside", ["mount point", "source", "below the source", "over itself"])
def test_cache_inside_the_mount_or_the_source(work, inside):
    source, target = work / "source", work / "mnt"
    source.mkdir(), target.mkdir()
    if inside == "over itself":
        target = source
    cache = {"mount point": target / "cache", "source": source, "below the source": source / "a/b",
             "over itself": source / "cache"}[inside]
    cache.mkdir(parents=True, exist_ok=True)
    refused(work, source, target, 32, cache, options=f"cache={cache}")


def test_cache_inside_by_another_name(work):
    """A bind mount of the source and a symlink into it lead to the same place."""
    source = work / "source"
    (source / "cache").mkdir(parents=True)
    (work / "bind").mkdir()
    run("mount", "--bind", source / "cache", work / "bind")
    refused(work, source, work / "mnt", 32, options=f"cache={work}/bind")
    run("umount", work / "bind")
    os.symlink(source / "cache", work / "link")
    refused(work, source, work / "mnt", 32, options=f"cache={work}/link")


def test_cache_on_a_loop_device_whose_image_is_in_the_source(work):
    """Writing the cache would write the source, and reading the source would fill the cache."""
    with LoopDevice(work / "source/images", "ext4", "64M") as disk:
        (disk / "cache").mkdir()
        refused(work, work / "source", work / "mnt", 32, disk / "cache", options=f"cache={disk}/cache")


def test_cache_on_a_file_system_that_cannot_punch_holes(work, one_file):
    """Eviction is punching; without it the budget could not hold.  A FUSE file system without FALLOCATE is such a one;
    read-only ones are another matter, so this one is a plain hotset with its cache off."""
    disk = work / "disk"
    (disk / "cache").mkdir(parents=True)
    with SlowSource(disk, work / "nopunch") as fs:
        message = refused(work, one_file, work / "mnt", 32, fs.path / "cache", options=f"cache={fs.path}/cache")
        assert message


def test_size_beyond_the_disk_is_clamped_with_a_warning(work, one_file):
    with LoopDevice(work / "a", "ext4", "128M") as disk:
        with Mount(one_file, work / "mnt", disk / "cache", size="1T") as m:
            status = m.status()
            assert 0 < status["size_bytes"] < 128 << 20
            assert any("size" in w for w in status["warnings"])


@pytest.mark.parametrize("kind", ["tmpfs", "own device"])
def test_doubtful_places_are_warned_about(work, one_file, kind):
    """They work, so they are not refused; but the user should know."""
    if kind == "tmpfs":
        (work / "ram").mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=64M", "none", work / "ram")
        cache = work / "ram/cache"
    else:
        cache = work / "cache"                # the sources are on the same disk
    with Mount(one_file, work / "mnt", cache, size="32M", reserve=0) as m:
        word = "tmpfs" if kind == "tmpfs" else "device"
        assert any(word in w for w in m.status()["warnings"]), m.status()["warnings"]
        assert word in m.started.stderr
    run("umount", work / "ram", check=False)
