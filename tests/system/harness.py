# SPDX-License-Identifier: Apache-2.0
"""Mounts, sources and block devices for the tests, and how they end.

A `Mount` runs the real `hotset` command and talks to it as a user does: exit codes, `status --json`, umount,
signals.  A `SlowSource` is the counting source of tests/tools.  A `LoopDevice` is a file system of its own.
All live below one test's folder.  Whatever a test leaves behind, sweep() finds through mountinfo (below that folder
only), the process tree and losetup, and ends it.

No function here reads from a mount without need: those that do are called from a test's child, which has a deadline.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from children import descendants, is_running, reap, wait_gone, wait_until, where

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HOTSET_BUILD", REPO / "build"))
HOTSET = BUILD / "src" / "hotset"
FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")
TRIES = max(1, int(os.environ.get("HOTSET_TRIES", "1")))
"""How many times as often races are tried; 20 is a campaign (the tests say what it means for them)."""
DEFAULTS = {"size": "256M", "promote": "off", "min_size": "0", "log": "debug"}
"""What most tests want.  promote=off: a promoted file is read by the kernel, so nothing would be left to count.
min_size=0: small odd files go through the cache as well."""


def tool(name):
    """A test tool that the build makes, wherever meson puts it."""
    for path in sorted(BUILD.glob(f"tests/**/{name}")):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise AssertionError(f"{name} is not below {BUILD}/tests: build first (scripts/test)")


def run(*argv, timeout=30, check=True, stdin=None):
    """Run a command; its output goes through files, so a daemon that keeps our output open cannot hang us.
    Returns a CompletedProcess with text in stdout and stderr."""
    argv = [os.fspath(a) for a in argv]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = subprocess.run(argv, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout)
        out.seek(0), err.seek(0)
        done.stdout, done.stderr = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} exited {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}")
    return done


def hotset(*argv, **how):
    return run(HOTSET, *argv, **how)


def drop_caches(what=1):
    """Forget clean pages, so that the next buffered read reaches the daemon (3: names and inodes as well)."""
    Path("/proc/sys/vm/drop_caches").write_text(f"{what}\n")


def forget_pages(path):
    """Forget the clean, unmapped pages of one file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


# ---- mountinfo -------------------------------------------------------------------------------------------------------

def _unescape(field):
    return os.fsdecode(os.fsencode(field).decode("unicode_escape").encode("latin-1"))


def mounts():
    """The mount table of this namespace, oldest first, as dicts."""
    table = []
    for line in open("/proc/self/mountinfo", errors="surrogateescape"):
        left, right = line.rstrip("\n").split(" - ", 1)
        ident, parent, dev, root, point, options = left.split(" ")[:6]
        fstype, source = right.split(" ")[:2]
        table.append({"id": int(ident), "minor": int(dev.split(":")[1]), "point": _unescape(point),
                      "fstype": fstype, "source": _unescape(source), "options": options.split(",")})
    return table


def mounts_at(path):
    return [m for m in mounts() if m["point"] == os.fspath(path)]


def mounts_below(folder):
    folder = os.fspath(folder)
    return [m for m in mounts() if m["point"] == folder or m["point"].startswith(folder + "/")]


def abort(mount):
    """End a FUSE connection of ours by force: every request in it fails, so whoever hangs in it wakes up."""
    if mount["fstype"].startswith("fuse"):
        abort_connection(mount["minor"])


def abort_connection(minor):
    with contextlib.suppress(OSError):
        (FUSE_CONNECTIONS / str(minor) / "abort").write_text("1")


# ---- hotset itself ---------------------------------------------------------------------------------------------------

class Mount:
    """One hotset mount.  `with Mount(...) as m:` mounts, and unmounts politely if the body passed."""

    def __init__(self, source, path, cache=None, **options):
        self.source, self.path, self.cache = Path(source), Path(path), Path(cache) if cache else None
        self.options = {**DEFAULTS, **options}
        self.pid = self.minor = None

    def argv(self):
        words = dict(self.options, **({"cache": self.cache} if self.cache else {}))
        listed = ",".join(k if v is None else f"{k}={v}" for k, v in words.items())
        return ["mount", self.source, self.path, "-o", listed]

    def start(self, **changed):
        self.options.update(changed)
        self.path.mkdir(parents=True, exist_ok=True)
        if self.cache:
            self.cache.mkdir(parents=True, exist_ok=True)
        self.started = hotset(*self.argv(), check=False)
        if "is not there yet" in self.started.stderr:
            pytest.skip(self.started.stderr.strip())
        assert self.started.returncode == 0, self.started
        self.pid = self.status()["pid"]
        self.minor = mounts_at(self.path)[-1]["minor"]
        return self

    def status(self):
        return json.loads(hotset("status", self.path, "--json").stdout)

    def counters(self):
        return self.status()["counters"]

    @contextlib.contextmanager
    def counting(self):
        """What the body changed in the counters: `with m.counting() as c: ...; c["hits"]` afterwards."""
        before, changed = self.counters(), {}
        yield changed
        changed.update({k: v - before[k] for k, v in self.counters().items()})

    def settle(self):
        """Wait until the admission queue has nothing left to write: no byte counter moves any more."""
        seen, since = None, time.monotonic()
        end = since + 60
        while time.monotonic() - since < 0.3:
            now = {k: v for k, v in self.counters().items() if k.endswith("_bytes")}
            if now != seen:
                seen, since = now, time.monotonic()
            assert time.monotonic() < end, "the counters of an idle mount keep moving"
            time.sleep(0.05)

    def stop(self):
        """umount(8), and the daemon ends by itself."""
        run("umount", self.path)
        self._ended()

    def term(self):
        """SIGTERM: it unmounts and ends."""
        os.kill(self.pid, signal.SIGTERM)
        self._ended()
        left = [m for m in mounts_at(self.path) if m["fstype"].startswith("fuse") and "hotset" in m["fstype"]]
        assert not left, "still mounted after SIGTERM"

    def kill(self):
        """kill -9, as a crash; the dead mount is taken away afterwards."""
        os.kill(self.pid, signal.SIGKILL)
        self._ended()
        run("umount", "-l", self.path)

    def restart(self, **changed):
        self.stop()
        return self.start(**changed)

    def destroy(self):
        """Whatever state it is in: wake everybody, detach, end."""
        for m in reversed(mounts_at(self.path)):
            if "hotset" in m["fstype"]:
                abort(m)
                run("umount", "-l", self.path, check=False)
        if self.pid and is_running(self.pid):
            abort_connection(self.minor)    # as long as the daemon lives it is ours, also when the mount is detached
            os.kill(self.pid, signal.SIGKILL)
            wait_gone(self.pid)
        self.pid = None

    def _ended(self):
        wait_gone(self.pid)
        self.pid = None

    def __enter__(self):
        return self.start() if self.pid is None else self

    def __exit__(self, kind, value, trace):
        if kind is not None or self.pid is None:
            self.destroy()
        else:
            self.stop()

    def __truediv__(self, name):
        return self.path / name


def cache_bytes(folder):
    """Physical bytes of a cache directory.  Files come and go under a walk, which can count a byte twice: on its
    way from one file to another.  So the smaller of two walks."""
    return min(_physical_bytes(folder), _physical_bytes(folder))


def _physical_bytes(folder):
    total, seen = 0, set()
    for where_, folders, files in os.walk(folder):
        for name in [os.path.join(where_, n) for n in files] + [where_]:
            with contextlib.suppress(FileNotFoundError):
                st = os.lstat(name)
                if st.st_ino not in seen:
                    seen.add(st.st_ino)
                    total += st.st_blocks * 512
    return total


def mirrors(cache):
    """The mirror files of a cache directory, largest name order; their sidecars are not among them."""
    return sorted(p for p in Path(cache).glob("mirrors/*/*") if p.suffix != ".sum")


def sidecar(mirror):
    return mirror.with_name(mirror.name + ".sum")


# ---- a source that counts --------------------------------------------------------------------------------------------

class SlowSource:
    """A FUSE source that counts its reads, and can delay, hold or fail them (tests/tools/slowfs)."""

    def __init__(self, folder, path, **options):
        self.folder, self.path, self.options = Path(folder), Path(path), options
        self.process = None

    def __enter__(self):
        self.path.mkdir(parents=True, exist_ok=True)
        words = {"direct_io": None, **self.options}
        listed = ",".join(k if v is None else f"{k}={v}" for k, v in words.items())
        log = open(self.path.parent / (self.path.name + ".log"), "w")
        self.process = subprocess.Popen([tool("slowfs"), self.folder, self.path, "-f", "-o", listed],
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("slowfs mounted", lambda: mounts_at(self.path) or self.process.poll() is not None)
        assert mounts_at(self.path), Path(log.name).read_text()
        return self

    def stats(self):
        return json.loads(os.getxattr(self.path, "user.slowfs.stats"))

    def reset(self):
        os.setxattr(self.path, "user.slowfs.reset", b"1")

    @property
    def read_bytes(self):
        return self.stats()["read_bytes"]

    def kill(self):
        """As a server that vanishes: the mount stays, every request fails."""
        self.process.kill()
        self.process.wait(20)

    def __exit__(self, kind, value, trace):
        for m in mounts_at(self.path):
            abort(m) if kind is not None else None
            run("umount", *(["-l"] if kind is not None else []), self.path, check=kind is None)
        if self.process.poll() is None and kind is not None:
            self.process.kill()
        self.process.wait(20)


# ---- file systems of their own ---------------------------------------------------------------------------------------

class LoopDevice:
    """A file system on a sparse file: `with LoopDevice(folder, "xfs", "512M") as path:`."""

    MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}

    def __init__(self, folder, fstype, size, mkfs=()):
        self.image, self.path = Path(folder) / f"{fstype}.img", Path(folder) / fstype
        self.fstype, self.size, self.mkfs = fstype, size, mkfs
        self.device = None

    def __enter__(self):
        self.path.mkdir(parents=True)
        run("truncate", "-s", self.size, self.image)
        run(*self.MKFS[self.fstype], *self.mkfs, self.image)
        self.device = run("losetup", "-f", "--show", self.image).stdout.strip()
        run("mount", "-t", self.fstype, self.device, self.path)
        return self.path

    def __exit__(self, kind, value, trace):
        run("umount", *(["-l"] if kind is not None else []), self.path, check=kind is None)
        run("losetup", "-d", self.device)


class OneDevice:
    """A loop device that holds one image after another: `with device.showing(image, "xfs"):` mounts it at `path`."""

    def __init__(self, folder, path):
        self.backing, self.path, self.device = Path(folder) / "device.img", Path(path), None

    def __enter__(self):
        self.path.mkdir(parents=True, exist_ok=True)
        run("truncate", "-s", "512M", self.backing)
        self.device = run("losetup", "-f", "--show", self.backing).stdout.strip()
        return self

    @contextlib.contextmanager
    def showing(self, image, fstype, options="ro"):
        run("fallocate", "--punch-hole", "-l", "512M", self.backing)
        run("dd", f"if={image}", f"of={self.backing}", "bs=1M", "conv=notrunc,sparse", "status=none")
        run("blockdev", "--flushbufs", self.device)
        run("mount", "-t", fstype, "-o", options, self.device, self.path)
        yield
        # Whoever has looked at it through a mount above may hold it until the kernel forgets names that it knew.
        wait_until("nobody uses the image",
                   lambda: run("umount", self.path, check=False).returncode == 0 or drop_caches(3))

    def __exit__(self, kind, value, trace):
        run("umount", "-l", self.path, check=False) if kind is not None else None
        run("losetup", "-d", self.device)


class Overlay:
    """overlayfs over a folder: inode numbers there are not stable, so hotset tells its files by their paths."""

    def __init__(self, folder, path):
        self.lower, self.path = Path(folder), Path(path)

    def __enter__(self):
        upper, scratch = self.path.with_name("upper"), self.path.with_name("scratch")
        for p in (self.lower, self.path, upper, scratch):
            p.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={self.lower},upperdir={upper},workdir={scratch}",
            self.path)
        return self.path

    def __exit__(self, kind, value, trace):
        run("umount", *(["-l"] if kind is not None else []), self.path, check=kind is None)


def loop_devices_below(folder):
    listed = run("losetup", "-l", "-n", "-O", "NAME,BACK-FILE", check=False).stdout
    pairs = [line.split(None, 1) for line in listed.splitlines()]
    return [p[0] for p in pairs if len(p) == 2 and p[1].startswith(os.fspath(folder) + "/")]


# ---- the end of a test -----------------------------------------------------------------------------------------------

def sweep(folder):
    """End everything that runs or is mounted for `folder`.  Returns what had been left there, as text lines."""
    left = []
    for m in reversed(mounts_below(folder)):
        left.append(f"mounted: {m['fstype']} at {m['point']}")
        abort(m)
        subprocess.run(["umount", "-l", m["point"]], stderr=subprocess.DEVNULL, timeout=30)
    reap()
    for pid in reversed(descendants(os.getpid())):
        if is_running(pid):
            left.append("running:\n" + where(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while any(map(is_running, descendants(os.getpid()))) and time.monotonic() < end:
        reap()
        time.sleep(0.02)
    reap()
    for device in loop_devices_below(folder):
        left.append(f"attached: {device}")
        subprocess.run(["losetup", "-d", device], timeout=30)
    return left


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
