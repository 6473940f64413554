# SPDX-License-Identifier: Apache-2.0
"""Checks that run in child processes with a deadline.

A process that touches a hung FUSE mount sleeps where no signal reaches it, so whoever touches a mount must be
somebody we can give up on.  Every test body runs in a forked child (conftest does that), and a test forks its own
concurrent readers the same way.  The parent only ever waits with a deadline.

Each process that forks here is a *subreaper*: daemons that detach themselves become its children again.  So what
a test started can always be listed, ended by pid, and counted as left over.
"""

import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import traceback

import pytest

PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)


class ChildFailed(AssertionError):
    """The child raised; the text is its traceback."""


class Hung(AssertionError):
    """The child did not answer before its deadline; the text says where each process waits."""


def become_subreaper():
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _parents():
    """{pid: parent pid} of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    found[int(name)] = int(f.read().rsplit(b")", 1)[1].split()[1])
            except OSError:
                pass  # it ended meanwhile
    return found


def descendants(pid):
    """Every living process below `pid`, children before grandchildren."""
    parents, found = _parents(), [pid]
    for one in found:
        found += [p for p, parent in parents.items() if parent == one]
    return found[1:]


def reap():
    """Collect the exit status of children that ended and that nobody else waits for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def is_running(pid):
    """True while `pid` exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def wait_until(what, condition, timeout=20, interval=0.05):
    """Poll `condition` until it is true; it is an error if it never gets true.  Returns its value."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(interval)


def wait_gone(pid, timeout=20):
    """Wait until `pid` has ended (and collect it, where it is our child)."""
    def gone():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
        return not is_running(pid)
    wait_until(f"end of process {pid}\n{where(pid)}", gone, timeout)


def where(pid):
    """One line per thread: state and what it waits for.  For reports about hangs."""
    lines = []
    try:
        name = open(f"/proc/{pid}/comm").read().strip()
        for tid in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:64]:
            state = open(f"/proc/{pid}/task/{tid}/stat").read().rsplit(")", 1)[1].split()[0]
            try:
                stack = open(f"/proc/{pid}/task/{tid}/stack").read().split("\n")[:4]
            except OSError:
                stack = []
            calls = " < ".join(s.split(" ", 1)[-1].split("+")[0] for s in stack)
            lines.append(f"  {name}[{pid}/{tid}] {state} {calls}")
    except OSError:
        pass
    return "\n".join(lines)


class Child:
    """A function running in a forked child.  Never outlives its parent's interest: use result() or kill()."""

    def __init__(self, function, *args):
        self._read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            _child_main(write, function, args)
        os.close(write)
        self._answer = None

    def result(self, timeout=60):
        """What the function returned.  Raises what it raised (as text), or Hung."""
        end = time.monotonic() + timeout
        if not self._receive(end):
            text = "\n".join(filter(None, (where(p) for p in [self.pid] + descendants(self.pid))))
            raise Hung(f"no answer within {timeout} s:\n{text}")
        kind, value = self._answer
        self.wait(10)
        if kind == "ok":
            return value
        if kind == "skip":
            pytest.skip(value)
        raise ChildFailed(value)

    def _receive(self, end):
        data = b""
        while self._answer is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return False
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                self._answer = ("error", f"child {self.pid} ended without an answer")
                break
            data += chunk
            size = int.from_bytes(data[:8], "little")
            if len(data) >= 8 and len(data) - 8 >= size:
                self._answer = pickle.loads(data[8:8 + size])
        os.close(self._read)
        return True

    def is_running(self):
        return is_running(self.pid)

    def is_done(self):
        """True once it has answered (or ended)."""
        return self._answer is not None or bool(select.select([self._read], [], [], 0)[0])

    def wait(self, timeout=20):
        wait_gone(self.pid, timeout)

    def kill(self, timeout=20):
        """SIGKILL, and it must really end: a process that cannot be killed is a failure of the mount."""
        if is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        self.wait(timeout)


def _child_main(write, function, args):
    """The child's whole life: run, answer, leave without running anybody's exit handlers."""
    try:
        become_subreaper()
        answer = ("ok", function(*args))
    except pytest.skip.Exception as e:
        answer = ("skip", str(e))
    except BaseException:
        answer = ("error", _failure_text())
    try:
        payload = pickle.dumps(answer)
    except Exception:
        payload = pickle.dumps(("error", "answer cannot be pickled:\n" + traceback.format_exc()))
    try:
        with os.fdopen(write, "wb") as f:
            f.write(len(payload).to_bytes(8, "little") + payload)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _failure_text():
    """pytest's own rendering, which shows the values inside a failed assert."""
    info = pytest.ExceptionInfo.from_current()
    if isinstance(info.value, (ChildFailed, Hung)):
        return str(info.value)
    info.traceback = info.traceback[1:] or info.traceback
    return str(info.getrepr(style="short", chain=False))


def parallel(functions, timeout=120):
    """Run all the functions at once, each in its child; the list of what they returned."""
    children = [Child(f) for f in functions]
    try:
        end = time.monotonic() + timeout
        return [c.result(max(0.1, end - time.monotonic())) for c in children]
    finally:
        for c in children:
            if c.is_running():
                os.kill(c.pid, signal.SIGKILL)



def barrier(n):
    """A barrier for `n` forked processes; make it before the fork.  wait(seconds) breaks it rather than hanging."""
    return multiprocessing.get_context("fork").Barrier(n)
