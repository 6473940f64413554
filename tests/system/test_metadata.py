# SPDX-License-Identifier: Apache-2.0
"""Names and metadata are the source's: lstat, readdir, symlinks, extended attributes, statvfs."""

import errno
import os
import shutil
import stat
import subprocess

import pytest

from harness import LoopDevice, Mount, drop_caches, mounts_at, run
import trees

FIELDS = ["st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_blocks",
          "st_rdev"]


def facts(path):
    st = os.lstat(path)
    found = {f: getattr(st, f) for f in FIELDS}
    if stat.S_ISLNK(st.st_mode):
        found["target"] = os.readlink(path)
    else:
        found["xattrs"] = {n: os.getxattr(path, n) for n in os.listxattr(path)}
    if stat.S_ISDIR(st.st_mode):
        found["names"] = sorted(os.listdir(path))
        with os.scandir(path) as entries:
            found["types"] = {e.name: (e.inode(), e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries}
    return found


def everything(top):
    """{relative path: facts}, as bytes paths."""
    top = os.fsencode(top)
    found = {b".": facts(top)}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = facts(path)
    return found


def compare(source, mounted):
    want, got = everything(source), everything(mounted)
    assert want.keys() == got.keys()
    for name in want:
        assert want[name] == got[name], name


@pytest.mark.parametrize("fstype", ["plain", "ext4", "xfs", "btrfs"])
def test_lstat_readdir_symlinks_xattrs(work, odd_tree, fstype):
    if fstype == "plain":
        with Mount(odd_tree, work / "mnt", work / "cache") as m:
            compare(odd_tree, m.path)
            drop_caches()
            compare(odd_tree, m.path)
        return
    with LoopDevice(work / "a", fstype, "512M") as source:
        top = trees.make_odd_tree(source / "odd")
        os.makedirs(top / "nodes")
        os.mknod(top / "nodes/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(top / "nodes/socket", stat.S_IFSOCK | 0o600)
        with Mount(top, work / "mnt", work / "cache") as m:
            compare(top, m.path)
            drop_caches()
            compare(top, m.path)


def test_hard_links_are_one_file(work, odd_tree):
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        names = ["links/first", "links/sub/second", "third"]
        assert len({os.stat(m / n).st_ino for n in names}) == 1
        assert os.path.samefile(m / names[0], m / names[1])
        assert os.stat(m / names[2]).st_nlink == 3


def test_names_that_do_not_exist(work, odd_tree):
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        for name, error in [("nothing", errno.ENOENT), ("size-1/below", errno.ENOTDIR), ("links/loop", errno.ELOOP),
                            ("z" * 256, errno.ENAMETOOLONG), ("links/dangling", errno.ENOENT)]:
            with pytest.raises(OSError) as e:
                os.stat(m / name)
            assert e.value.errno == error, name
        with pytest.raises(OSError) as e:
            os.getxattr(m / "size-1", "user.nothing")
        assert e.value.errno == errno.ENODATA


def test_a_folder_of_many_names_is_listed_once_each(work, odd_tree):
    """readdirplus in pieces, while the reader rewinds and two readers take turns."""
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        want = set(os.listdir(odd_tree / "wide"))
        with os.scandir(m / "wide") as a, os.scandir(m / "wide") as b:
            first, second = [], []
            for one, other in zip(a, b):
                first.append(one.name), second.append(other.name)
        assert len(first) == len(second) == len(want) == 2500
        assert set(first) == set(second) == want


def test_statvfs(work, odd_tree):
    with LoopDevice(work / "a", "ext4", "256M") as source:
        (source / "f").write_bytes(bytes(5_000_000))
        with Mount(source, work / "mnt", work / "cache") as m:
            want, got = os.statvfs(source), os.statvfs(m.path)
            for field in ["f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_namemax"]:
                assert getattr(want, field) == getattr(got, field), field


def test_fifo_works_between_processes(work, odd_tree):
    """A special file is the kernel's, whatever file system its name is in."""
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        reader = subprocess.Popen(["cat", m / "fifo"], stdout=subprocess.PIPE)
        with open(m / "fifo", "wb") as f:
            f.write(b"through the fifo")
        assert reader.communicate(timeout=20)[0] == b"through the fifo"


def test_access_is_the_files_own_modes(work, odd_tree):
    """default_permissions: another user gets what the mode says, and no more."""
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        for name, status in [("size-4096", 0), ("mode-0000", 1)]:
            read = subprocess.run(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "cat", m / name],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
            direct = subprocess.run(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "cat",
                                     odd_tree / name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
            assert read.returncode == direct.returncode == status, name


def test_mount_options_of_the_source_are_kept(work):
    """libfuse adds nosuid,nodev by itself; the overlay has them only where the source has."""
    with LoopDevice(work / "a", "ext4", "64M") as source:
        for words in [(), ("nosuid", "nodev", "noexec")]:
            run("mount", "-o", "remount," + ",".join(words or ("suid", "dev", "exec")), source)
            with Mount(source, work / "mnt", work / "cache") as m:
                kept = {w for w in mounts_at(m.path)[-1]["options"]} & {"nosuid", "nodev", "noexec"}
                assert kept == set(words)


def test_read_only_mount(work, one_file):
    with Mount(one_file, work / "mnt", work / "cache", ro=None) as m:
        with pytest.raises(OSError) as e:
            os.open(m / "f", os.O_RDWR)
        assert e.value.errno == errno.EROFS
        assert "ro" in mounts_at(m.path)[-1]["options"]


@pytest.mark.skipif(not shutil.which("setfacl"), reason="no setfacl")
def test_an_acl_that_denies_is_enforced(hot, source):
    """Mode bits alone would let everybody read."""
    os.chmod(source / "f", 0o644)
    run("setfacl", "-m", "u:nobody:---", source / "f")
    with hot(source) as m:
        for path in [source / "f", m / "f"]:
            done = run("setpriv", "--reuid=nobody", "--clear-groups", "cat", path, check=False)
            assert done.returncode != 0 and "ermission denied" in done.stderr, path
        assert run("getfacl", "-cp", m / "f").stdout == run("getfacl", "-cp", source / "f").stdout
