# SPDX-License-Identifier: Apache-2.0
"""Whose bytes they are: files that trade names, files with two names, and file systems that trade places."""

import contextlib
import ctypes
import mmap
import os

import pytest

import readers
import trees
from children import LIBC, Child, wait_until, where
from harness import Mount, OneDevice, Overlay, drop_caches, run
from readers import contents, direct, opened

SIZE = 300_001
RENAME_EXCHANGE = 2
AT_FDCWD = -100


@contextlib.contextmanager
def keyed_by_path(kind, work):
    """A folder that can be written, on a file system whose inode numbers hotset does not trust."""
    if kind == "overlay":
        with Overlay(work / "plain", work / "source") as path:
            yield path
    else:
        (work / "plain").mkdir()
        with Mount(work / "plain", work / "source", mode="off", attr_timeout=0) as fuse:
            yield fuse.path


def rename_exchange(a, b):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


# ---- a name that leads to another file -------------------------------------------------------------------------------

def replaced(top):
    os.rename(top / "d", top / "c")


def exchanged(top):
    rename_exchange(top / "c", top / "d")


def exchanged_twice(top):
    rename_exchange(top / "c", top / "d")
    os.close(os.open(top / "c", os.O_RDONLY))
    rename_exchange(top / "c", top / "d")


def linked(top):
    os.unlink(top / "c")
    os.link(top / "d", top / "c")


def linked_over(top):
    os.link(top / "d", top / "e")
    os.rename(top / "e", top / "c")


def made_anew(top):
    os.unlink(top / "c")
    trees.write(top / "c", trees.random_bytes("made anew", SIZE))


def moved_aside(top):
    os.rename(top / "c", top / "e")
    trees.write(top / "c", trees.random_bytes("moved aside", SIZE))


def folder_moved(top):
    """The folder above changes places with another, and c stays c."""
    os.mkdir(top.with_name("z"))
    trees.write(top.with_name("z") / "c", trees.random_bytes("in another folder", SIZE))
    rename_exchange(top, top.with_name("z"))


NAMES_MOVE = [replaced, exchanged, exchanged_twice, linked, linked_over, made_anew, moved_aside, folder_moved]


class Held:
    """A file that somebody opened on the mount, and in the source, before its name led elsewhere."""

    def __init__(self, m, source, name):
        self.name = name
        self.reader, self.truth = readers.Direct(m / name), os.open(source / name, os.O_RDONLY)

    def wrong(self, when):
        same = self.reader.read(0, SIZE + 1) == os.pread(self.truth, SIZE + 1, 0)
        return [] if same else [f"{self.name}: held, {when}"]

    def close(self):
        os.close(self.reader.fd), os.close(self.truth)


def files_below(source):
    return sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())


def wrong_now(m, source, when, look):
    """What a program that opens the files now reads wrongly."""
    return [f"{n}: {when}" for n in files_below(source) if look(m / n) != (source / n).read_bytes()]


def by_direct(path):
    return direct(path, 0, SIZE + 1)


def test_an_old_reader_does_not_poison_the_new_file(work, hot):
    """Replaced by rename while somebody reads it: each reader has the bytes of what it opened."""
    with keyed_by_path("overlay", work) as source:
        trees.make_files(source, {"c": SIZE, "d": SIZE})
        with hot(source) as m:
            truth = (source / "d").read_bytes()
            with readers.Direct(m / "c") as old:
                os.rename(m / "d", m / "c")
                trees.aged(source)
                with readers.Direct(m / "c") as new:
                    old.read(0, SIZE)
                    m.settle()
                    wrong = ["at once"] if new.read(0, SIZE) != truth else []
            m.restart()
            wrong += ["after a remount"] if by_direct(m / "c") != truth else []
            assert m.counters()["corrupt_bytes"] == 0 and not wrong


@pytest.mark.parametrize("kind", ["overlay", "fuse"])
def test_names_that_lead_to_other_files(work, hot, kind):
    """However a name came to lead to another file, through the mount or behind it: nobody reads the wrong one."""
    ways = [(where_, move) for where_ in ["through", "behind"] for move in NAMES_MOVE]
    with keyed_by_path(kind, work) as source:
        for where_, move in ways:
            top = trees.make_files(source / where_ / move.__name__ / "a", {"d": SIZE})
            trees.write(top / "c", trees.random_bytes(move.__name__, SIZE))
        with hot(source, attr_timeout=0) as m:
            held, wrong = [Held(m, source, n) for n in files_below(source)], []
            for where_, move in ways:
                move((m.path if where_ == "through" else source) / where_ / move.__name__ / "a")
            trees.aged(source)
            held += [Held(m, source, n) for n in files_below(source)]
            for when in ["cold", "warm"]:
                wrong += sum((h.wrong(when) for h in held), [])
                m.settle()
            wrong += wrong_now(m, source, "opened now", by_direct)
            drop_caches()
            wrong += wrong_now(m, source, "by page", contents)
            for h in held:
                h.close()
            m.restart()
            wrong += wrong_now(m, source, "after a remount", by_direct)
            assert not wrong, "\n".join(wrong)


def test_nobody_joins_a_read_of_the_file_before(work, hot, slow):
    """A read of the old file is under way when somebody reads the new one of this name."""
    top = trees.make_files(work / "plain", {"c": SIZE, "d": SIZE})
    old_bytes, new_bytes = (top / "c").read_bytes(), (top / "d").read_bytes()
    hold = work / "hold"
    with slow(top, hold=hold) as source, hot(source.path, attr_timeout=0) as m, readers.Direct(m / "c") as old:
        os.rename(top / "d", top / "c")
        trees.aged(top)
        with readers.Direct(m / "c") as new:
            hold.touch()
            first = Child(old.read, 0, SIZE)
            wait_until("the old reader waits for the source", lambda: source.stats()["held_now"] > 0)
            second = Child(new.read, 0, SIZE)
            wait_until("the new reader waits", lambda: "fuse" in where(second.pid))
            hold.unlink()
            assert first.result(20) == old_bytes, "the old reader"
            assert second.result(20) == new_bytes, "the new reader"


# ---- two names of one file -------------------------------------------------------------------------------------------

def write(path):
    with opened(path, os.O_RDWR) as fd:
        os.pwrite(fd, b"written", 100_000)


def write_direct(path):
    with opened(path, os.O_WRONLY | os.O_DIRECT) as fd:
        os.pwrite(fd, mmap.mmap(-1, 4096), 40_960)


def write_by_map(path):
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as view:
        view[100_000:100_007] = b"by map."
        view.flush()


def cut_and_grow(path):
    os.truncate(path, 50_000)
    os.truncate(path, SIZE)


def punch(path):
    with opened(path, os.O_RDWR) as fd:
        run("fallocate", "--punch-hole", "-o", "65536", "-l", "65536", f"/proc/{os.getpid()}/fd/{fd}")


def copy_into(path):
    with opened(path.with_name("other")) as a, opened(path, os.O_WRONLY) as b:
        os.copy_file_range(a, b, 4096, 0, 100_000)


def nothing(top):
    """Each of these returns a name of h1 that is not the one by which it was opened."""
    return "a/h2"


def renamed(top):
    os.rename(top / "a/h1", top / "a/h3")
    return "a/h3"


def name_gone(top):
    os.unlink(top / "a/h1")
    return "a/h2"


def linked(top):
    os.link(top / "a/h1", top / "a/h4")
    return "a/h4"


def folder_renamed(top):
    os.rename(top / "a", top / "b")
    return "b/h1"


MOVES = [renamed, name_gone, linked, folder_renamed]
CHANGES = [write, write_direct, write_by_map, cut_and_grow, punch, copy_into]
CASES = ([(nothing, "through", change) for change in CHANGES]
         + [(move, where_, write) for move in MOVES for where_ in ["through", "behind"]])


def hard_links(source, names):
    for name in names:
        trees.make_files(source / name / "a", {"h1": SIZE, "other": SIZE})
        os.link(source / name / "a/h1", source / name / "a/h2")


def test_a_write_through_another_hard_link_is_read(work, hot):
    """A file has two names; who has it open by the one sees what is written through the other."""
    with keyed_by_path("overlay", work) as source:
        hard_links(source, ["x"])
        trees.aged(source)
        with hot(source) as m, opened(m / "x/a/h1") as fd:
            os.pread(fd, SIZE, 0)
            m.settle()
            os.stat(m / "x/a/h2")
            write(m / "x/a/h2")
            drop_caches()
            readers.same_bytes((source / "x/a/h1").read_bytes(), os.pread(fd, SIZE, 0), 0, "h1")


@pytest.mark.parametrize("kind", ["overlay", "fuse"])
def test_changes_through_another_name(work, hot, kind):
    """Whatever happened to a file's names: who has it open sees what is changed by another one."""
    tops = {f"{move.__name__}-{where_}-{change.__name__}": (move, where_, change) for move, where_, change in CASES}
    with keyed_by_path(kind, work) as source:
        hard_links(source, tops)
        with hot(source, attr_timeout=0) as m:
            held = [Held(m, source, f"{n}/a/h1") for n in tops]
            names = {n: move((m.path if where_ == "through" else source) / n) for n, (move, where_, _) in tops.items()}
            trees.aged(source)
            wrong = wrong_now(m, source, "before", by_direct) + sum((h.wrong("before") for h in held), [])
            m.settle()
            for n, (_, _, change) in tops.items():
                change(m / n / names[n])
            wrong += sum((h.wrong("changed") for h in held), [])
            drop_caches()
            wrong += wrong_now(m, source, "opened now", by_direct)
            for h in held:
                h.close()
            m.restart()
            wrong += wrong_now(m, source, "after a remount", by_direct)
            assert not wrong, "\n".join(wrong)


# ---- file systems that take each other's place -----------------------------------------------------------------------

def squashfs_image(folder, name):
    image, top = folder / f"{name}.squashfs", folder / name
    trees.make_files(top, {"f": 0})
    trees.write(top / "f", trees.random_bytes(name, SIZE))
    run("mksquashfs", top, image, "-noappend", "-quiet", "-no-progress", "-all-time", "1700000000",
        "-mkfs-time", "1700000000")
    return image


def xfs_image(folder, name):
    image, top = folder / f"{name}.xfs", trees.make_files(folder / name, {"f": SIZE})
    (folder / "prototype").write_text(f"/dev/null\n0 0\nd--755 0 0\nf ---644 0 0 {top}/f\n$\n")
    run("truncate", "-s", "300M", image)
    run("mkfs.xfs", "-q", "-p", folder / "prototype", image)
    return image


def clone(image, name):
    """The image with other bytes in its file, and everything else the same."""
    copy = image.with_name(name + image.suffix)
    run("cp", "--sparse=always", image, copy)
    with opened(copy, os.O_RDWR) as fd, mmap.mmap(fd, 0) as view:
        at = view.find(trees.random_bytes("f", SIZE))
        assert at > 0, "the file is not in one piece"
        view[at:at + SIZE] = trees.random_bytes(name, SIZE)
    return copy


def two_images(folder, fstype):
    """Two file systems with a file `f` of one inode number, size and time, but other bytes."""
    if fstype == "squashfs":
        return [squashfs_image(folder, n) for n in ["one", "two"]]
    one = xfs_image(folder, "one")
    two = clone(one, "two")
    run("xfs_admin", "-U", "generate", two)
    return [one, two]


@pytest.mark.parametrize("fstype", ["squashfs", "xfs"])
def test_another_image_on_the_same_device(work, hot, fstype):
    """Mounted one after the other, with one cache: each has its own bytes."""
    images = two_images(work, fstype)
    with OneDevice(work, work / "disk") as device:
        for image in images + images[:1]:
            with contextlib.ExitStack() as mounted:
                mounted.enter_context(device.showing(image, fstype))
                truth = (trees.aged(device.path) / "f").read_bytes()
                m = mounted.enter_context(hot(device.path))
                for _ in range(2):
                    readers.same_bytes(truth, by_direct(m / "f"), 0, image.name)
                    m.settle()


def test_another_image_below_the_source(work, hot):
    """As above, on a device that is mounted below the source, while hotset stays mounted."""
    images = two_images(work, "squashfs")
    (work / "source").mkdir()
    with OneDevice(work, work / "source/disk") as device, hot(work / "source") as m:
        for image in images + images[:1]:
            with device.showing(image, "squashfs"):
                truth = (device.path / "f").read_bytes()
                for look in [contents, by_direct] * 2:
                    readers.same_bytes(truth, look(m / "disk/f"), 0, image.name)
                    m.settle()
