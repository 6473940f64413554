# SPDX-License-Identifier: Apache-2.0
"""Nothing that happens at the source, behind the mount or on the control socket makes the mount hang, or its daemon
unable to end.  HOTSET_TRIES=20 makes it 100 rounds of ending the daemon under load."""

import contextlib
import errno
import os
import random
import resource
import signal
import socket
import stat
import threading

import pytest

import trees
from children import Child, is_running, parallel, wait_gone, wait_until, where
from harness import TRIES, hotset, run
from readers import Direct, contents, direct, opened

KIB, MIB = 1 << 10, 1 << 20
SIZE = trees.Pool.SIZE
ENDS_WITHIN = 5
"""Seconds for a daemon that was asked to end."""


@pytest.fixture
def source(work):
    """Files `f` and `g` of 2 MB.  They are young, so nothing of them is kept, which matters to few tests in here."""
    return trees.make_files(work / "source", {"f": SIZE, "g": SIZE})


def answers(m):
    """The daemon answers who asks for its status, for a list and for attributes of the file system."""
    assert hotset("status", m.path, timeout=10).returncode == 0
    return Child(lambda: (os.listdir(m.path), os.statvfs(m.path).f_namemax)).result(10)


# ---- folders that were moved behind the mount ------------------------------------------------------------------------

def turn_round(source, m, names):
    """a/b becomes b/a and again a/b (or a/b/c c/a/b and again a/b/c), each seen through the mount, with a new folder
    where the last one had been: no name that was seen leads out of the circle any more."""
    first, last, rest = names[0], names[-1], os.path.join(*names[:-1])
    os.stat(m / rest / last / "f")
    os.rename(source / rest / last, source / last)
    os.rename(source / first, source / last / first)
    os.stat(m / last / rest)
    os.mkdir(source / last / rest / last)
    os.stat(m / last / rest / last)
    os.rmdir(source / last / rest / last)
    os.rename(source / last / first, source / first)
    os.rename(source / last, source / rest / last)
    os.stat(m / rest / last)


@pytest.fixture
def chain(source):
    """chain(names): the source, with the file `f` in folders of these names."""
    def make(names):
        folder = source.joinpath(*names)
        os.makedirs(folder)
        os.rename(source / "f", folder / "f")
        return source
    return make


def test_cat_below_folders_that_changed_places(hot, chain):
    """a/b became b/a and again a/b."""
    source = chain("ab")
    with hot(source, attr_timeout=0) as m:
        turn_round(source, m, "ab")
        assert Child(lambda: contents(m / "a/b/f")).result(10) == (source / "a/b/f").read_bytes()
        answers(m)


def read(path):
    return len(contents(path))


def change_mode(path):
    os.chmod(path, 0o600)


def append(path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        return os.write(fd, b"more")


def move(path):
    os.rename(path, path.with_name("moved"))


def make_new(path):
    trees.write(path.with_name("new"), b"new")


@pytest.mark.parametrize("names, act", [("ab", change_mode), ("ab", append), ("ab", os.unlink), ("ab", move),
                                        ("ab", make_new), ("abc", read), ("abcd", read)])
def test_whatever_is_done_in_a_circle_of_folders(hot, chain, names, act):
    """With the file held open since before: it ends, with the source's outcome, and the daemon answers."""
    source = chain(names)
    folder = os.path.join(*names)
    with hot(source, attr_timeout=0) as m, opened(m / folder / "f") as held:
        turn_round(source, m, names)
        Child(lambda: act(m / folder / "f")).result(10)
        assert Child(lambda: os.pread(held, 1000, 5000)).result(10)
        answers(m)
        assert sorted(os.listdir(m / folder)) == sorted(os.listdir(source / folder))


def test_a_written_file_in_a_circle_of_folders_is_seen(hot, chain):
    """A change behind the mount that stat sees looks for the path, too."""
    source = chain("ab")
    with hot(source, attr_timeout=0) as m:
        contents(m / "a/b/f")
        turn_round(source, m, "ab")
        trees.write(source / "a/b/f", b"written")
        assert Child(lambda: os.stat(m / "a/b/f").st_size).result(10) == 7
        answers(m)


def moved(folder):
    os.rename(folder / "a", folder / "b")
    return ["b/f"]


def moved_and_back(folder):
    yield moved(folder)
    os.rename(folder / "b", folder / "a")
    yield ["a/f"]


def swapped(folder):
    os.rename(folder / "a", folder / "x")
    os.rename(folder / "c", folder / "a")
    os.rename(folder / "x", folder / "c")
    yield ["a/f", "c/f"]


def swapped_twice(folder):
    yield from swapped(folder)
    yield from swapped(folder)


def subfolder_and_back(folder):
    os.rename(folder / "a/d", folder / "c/d")
    yield ["c/d/f"]
    os.rename(folder / "c/d", folder / "a/d")
    yield ["a/d/f"]


def file_and_back(folder):
    os.rename(folder / "a/f", folder / "c/g")
    yield ["c/g"]
    os.rename(folder / "c/g", folder / "a/f")
    yield ["a/f"]


def moved_away(folder):
    yield moved(folder)


def into_another(folder):
    os.rename(folder / "c", folder / "a/c")
    yield ["a/c/f"]
    os.rename(folder / "a/c", folder / "c")
    yield ["c/f"]


@pytest.mark.parametrize("moves", [moved_away, moved_and_back, swapped, swapped_twice, subfolder_and_back,
                                   file_and_back, into_another])
@pytest.mark.parametrize("options", [{"include": "a/**"}, {"exclude": "a/**"}], ids=["include", "exclude"])
def test_globs_go_by_the_path_that_a_file_has(hot, work, moves, options):
    """Whether a new open is cached is decided by where it is now, not by where its folder has been."""
    source = work / "source"
    for folder in ["a", "a/d", "c"]:
        trees.make_files(source / folder, {"f": 100_000})
    with hot(source, attr_timeout=0, **options) as m:
        for name in ["a/f", "a/d/f", "c/f"]:
            contents(m / name)
        for names in moves(source):
            for name in names:
                with m.counting() as c:
                    assert contents(m / name) == (source / name).read_bytes()
                wanted = name.startswith("a/") == ("include" in options)
                assert c["bypass_opens"] == (0 if wanted else 1), name


# ---- another kind of file under the name ------------------------------------------------------------------------------

def make(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))      # /dev/null
    elif kind == "symlink":
        os.symlink("g", path)
    elif kind == "folder":
        os.mkdir(path)
    else:
        trees.write(path, b"a file now" * 10_000)


def put(kind, path, reuse):
    """Another kind of file under the name; with the inode number of what was there, or surely not with it."""
    number = os.lstat(path).st_ino
    if not reuse:
        make(kind, path.with_name("spare"))
    os.rmdir(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
    if not reuse:
        os.rename(path.with_name("spare"), path)
        return
    for i in range(100):
        make(kind, path)
        if os.lstat(path).st_ino == number:
            return
        os.rename(path, path.with_name(f"spare{i}"))
    pytest.skip("this file system does not use inode numbers again")


def looks_like(path):
    """What a program finds there that waits for nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        return e.strerror
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            return os.listdir(fd)
        return stat.filemode(mode), os.read(fd, SIZE + 1)
    finally:
        os.close(fd)


KINDS = ["fifo", "socket", "device", "symlink", "folder"]
reused = pytest.mark.parametrize("reuse", [False, True], ids=["another number", "the same number"])


@reused
@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_file_where_a_file_was(hot, source, kind, reuse):
    """The next open finds what is there, however long the kernel believes in names."""
    with hot(source, attr_timeout=60) as m:
        contents(m / "f")
        put(kind, source / "f", reuse)
        assert Child(lambda: looks_like(m / "f")).result(10) == looks_like(source / "f")
        answers(m)


@pytest.mark.parametrize("kind, reuse", [(k, False) for k in KINDS] + [(k, True) for k in KINDS if k != "folder"])
def test_a_file_where_another_kind_was(hot, source, kind, reuse):
    """The kernel opens special files by itself, so that is seen once names are not believed any more."""
    make(kind, source / "p")
    with hot(source, attr_timeout=0.2) as m:
        assert looks_like(m / "p") == looks_like(source / "p")
        put("file", source / "p", reuse)
        wait_until("the mount has what the source has",
                   lambda: Child(lambda: looks_like(m / "p")).result(10) == looks_like(source / "p"), 10)
        answers(m)


def sleeps(child):
    """It waits for something, in the kernel."""
    return not child.is_done() and "\n" in where(child.pid) + "\n" and " R " not in where(child.pid)


@reused
def test_cat_of_a_fifo_where_a_file_was_can_be_killed(hot, source, reuse):
    """And one that is not killed gets what somebody writes into the FIFO."""
    with hot(source, attr_timeout=60) as m:
        contents(m / "f")
        put("fifo", source / "f", reuse)
        cat = Child(lambda: contents(m / "f"))
        wait_until("cat waits", lambda: sleeps(cat))
        cat.kill(10)
        cat = Child(lambda: (m / "f").open("rb").read())
        Child(lambda: trees.write(m / "f", b"through the mount")).result(10)
        assert cat.result(10) == b"through the mount"


def test_forty_fifos_where_files_were(hot, work):
    """More than the daemon has threads."""
    source = trees.make_files(work / "source", {f"f{i}": 100 for i in range(40)})
    with hot(source, attr_timeout=60) as m:
        for i in range(40):
            contents(m / f"f{i}")
            put("fifo", source / f"f{i}", False)
        cats = [Child(lambda i=i: contents(m / f"f{i}")) for i in range(40)]
        for cat in cats:
            wait_until("cat waits", lambda: sleeps(cat))
        assert len(answers(m)[0]) == 40
        for cat in cats:
            cat.kill(10)


@pytest.mark.deadline(60)
def test_making_a_file_where_somebody_makes_a_fifo(hot, source):
    """Between the kernel's look and ours it was not there.  O_NONBLOCK waits for nobody, as on the source."""
    def fifo_comes_and_goes():
        while True:
            with contextlib.suppress(OSError):
                os.mkfifo(source / "p")
            with contextlib.suppress(OSError):
                os.unlink(source / "p")

    def create():
        for _ in range(4000):
            with contextlib.suppress(OSError), opened(m / "p", os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK):
                os.unlink(source / "p")

    with hot(source, attr_timeout=0) as m:
        other = Child(fifo_comes_and_goes)
        parallel([create] * 2, 20)
        other.kill()
        answers(m)


# ---- the end of the daemon --------------------------------------------------------------------------------------------

def ended_in_time(m):
    """SIGTERM; the daemon is gone within seconds, and nothing of it is mounted any more."""
    os.kill(m.pid, signal.SIGTERM)
    wait_gone(m.pid, ENDS_WITHIN)
    m.pid = None


def until_it_ends(act):
    """Again and again, until the mount is gone; whatever else goes wrong is another test's."""
    rng = random.Random(os.getpid())
    while True:
        try:
            act(rng)
        except OSError as e:
            if e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT):
                return


def read_some(path, rng):
    with opened(path) as fd:
        os.pread(fd, MIB, rng.randrange(BIG))


def write_some(path, rng):
    with opened(path, os.O_RDWR) as fd:
        os.pwrite(fd, b"w" * 10_000, rng.randrange(BIG - 10_000))


def change_times(path, rng):
    os.utime(path)


def change_length(path, rng):
    os.truncate(path, rng.randrange(BIG))


BIG = 16 * MIB + 777
LOADS = {"times": [(8, "mount", read_some), (4, "source", change_times), (4, "mount", change_times)],
         "times behind": [(8, "mount", read_some), (8, "source", change_times)],
         "writers": [(8, "mount", read_some), (4, "mount", write_some), (4, "source", write_some)],
         "lengths": [(8, "mount", read_some), (4, "source", change_length), (4, "mount", change_length)]}


@pytest.fixture
def four_files(work):
    return trees.make_files(work / "source", {f"f{i}": BIG for i in range(4)})


def working(m, jobs):
    """Starts `count` processes for each (count, act), and waits until the mount has work."""
    children = [Child(until_it_ends, act) for count, act in jobs for _ in range(count)]
    wait_until("the load runs", lambda: (c := m.counters())["reads"] + c["bypass_reads"] > 50)
    return children


def sigterm_under(load, m, folder, rounds):
    tops = {"mount": m.path, "source": folder}

    def job(top, act):
        return lambda rng: act(top / f"f{rng.randrange(4)}", rng)

    for _ in range(rounds * TRIES):
        with m.start():
            jobs = working(m, [(count, job(tops[top], act)) for count, top, act in LOADS[load]])
            ended_in_time(m)
        for child in jobs:
            child.kill(10)


@pytest.mark.deadline(60 + 60 * TRIES)
@pytest.mark.parametrize("load, rounds", [("times", 5), ("writers", 2), ("lengths", 2)])
def test_sigterm_under_load(hot, four_files, load, rounds):
    """Readers, and many who change what they read: notifications wait for pages that reads hold, and nobody serves
    those any more."""
    sigterm_under(load, hot(four_files, attr_timeout=0), four_files, rounds)


@pytest.mark.deadline(60 + 60 * TRIES)
def test_sigterm_under_load_of_a_slow_source(hot, slow, four_files):
    """Where a read takes 20 ms, there is always one on its way."""
    with slow(four_files, latency_ms=20) as source:
        sigterm_under("times behind", hot(source.path, attr_timeout=0, mode="off"), four_files, 3)


@pytest.mark.deadline(60 + 60 * TRIES)
def test_sigterm_after_a_lazy_umount_under_load(hot, slow, four_files):
    """The readers came in before and work on; no mount is left that could be found and taken away."""
    with slow(four_files, latency_ms=20) as source:
        m = hot(source.path, attr_timeout=0, mode="off")
        for _ in range(3 * TRIES):
            with m.start():
                fds = [os.open(m / f"f{i}", os.O_RDONLY) for i in range(4)]

                def read_on(rng):
                    fd = fds[rng.randrange(4)]
                    os.fstat(fd), os.pread(fd, MIB, rng.randrange(BIG))

                jobs = working(m, [(8, read_on), (8, lambda rng: os.utime(four_files / f"f{rng.randrange(4)}"))])
                run("umount", "-l", m.path)
                ended_in_time(m)
            for child in jobs:
                child.kill(10)
            for fd in fds:
                os.close(fd)


class Stuck:
    """A mount over a source that holds all requests of one kind for forty files, while the file `hold` exists; `warm`
    is cached.  Each of the forty has a folder of its own, as the kernel may look up one name of a folder at a time."""

    N = 40
    KINDS = ["open", "fsync", "write", "lookup"]

    def __init__(self, hot, slow, work, folder, kind):
        self.kind, self.hold, self.ready = kind, work / "hold", work / "ready"
        self.truth = (folder / "warm").read_bytes()
        self.source = slow(folder, hold=self.hold, hold_glob="held", hold_ops=kind, writable=None)
        self.m = hot(self.source.path)

    @classmethod
    def files(cls, top):
        trees.make_files(top, {"warm": 4 * MIB})
        for i in range(cls.N):
            trees.make_files(top / str(i), {"held": 128 * KIB})
        return trees.aged(top)

    def __enter__(self):
        self.source.__enter__()
        self.m.start()
        direct(self.m / "warm", 0, len(self.truth))
        self.m.settle()
        return self

    def act(self, path, fd):
        if self.kind == "open":
            with opened(path) as fd:
                return len(os.pread(fd, 1000, 0))
        if self.kind == "lookup":
            return os.stat(path).st_size
        if self.kind == "fsync":
            return os.fsync(fd)
        if self.kind == "read":
            return len(os.pread(fd, 1000, 0))
        return os.pwrite(fd, b"w" * 1000, 0)

    def threads(self, n):
        """In a child: the files are opened, where that is not what is held; then `n` threads go together."""
        paths, found = [self.m / str(i) / "held" for i in range(n)], {}
        for path in paths:
            os.stat(path.parent)
        flags = {"read": os.O_RDONLY, "fsync": os.O_RDWR, "write": os.O_RDWR}
        fds = [os.open(path, flags[self.kind]) if self.kind in flags else -1 for path in paths]
        self.ready.touch()
        wait_until("the hold begins", self.hold.exists)
        running = [threading.Thread(target=lambda i=i: found.update({i: self.act(paths[i], fds[i])})) for i in range(n)]
        for t in running:
            t.start()
        for t in running:
            t.join()
        return found

    def begin(self, n):
        """A child with `n` threads that are held at the source when this returns."""
        child = Child(lambda: self.threads(n))
        wait_until("the child is ready", self.ready.exists)
        self.hold.touch()
        wait_until(f"{self.kind}s are held", lambda: self.source.stats()["held_now"] >= min(n, 32))
        return child

    def __exit__(self, *how):
        self.hold.unlink(missing_ok=True)
        self.m.__exit__(*how)
        # A daemon that has left without its answers is held by the kernel until they come.
        wait_until("the source is not busy", lambda: run("umount", self.source.path, check=False).returncode == 0)
        self.source.__exit__(*how)


@pytest.fixture
def stuck(hot, slow, work, sources):
    if not (sources / "stuck").exists():
        Stuck.files(sources / "stuck")
    return lambda kind: Stuck(hot, slow, work, sources / "stuck", kind)


def some_hits(m, truth, seed):
    """Right bytes by O_DIRECT, so that each asks the daemon; and by a new open each."""
    rng = random.Random(seed)
    for _ in range(100):
        off = rng.randrange(len(truth) - 70_000)
        with Direct(m / "warm") as d:
            assert d.read(off, 65_536) == truth[off:off + 65_536]


@pytest.mark.parametrize("kind", Stuck.KINDS)
def test_hits_do_not_wait_for_what_the_source_holds(stuck, kind):
    """Forty at once: more than the daemon has threads for what it cannot do without waiting."""
    with stuck(kind) as s:
        child = s.begin(s.N)
        with s.m.counting() as c:
            parallel([lambda i=i: some_hits(s.m, s.truth, i) for i in range(4)], 20)
        assert c["hits"] == c["reads"] >= 400
        answers(s.m)
        assert not child.is_done(), "they came back: nothing was held"
        s.hold.unlink()
        assert len(child.result(20)) == s.N


@pytest.mark.parametrize("kind, n, lazily", [("read", 1, False), ("fsync", 1, False), ("lookup", 1, False),
                                             ("open", 40, False), ("write", 1, True)])
def test_sigterm_while_the_source_holds(stuck, kind, n, lazily):
    """Mounted or after umount -l, one or many wait for the source, which does not answer: the daemon ends in time, and they get an error."""
    with stuck(kind) as s:
        child = s.begin(n)
        if lazily:
            run("umount", "-l", s.m.path)
        ended_in_time(s.m)
        child.kill(10)


def test_sigterm_after_a_lazy_umount_with_an_idle_reader(hot, source):
    """An open file alone keeps nobody."""
    with hot(source) as m, opened(m / "f"):
        run("umount", "-l", m.path)
        assert is_running(m.pid)
        ended_in_time(m)


# ---- limits of the shell that mounts ----------------------------------------------------------------------------------

def start_limited(m, which, soft, hard=resource.RLIM_INFINITY):
    """Mounted by a shell with a limit, which is not ours."""
    def start():
        resource.setrlimit(which, (soft, hard))
        m.start()
        return m.pid, m.minor
    m.pid, m.minor = Child(start).result(30)


def write_beyond(path):
    with opened(f"{path}-new", os.O_WRONLY | os.O_CREAT) as fd:
        return os.pwrite(fd, b"beyond", 3 * MIB)


def append_beyond(path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        return os.write(fd, b"beyond")


def truncate_beyond(path):
    os.truncate(path, 3 * MIB)


def fallocate_beyond(path):
    with opened(path, os.O_RDWR) as fd:
        os.posix_fallocate(fd, 0, 3 * MIB)


def copy_beyond(path):
    with opened(path) as a, opened(f"{path}-new", os.O_WRONLY | os.O_CREAT) as b:
        return os.copy_file_range(a, b, 100_000, 0, 3 * MIB)


def read_beyond(path):
    """Not the source's file grows by that, but its mirror."""
    return len(contents(path))


BEYOND = [write_beyond, append_beyond, truncate_beyond, fallocate_beyond, copy_beyond, read_beyond]


@pytest.mark.parametrize("act", BEYOND)
def test_a_limit_of_file_size_where_it_was_mounted(hot, source, act):
    """`ulimit -f` and mount: the limit is that shell's, and not that of those who write through the mount."""
    limited_mount(hot(source), source, act, resource.RLIM_INFINITY, [])


@pytest.mark.parametrize("act", [write_beyond, truncate_beyond])
def test_a_hard_limit_of_file_size_where_it_was_mounted(hot, source, act):
    """One that the daemon may not be able to leave: an error at worst, and only for those who write."""
    limited_mount(hot(source), source, act, MIB, ["EFBIG"])


def limited_mount(m, source, act, hard, also):
    """The act has the source's outcome (or what is allowed `also`), the daemon lives, and all bytes are right."""
    def outcome(path):
        try:
            return act(path)
        except OSError as e:
            return errno.errorcode[e.errno]

    if act is read_beyond:
        trees.aged(source)
    start_limited(m, resource.RLIMIT_FSIZE, MIB, hard)
    with m:
        want, got = Child(lambda: outcome(source / "f")).result(20), Child(lambda: outcome(m / "g")).result(20)
        assert got in [want] + also
        m.settle()
        if not also:
            assert m.counters()["cache_errors"] == 0
        assert m.status()["pid"] == m.pid
        for name in os.listdir(source):
            assert direct(m / name, 0, 4 * MIB) == (source / name).read_bytes()


def test_a_limit_of_file_size_of_the_writer(hot, source):
    """Whoever has one gets the source's error, and nobody else notices."""
    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        try:
            write_beyond(top / "f")
        except OSError as e:
            return e.strerror
    with hot(source) as m:
        said = []
        for top in [source, m.path]:
            said.append(Child(write).result(20))
        assert said[0] == said[1] == "File too large"
        answers(m)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_limit_of_processor_time_where_it_was_mounted(hot, source):
    """`ulimit -t` ends a program that runs wild; a mount that was used for a second is none."""
    m = hot(source)
    start_limited(m, resource.RLIMIT_CPU, 1)
    with m:
        with Direct(m / "f") as d:
            while is_running(m.pid) and cpu_seconds(m.pid) < 1.5:
                d.read(0, SIZE)
        assert m.status()["pid"] == m.pid


# ---- the control socket -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("clients, word", [(8, b""), (8, b'{"command": "status"}'), (60, b"")],
                         ids=["8 silent", "8 unfinished", "60 silent"])
def test_clients_that_say_nothing_hold_nobody_up(hot, source, clients, word):
    """Each would hold the socket for 2 s if they were served one after the other."""
    with hot(source) as m, contextlib.ExitStack() as stack:
        minor = os.minor(os.stat(m.path).st_dev)
        for _ in range(clients):
            s = stack.enter_context(socket.socket(socket.AF_UNIX))
            s.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                s.connect(f"/run/hotset/{minor}.sock")
                s.send(word)
        assert hotset("status", m.path, "--json", timeout=10).returncode == 0
        m.stop()
        m.start()
