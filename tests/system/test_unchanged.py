# SPDX-License-Identifier: Apache-2.0
"""What a program makes, asks and changes through the mount is what it would be on the source: modes and ACLs, inode
numbers across file systems, descriptors of files that have lost their name, limits and attributes."""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import subprocess

import pytest

import trees
from children import Child
from harness import REPO, LoopDevice, Mount, drop_caches, run
from readers import contents, opened

OTHER = 12345
"""A user, and the group of the same number, that own nothing else."""


@pytest.fixture
def source(work):
    """Files `f` and `g`.  They are young, so nothing of them is kept, which matters to no test in here."""
    return trees.make_files(work / "source", {"f": 200_000, "g": 200_000})


def error_of(act):
    """The name of the errno that `act` fails with, or None."""
    try:
        act()
    except OSError as e:
        return errno.errorcode[e.errno]


def as_user(act, uid=OTHER, gid=OTHER, groups=(), umask=None):
    """What `act` returns in a process of this user, or the errno of the OSError that it raises."""
    def run_it():
        if umask is not None:
            os.umask(umask)
        if uid != 0:
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        try:
            return act()
        except OSError as e:
            return errno.errorcode[e.errno]
    return Child(run_it).result(20)


def agree(source, mounted, where=""):
    """Two dicts of what was seen are equal; otherwise a line for each difference."""
    differ = [f"{what}: source {source.get(what)}, mount {mounted.get(what)}" for what in {**source, **mounted}
              if source.get(what) != mounted.get(what)]
    assert not differ, "\n".join([str(where)] + differ)


# ---- modes and ACLs of what is made ----------------------------------------------------------------------------------

ACL_ACCESS, ACL_DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
UNNAMED = 0xFFFFFFFF
R, W, X = 4, 2, 1
LIVELY = [(USER_OBJ, R | W | X, UNNAMED), (USER, R | W, OTHER), (GROUP_OBJ, R | X, UNNAMED), (GROUP, R | W | X, 777),
          (MASK, R | W | X, UNNAMED), (OTHERS, R, UNNAMED)]
"""A default ACL in which every entry differs from what any umask would leave."""
PLAIN = [(USER_OBJ, R | W | X, UNNAMED), (GROUP_OBJ, R | W, UNNAMED), (OTHERS, R | X, UNNAMED)]
"""One without a mask: only modes come from it."""


def acl(entries):
    """The value of the extended attribute, so that no package is needed."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


def acls_of(path, **how):
    """{attribute: entries} of the ACLs that a file has."""
    found = {}
    for name in [ACL_ACCESS, ACL_DEFAULT]:
        with contextlib.suppress(OSError):
            value = os.getxattr(path, name, **how)
            found[name] = [struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)]
    return found


def make_file(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def make_program(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777))


def make_secret(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))


def make_folder(path):
    os.mkdir(path, 0o777)


def make_sticky_folder(path):
    os.mkdir(path, 0o1775)


def make_node(path):
    os.mknod(path, stat.S_IFREG | 0o664)


def make_fifo(path):
    os.mkfifo(path, 0o666)


def make_socket(path):
    os.mknod(path, stat.S_IFSOCK | 0o777)


def make_tmpfile(path):
    """Without a name first."""
    fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)
    os.close(fd)


def make_symlink(path):
    os.symlink("nowhere", path)


MAKERS = [make_file, make_program, make_secret, make_folder, make_sticky_folder, make_node, make_fifo, make_socket,
          make_tmpfile, make_symlink]


def made(folder, uid, umask):
    """{maker: type and mode in octal, owner, group and ACLs of what it made} by that user under that umask."""
    def path_of(maker):
        return folder / f"{maker.__name__}-{uid}-{umask:03o}"

    def facts(path):
        st = os.lstat(path)
        return oct(st.st_mode), st.st_uid, st.st_gid, acls_of(path, follow_symlinks=False)

    failed = as_user(lambda: {m: e for m in MAKERS if (e := error_of(lambda: m(path_of(m))))}, uid, uid, umask=umask)
    return {m.__name__: failed.get(m) or facts(path_of(m)) for m in MAKERS}


@pytest.fixture
def makers_folders(source):
    """Two folders alike, one for the source's side and one for the mount's."""
    def make(default_acl):
        for name in ["a", "b"]:
            os.mkdir(source / name)
            os.chmod(source / name, 0o777)
            if default_acl:
                os.setxattr(source / name, ACL_DEFAULT, acl(default_acl))
        return source
    return make


def test_a_default_acl_decides_and_not_the_umask(hot, makers_folders):
    """umask 077 would leave no mask at all: the named user could not read what is made for it."""
    source = makers_folders(LIVELY)
    with hot(source) as m:
        as_user(lambda: make_file(source / "a/new"), 0, umask=0o077)
        as_user(lambda: make_file(m / "b/new"), 0, umask=0o077)
        want = acls_of(source / "a/new")
        assert (MASK, R | W, UNNAMED) in want[ACL_ACCESS], "the source itself heeds the umask"
        assert acls_of(source / "b/new") == want
        assert acls_of(m / "b/new") == want
        assert oct(os.stat(m / "b/new").st_mode) == oct(os.stat(source / "a/new").st_mode)


@pytest.mark.parametrize("uid", [0, OTHER], ids=["root", "another user"])
@pytest.mark.parametrize("default_acl", [None, LIVELY, PLAIN], ids=["no default ACL", "a default ACL", "one without mask"])
def test_modes_and_acls_of_what_is_made(hot, makers_folders, default_acl, uid):
    """File, folder, node, FIFO, socket, O_TMPFILE and link, under every umask, as the source makes them."""
    source = makers_folders(default_acl)
    with hot(source) as m:
        for umask in [0o077, 0o027, 0]:
            want = made(source / "a", uid, umask)
            got = made(m / "b", uid, umask)
            agree(want, got, f"umask {umask:03o}")
            for name in os.listdir(m / "b"):
                assert oct(os.lstat(source / "b" / name).st_mode) == oct(os.lstat(m / "b" / name).st_mode), name


def test_a_default_acl_set_through_the_mount_works_at_once(hot, makers_folders):
    """Set and taken away again, behind the mount and through it."""
    source = makers_folders(None)
    with hot(source, attr_timeout=0) as m:
        for there, set_by in [(True, m.path), (False, m.path), (True, source), (False, source)]:
            if there:
                os.setxattr(source / "a", ACL_DEFAULT, acl(LIVELY)), os.setxattr(set_by / "b", ACL_DEFAULT, acl(LIVELY))
            else:
                os.removexattr(source / "a", ACL_DEFAULT), os.removexattr(set_by / "b", ACL_DEFAULT)
            want, got = made(source / "a", OTHER, 0o077), made(m / "b", OTHER, 0o077)
            agree(want, got, f"set there: {there}, by {set_by}")
            for folder in ["a", "b"]:
                for name in os.listdir(source / folder):
                    run("rm", "-rf", source / folder / name)


def make_setgid_file(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o2775))


def make_setgid_node(path):
    os.mknod(path, stat.S_IFREG | 0o2775)


def make_setgid_fifo(path):
    os.mkfifo(path, 0o2775)


def make_setgid_folder(path):
    os.mkdir(path, 0o2775)


def make_setgid_tmpfile(path):
    fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o2775)
    os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)
    os.close(fd)


def chmod_setgid(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664))
    os.chmod(path, 0o2775)


@pytest.mark.parametrize("make", [make_setgid_file, make_setgid_node, make_setgid_fifo, make_setgid_folder,
                                  make_setgid_tmpfile, chmod_setgid])
def test_setgid_for_the_members_of_the_group_only(hot, makers_folders, make):
    """A member may make it so, supplementary membership included; anybody else loses it.  In a folder of the group that
    hands it on, in one that does not, and in one that only members may write to."""
    source = makers_folders(None)
    with hot(source, attr_timeout=0) as m:
        want, got = {}, {}
        for mode in [0o2777, 0o777, 0o2770]:
            for name in ["a", "b"]:
                os.chown(source / name, 0, 1000)
                os.chmod(source / name, mode)
            for who, gid, groups in [("supplementary", 65534, [1000]), ("primary", 1000, []),
                                     ("stranger", 65534, [1001, 1002])]:
                for found, folder in [(want, source / "a"), (got, m / "b")]:
                    path = folder / f"{who}-{mode:o}"
                    error = as_user(lambda: make(path), 65534, gid, groups, umask=0)
                    st = None if error else os.lstat(path)
                    found[path.name] = error or (oct(st.st_mode), st.st_uid, st.st_gid)
        agree(want, got)


# ---- file systems below the source -----------------------------------------------------------------------------------

def fill(folder, name):
    """Made in one order, so that file systems of one kind give the same numbers; no two of the same bytes."""
    trees.write(folder / "file", trees.random_bytes(f"{name}file", 70_000))
    os.link(folder / "file", folder / "twin")
    os.makedirs(folder / "folder/below")
    trees.write(folder / "folder/below/deep", trees.random_bytes(f"{name}deep", 5000))
    os.mkdir(folder / "point")


@contextlib.contextmanager
def nested(work):
    """An ext4 with an ext4, a btrfs with subvolumes and a snapshot, and two tmpfs in one another below it."""
    with contextlib.ExitStack() as stack:
        def put(where, argv):
            run("mount", *argv, where)
            stack.callback(run, "umount", where)
            return where

        source = stack.enter_context(LoopDevice(work / "outer", "ext4", "64M"))
        fill(source, "outer")
        for name in ["disk", "btrfs", "memory"]:
            os.mkdir(source / name)
        disk = put(source / "disk", ["--bind", stack.enter_context(LoopDevice(work / "inner", "ext4", "64M"))])
        fill(disk, "disk")
        memory = put(source / "memory", ["-t", "tmpfs", "-o", "size=4M", "none"])
        fill(memory, "memory")
        fill(put(memory / "point", ["-t", "tmpfs", "-o", "size=4M", "none"]), "inner memory")
        btrfs = put(source / "btrfs", ["--bind", stack.enter_context(LoopDevice(work / "other", "btrfs", "128M"))])
        fill(btrfs, "btrfs")
        run("btrfs", "subvolume", "create", btrfs / "sub")
        fill(btrfs / "sub", "sub")
        run("btrfs", "subvolume", "create", btrfs / "sub/within")
        fill(btrfs / "sub/within", "within")
        run("btrfs", "subvolume", "snapshot", btrfs / "sub", btrfs / "folder/snapshot")
        trees.write(btrfs / "folder/snapshot/file", trees.random_bytes("snapshot", 70_000))
        yield source


def walk(top):
    """{relative path: lstat} of everything, the top itself as "."."""
    found = {".": os.lstat(top)}
    for folder, folders, files in os.walk(top, onerror=print):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = os.lstat(path)
    return found


def forget_everything():
    """Names, inodes and pages that nobody holds: the kernel asks anew."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def test_find_finds_everything_in_nested_file_systems(work):
    """No "File system loop detected", nothing skipped, and no other complaint."""
    with nested(work) as source, Mount(source, work / "mnt", work / "cache") as m:
        want = run("find", source, "-printf", "%P %y %n %s\\n")
        got = run("find", m.path, "-printf", "%P %y %n %s\\n", check=False)
        assert got.stderr == want.stderr == "" and got.returncode == 0
        assert sorted(got.stdout.splitlines()) == sorted(want.stdout.splitlines())


def test_inode_numbers_are_one_to_one_in_nested_file_systems(work):
    """Two files have one number exactly where they are one file; those of the root file system keep their own; and
    they stay what they were when the kernel has forgotten them."""
    with nested(work) as source, Mount(source, work / "mnt", work / "cache") as m:
        want, got = walk(source), walk(m.path)
        assert want.keys() == got.keys()
        assert len({st.st_dev for st in got.values()}) == 1
        for name, st in want.items():
            if st.st_dev == want["."].st_dev:
                assert got[name].st_ino == st.st_ino, name
        to_mount, to_source = {}, {}
        for name, st in want.items():
            key, number = (st.st_dev, st.st_ino), got[name].st_ino
            assert to_mount.setdefault(key, number) == number, f"{name}: one file, two numbers"
            first = to_source.setdefault(number, (key, name))
            assert first[0] == key, f"{name} and {first[1]}: two files, one number"
            assert got[name].st_nlink == st.st_nlink, name
        forget_everything()
        assert {n: st.st_ino for n, st in walk(m.path).items()} == {n: st.st_ino for n, st in got.items()}


def entries(top):
    """{relative path: whether the entry's number is that of the file}."""
    found = {}
    for folder, _, _ in os.walk(top):
        with os.scandir(folder) as listed:
            found.update({os.path.relpath(e.path, top): e.inode() == os.lstat(e.path).st_ino for e in listed})
    return found


def test_readdir_and_stat_agree_in_nested_file_systems(work):
    """Where they do on the source: at the root of a mount its entry has the number of the folder below."""
    with nested(work) as source, Mount(source, work / "mnt", work / "cache") as m:
        want, got = entries(source), entries(m.path)
        assert want.keys() == got.keys()
        assert [name for name, same in want.items() if same and not got[name]] == []
        forget_everything()
        with os.scandir(m / "memory/folder") as listed:     # now nobody has looked them up before
            assert {e.name: e.inode() for e in listed} == {"below": os.lstat(m / "memory/folder/below").st_ino}


def test_copies_and_comparisons_of_nested_file_systems(work):
    """cp -a makes hard links of what has one number, and cmp calls it equal without a look: both are to be right."""
    with nested(work) as source, Mount(source, work / "mnt", work / "cache") as m:
        assert run("cmp", "-s", m / "file", m / "disk/file", check=False).returncode == 1
        assert run("cmp", "-s", m / "btrfs/sub/file", m / "btrfs/folder/snapshot/file", check=False).returncode == 1
        run("cp", "-a", m.path, work / "copy")
        assert run("diff", "-r", source, work / "copy", check=False).stdout == ""
        assert os.path.samefile(work / "copy/disk/file", work / "copy/disk/twin")


# ---- descriptors whose file has no name any more ---------------------------------------------------------------------

def unlink(path):
    os.unlink(path)


def replace(path):
    trees.write(path.with_name("new"), b"another file")
    os.rename(path.with_name("new"), path)


def everything_works(fd, data):
    """What a descriptor can do on a file system, deleted file or not."""
    st = os.fstat(fd)
    assert (st.st_size, st.st_nlink) == (len(data), 0)
    assert os.pread(fd, 100_000, 5000) == data[5000:105_000]
    os.fchmod(fd, 0o640)
    os.utime(fd, ns=(1, 2))
    os.setxattr(fd, "user.still", b"here")
    os.fsync(fd)
    st = os.fstat(fd)
    assert (st.st_mode & 0o777, st.st_mtime_ns, os.getxattr(fd, "user.still")) == (0o640, 2, b"here")
    with opened(f"/proc/self/fd/{fd}") as again:
        assert os.pread(again, 1000, 0) == data[:1000]


@pytest.mark.parametrize("closed", [[1], [0], [2, 1], [2, 0], [0, 1], [1, 2]], ids=lambda c: "closed " + str(c))
@pytest.mark.parametrize("lose", [unlink, replace])
def test_descriptors_of_a_file_that_lost_its_name_behind_the_mount(hot, source, lose, closed):
    """Each goes on until it is closed, whichever of the others is closed first."""
    data = (source / "f").read_bytes()
    with hot(source, attr_timeout=0) as m:
        fds = [os.open(m / "f", os.O_RDWR if i == 0 else os.O_RDONLY) for i in range(max(2, len(closed) + 1))]
        lose(source / "f")
        assert error_of(lambda: os.stat(m / "f")) == (None if lose is replace else "ENOENT")
        for i in closed:
            os.close(fds[i])
        for i in set(range(len(fds))) - set(closed):
            everything_works(fds[i], data)
            os.close(fds[i])


def test_a_folder_that_was_removed_behind_the_mount(hot, source):
    """Who holds it sees it empty, as on the source."""
    os.mkdir(source / "d")
    with hot(source, attr_timeout=0) as m:
        fds = [os.open(m / "d", os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
        os.rmdir(source / "d")
        assert error_of(lambda: os.stat(m / "d")) == "ENOENT"
        os.close(fds[1])
        assert os.fstat(fds[0]).st_nlink == 0
        assert os.listdir(fds[0]) == []
        os.close(fds[0])


# ---- smaller differences ---------------------------------------------------------------------------------------------

def falloc(path):
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.posix_fallocate(fd, 0, 1 << 20)


def write(path):
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        assert os.write(fd, b"x" * (1 << 20)) == 1 << 20
        os.fsync(fd)


def write_direct(path):
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        assert os.write(fd, mmap.mmap(-1, 1 << 20)) == 1 << 20


def copy_range(path):
    with opened(path.with_name("filler")) as a, opened(path, os.O_RDWR | os.O_CREAT) as b:
        done = 0
        while done < 1 << 20:
            done += os.copy_file_range(a, b, (1 << 20) - done, done, done)
        os.fsync(b)


def fill_up(path):
    """As much as this user may write."""
    with opened(path, os.O_WRONLY | os.O_CREAT) as fd:
        for step in [1 << 20, 4096]:
            with contextlib.suppress(OSError):
                while os.write(fd, b"f" * step):
                    pass
        os.fsync(fd)


def set_xattr(path):
    """Too large for the inode (but not for a small block), and unlike any other, so that no block is shared."""
    for i in range(20):
        os.setxattr(path.with_name(f"{path.name}{i}"), "user.large", trees.random_bytes(f"{path}{i}", 800))


def make_folders(path):
    for i in range(20):
        os.mkdir(path.with_name(f"{path.name}-{i}"))


TAKES_BLOCKS = [falloc, write, write_direct, copy_range, set_xattr, make_folders]


@pytest.fixture
def full_disk(work):
    """An ext4 of which a fifth is root's, with a folder that `OTHER` has filled as far as they may."""
    with LoopDevice(work / "a", "ext4", "64M", ["-m", "20"]) as disk:
        os.mkdir(disk / "d")
        os.chmod(disk / "d", 0o777)
        for name in [f"{side}{i}" for side in "ab" for i in range(20)]:
            (disk / "d" / name).touch()
            os.chown(disk / "d" / name, OTHER, OTHER)
        assert as_user(lambda: fill_up(disk / "d/filler")) is None
        yield disk


def test_fallocate_leaves_roots_reserve_alone(work, full_disk):
    """Another user gets the source's ENOSPC, while root may go on."""
    with Mount(full_disk, work / "mnt", work / "cache") as m:
        assert as_user(lambda: falloc(full_disk / "d/a")) == "ENOSPC"
        assert as_user(lambda: falloc(m / "d/b")) == "ENOSPC"
        assert error_of(lambda: falloc(m / "d/roots")) is None


@pytest.mark.parametrize("take", TAKES_BLOCKS)
@pytest.mark.parametrize("uid", [0, OTHER], ids=["root", "another user"])
def test_roots_reserve_is_roots(work, full_disk, take, uid):
    """Whatever takes blocks does so with its user's rights."""
    with Mount(full_disk, work / "mnt", work / "cache") as m:
        want = as_user(lambda: take(full_disk / "d/a"), uid)
        assert want == (None if uid == 0 else "ENOSPC")
        assert as_user(lambda: take(m / "d/b"), uid) == want


def chown_nothing(path):
    os.lchown(path, -1, -1)


def chown_by_descriptor(path):
    with opened(path) as fd:
        os.fchown(fd, -1, -1)


@pytest.fixture
def alike(source):
    """f and g: two files with every bit that a chown may take away; also two folders and two links."""
    for name in ["f", "g"]:
        os.chmod(source / name, 0o6775)
        os.mkdir(source / f"folder-{name}")
        os.symlink("nowhere", source / f"link-{name}")
    return source


@pytest.mark.parametrize("act, prefix", [(chown_nothing, ""), (chown_nothing, "folder-"), (chown_nothing, "link-"),
                                         (chown_by_descriptor, ""), (chown_by_descriptor, "folder-")])
def test_chown_to_nobody_moves_the_ctime(hot, alike, act, prefix):
    """chown(-1, -1) changes no owner, but the ctime, and takes the setuid bits as on the source; by anybody."""
    def said(path, uid):
        before = os.lstat(path)
        error = as_user(lambda: act(path), uid)
        after = os.lstat(path)
        return {"error": error, "ctime moved": after.st_ctime_ns > before.st_ctime_ns, "mode": oct(after.st_mode),
                "mtime moved": after.st_mtime_ns > before.st_mtime_ns, "owner": (after.st_uid, after.st_gid)}
    with hot(alike, attr_timeout=0) as m:
        want = said(alike / f"{prefix}f", 0)
        assert want["ctime moved"], "not even on the source"
        agree(want, said(m / f"{prefix}g", 0))
        agree(said(alike / f"{prefix}f", OTHER), said(m / f"{prefix}g", OTHER), "another user")


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_GETVERSION = 0x80086601, 0x40086602, 0x80087601
FS_IOC_FSGETXATTR = 0x801C581F
NODUMP, NOATIME = 0x40, 0x80


def asked(path, request, size=8):
    """What the ioctl fills in and what it leaves alone (some write less than their number says: programs have no more
    room), or the name of its errno."""
    with opened(path) as fd:
        try:
            return fcntl.ioctl(fd, request, b"\xff" * size).hex()
        except OSError as e:
            return errno.errorcode[e.errno]


def set_flags(path, flags):
    """Those two; the others stay."""
    with opened(path) as fd:
        others = struct.unpack("Q", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0] & ~(NODUMP | NOATIME)
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("Q", others | flags))


@pytest.mark.parametrize("request_, size", [(FS_IOC_GETFLAGS, 8), (FS_IOC_GETVERSION, 8), (FS_IOC_FSGETXATTR, 28)],
                         ids=["GETFLAGS", "GETVERSION", "FSGETXATTR"])
def test_attributes_that_lsattr_asks_for(work, request_, size):
    """Of files and folders, by root and by another user, as the source has them; also after they changed behind."""
    with LoopDevice(work / "a", "ext4", "32M") as source:
        fill(source, "")
        with Mount(source, work / "mnt", work / "cache") as m:
            for flags in [NODUMP, NODUMP | NOATIME, 0]:
                for name in ["file", "folder"]:
                    set_flags(source / name, flags)
                    want = asked(source / name, request_, size)
                    assert not want.startswith("E"), "not even on the source"
                    assert asked(m / name, request_, size) == want, (name, flags)
                    assert as_user(lambda: asked(m / name, request_, size)) == want, (name, flags)


def test_lsattr(work):
    """-R goes over the tree; -v asks for the version too."""
    with LoopDevice(work / "a", "ext4", "32M") as source:
        fill(source, "")
        with Mount(source, work / "mnt", work / "cache") as m:
            for argv in [["lsattr", "-R", "."], ["lsattr", "-v", "-d", "folder", "file"]]:
                want, got = [subprocess.run(argv, cwd=top, capture_output=True, text=True, timeout=20)
                             for top in [source, m.path]]
                assert (got.returncode, got.stdout, got.stderr) == (want.returncode, want.stdout, want.stderr)


def test_unknown_ioctls_fail_cleanly(hot, source):
    """With the errno that any file system has for them."""
    with hot(source) as m:
        for path in [m / "f", m.path]:
            assert asked(path, 0x80045A5A, 4) == "ENOTTY"


def test_reads_do_not_move_the_atime(hot, source):
    """By design, on a source that would move it."""
    os.utime(source / "f", ns=(10 ** 18, 10 ** 18))
    with hot(source) as m:
        as_user(lambda: contents(m / "f"))
        drop_caches()
        contents(m / "f")
        assert os.stat(source / "f").st_atime_ns == os.stat(m / "f").st_atime_ns == 10 ** 18


def test_the_readme_says_that_reads_do_not_move_the_atime():
    assert "atime" in (REPO / "README.md").read_text()
