# SPDX-License-Identifier: Apache-2.0
"""How a system test runs: in a mount namespace of its own, in a child with a deadline, swept up afterwards.

  - The whole run has a private mount namespace: nothing that a test mounts is seen outside, or outlives the run.
  - Every test body is a forked child (children.py).  A hung mount fails its test and never the run.
  - The `work` fixture is the test's folder on a real disk.  After the test, whatever is still mounted there, still
    running or still attached is ended; a test that passed and left something behind fails.
  - Source files are made once per session (fixtures in here) and are older than the 2 s that hotset waits before it
    trusts a ctime.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import children  # noqa: E402
import harness  # noqa: E402
import trees  # noqa: E402

DEADLINE = 90
CLONE_NEWNS = 0x00020000


def pytest_configure(config):
    config.addinivalue_line("markers", "deadline(seconds): how long the test's child may take (90)")
    config.addinivalue_line("markers", "slow: skipped unless HOTSET_SLOW is set")
    if os.geteuid() == 0:
        private_mounts()
        children.become_subreaper()


def private_mounts():
    """Leave the caller's mount namespace, and see to it that nothing propagates back."""
    if children.LIBC.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if not os.listdir(harness.FUSE_CONNECTIONS):
        subprocess.run(["mount", "-t", "fusectl", "none", str(harness.FUSE_CONNECTIONS)], check=False)


def pytest_collection_modifyitems(items):
    usable = os.geteuid() == 0 and os.path.exists("/dev/fuse")
    for item in items:
        if not usable:
            item.add_marker(pytest.mark.skip(reason="needs root and /dev/fuse"))
        if item.get_closest_marker("slow") and not os.environ.get("HOTSET_SLOW"):
            item.add_marker(pytest.mark.skip(reason="slow: set HOTSET_SLOW=1"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """The test body, in a child.  Fixtures are set up in here, before the fork, and never touch a mount."""
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    marker = pyfuncitem.get_closest_marker("deadline")
    child = children.Child(lambda: pyfuncitem.obj(**wanted) and None)
    failure = None
    try:
        child.result(marker.args[0] if marker else DEADLINE)
    except AssertionError as e:
        failure = str(e)
    if failure is not None:
        pyfuncitem.failed_here = True
        pytest.fail(failure, pytrace=False)
    return True


@pytest.fixture(scope="session")
def disk():
    """A folder on a real disk (O_DIRECT, holes, punching), that other users may pass through.  HOTSET_TEST_DIR says
    where; HOTSET_KEEP keeps what failed tests leave in it."""
    folder = Path(tempfile.mkdtemp(prefix="hotset-", dir=os.environ.get("HOTSET_TEST_DIR", "/var/tmp")))
    folder.chmod(0o755)
    yield folder
    if not os.environ.get("HOTSET_KEEP"):
        harness.remove(folder)


@pytest.fixture
def work(request, disk):
    """The test's own folder.  What is left in it is ended; after a pass that is itself a failure."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60]
    folder = Path(tempfile.mkdtemp(prefix=name + "-", dir=disk))
    folder.chmod(0o755)
    yield folder
    left = harness.sweep(folder)
    if getattr(request.node, "failed_here", False):
        return
    harness.remove(folder)
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def sources(disk):
    """The folder of all shared source files; tests only read it."""
    (disk / "sources").mkdir()
    return disk / "sources"


@pytest.fixture(scope="session")
def odd_tree(sources):
    """A tree of odd files and names."""
    return trees.aged(trees.make_odd_tree(sources / "odd"))


@pytest.fixture(scope="session")
def one_file(sources):
    """A folder with one file `f` of 16 MiB and 777 bytes, no two blocks alike."""
    return trees.aged(trees.make_files(sources / "one", {"f": (16 << 20) + 777}))


@pytest.fixture(scope="session")
def model(sources):
    """A folder with a GGUF mixture-of-experts file, and the slices of its experts."""
    return trees.make_model(sources / "model")


@pytest.fixture(scope="session")
def big_files(sources):
    """640 MiB in ten files: ten times the caches that are flooded with it."""
    return trees.aged(trees.make_files(sources / "big", {f"f{i}": 64 << 20 for i in range(10)}))


@pytest.fixture
def slow(work):
    """slow(folder, **options): a counting source over `folder`, for the length of a with block."""
    return lambda folder, **options: harness.SlowSource(folder, work / "slow", **options)


@pytest.fixture
def hot(work):
    """hot(source, **options): a mount at the test's `mnt`, with the test's `cache`."""
    return lambda source, **options: harness.Mount(source, work / "mnt", work / "cache", **options)


@pytest.fixture(scope="session")
def _pool(sources):
    return trees.Pool(sources / "pool")


@pytest.fixture
def source(_pool):
    """A folder that the test may change: files `f` and `g`, old enough to be trusted."""
    folder = _pool.take()
    yield folder
    harness.remove(folder)
