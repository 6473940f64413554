# SPDX-License-Identifier: Apache-2.0
"""The source files of the tests: seeded random bytes (no two blocks alike, so that a byte from the wrong place shows),
and a tree of everything that is odd about files and names."""

import os
import time
import zlib
from pathlib import Path

import numpy as np

MIB = 1 << 20
GIB = 1 << 30
TRUSTED_AFTER = 2.2
"""hotset admits nothing of a file whose ctime is less than 2 s old."""

HUGE_SIZE = 4 * GIB + 300_001
HUGE_ISLANDS = [(0, 5000), (GIB + 5, 70_000), (2 * GIB - 3, 7), (4 * GIB - 33_333, 66_666), (HUGE_SIZE - 4097, 4097)]


def random_bytes(seed, size):
    """`size` bytes that depend on `seed` (text or number) only."""
    number = seed if isinstance(seed, int) else zlib.crc32(os.fsencode(seed))
    return np.random.Generator(np.random.PCG64(number)).bytes(size)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def make_files(folder, sizes):
    """Random files: {name: size}."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        write(folder / name, random_bytes(name, size))
    return folder


def aged(*paths):
    """Wait until nothing below the paths has a ctime that is too young to be trusted.  Returns the first path."""
    newest = 0
    for top in paths:
        for folder, folders, files in os.walk(top):
            newest = max([newest, os.lstat(folder).st_ctime]
                         + [os.lstat(os.path.join(folder, f)).st_ctime for f in files])
        newest = max(newest, os.lstat(top).st_ctime)
    time.sleep(max(0, newest + TRUSTED_AFTER - time.time()))
    return paths[0]


class Pool:
    """Folders with two files for tests that change them.  Many are made at once, so that the tests need not each wait
    until theirs is old enough."""

    SIZE = 2_000_003
    BATCH = 25

    def __init__(self, top):
        self.top, self.made, self.free = top, 0, []

    def take(self):
        if not self.free:
            numbers = range(self.made, self.made + self.BATCH)
            self.free = [make_files(self.top / str(n), {"f": self.SIZE, "g": self.SIZE}) for n in numbers]
            self.made += self.BATCH
            aged(self.top)
        return self.free.pop()


# ---- odd files -------------------------------------------------------------------------------------------------------

ODD_SIZES = [0, 1, 2, 4095, 4096, 4097, 65535, 65536, 65537, 200_001, MIB, MIB + 13, 3 * MIB + 777]
ODD_NAMES = [b"not\xff\xfeutf8", "snow \u2603 \u00fcn\u00ef\u6f22".encode(), b"with space", b"new\nline", b"com,ma=x",
             b"quote'\"$`", b"-dash", b"back\\slash", b"\\012", b"lat\xe9n", b"%41percent", b"x" * 255, b"tab\there",
             b".hidden", b"a..b", b"..."]


def make_odd_tree(top):
    """Bytes paths throughout: a name is bytes."""
    top = os.fsencode(top)
    os.makedirs(top)
    for size in ODD_SIZES:
        write(top + b"/size-%d" % size, random_bytes(size, size))
    for i, name in enumerate(ODD_NAMES):
        write(top + b"/" + name, random_bytes(name, 70_000 + i))
    os.mkdir(top + b"/d\xffr")
    write(top + b"/d\xffr/in a \xfe folder", random_bytes(7, 10_000))
    _sparse_files(top)
    _links(top)
    _deep_and_wide(top)
    _odd_metadata(top)
    return Path(os.fsdecode(top))


def _sparse_files(top):
    for name, size, islands in [(b"hole-middle", 3 * MIB + 5, [(0, 9000), (2 * MIB + 1, 12_345)]),
                                (b"hole-start", 2 * MIB, [(MIB, 8192)]),
                                (b"hole-end", 5 * MIB + 1, [(4096, 100_000)]),
                                (b"hole-only", MIB + 1, []),
                                (b"huge", HUGE_SIZE, HUGE_ISLANDS)]:
        with open(top + b"/" + name, "wb") as f:
            for off, length in islands:
                f.seek(off)
                f.write(random_bytes(off + 1, length))
            f.truncate(size)


def _links(top):
    os.makedirs(top + b"/links/sub")
    write(top + b"/links/first", random_bytes(b"hard", 123_456))
    os.link(top + b"/links/first", top + b"/links/sub/second")
    os.link(top + b"/links/first", top + b"/third")
    for name, target in [(b"to-file", b"first"), (b"up", b"../size-4097"), (b"dangling", b"no/such/file"),
                         (b"to-dir", b"sub"), (b"loop", b"loop"), (b"odd", b"\xff\xfe\n"), (b"long", b"y" * 1000)]:
        os.symlink(target, top + b"/links/" + name)


def _deep_and_wide(top):
    deep = top + b"/deep" + b"/level" * 60
    os.makedirs(deep)
    write(deep + b"/bottom", random_bytes(b"bottom", 65_000))
    os.makedirs(top + b"/wide")
    for i in range(2500):
        write(top + b"/wide/entry-%04d-with-a-longer-name" % i, b"")
    os.mkdir(top + b"/empty-folder")


def _odd_metadata(top):
    os.mkfifo(top + b"/fifo")
    for name, mode in [(b"mode-0000", 0), (b"mode-4755", 0o4755), (b"mode-2711", 0o2711), (b"mode-1777", 0o1777)]:
        write(top + b"/" + name, random_bytes(name, 5000))
        os.chmod(top + b"/" + name, mode)
    write(top + b"/owned", random_bytes(b"owned", 100))
    os.chown(top + b"/owned", 12345, 54321)
    write(top + b"/old", b"old")
    os.utime(top + b"/old", ns=(1, 123_456_789))
    write(top + b"/future", b"future")
    os.utime(top + b"/future", ns=(4_102_444_800_987_654_321, 4_102_444_800_987_654_321))
    write(top + b"/attributes", b"with attributes")
    os.setxattr(top + b"/attributes", b"user.text", b"value")
    os.setxattr(top + b"/attributes", b"user.empty", b"")
    os.setxattr(top + b"/attributes", b"user.binary", bytes(range(256)))


def regular_files(top):
    """Relative bytes paths of every regular file below `top` that has bytes or an odd name (the wide folder has 2,500
    empty ones, of which two are enough)."""
    top, found = os.fsencode(top), []
    for folder, _, files in os.walk(top):
        some = sorted(files)[:2] if folder.endswith(b"/wide") else sorted(files)
        for name in some:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found.append(os.path.relpath(path, top))
    return found


# ---- a model ---------------------------------------------------------------------------------------------------------

class Model:
    """A folder with one GGUF file; `slices` are (offset, length) of every expert of every bank."""

    def __init__(self, folder, name, slices):
        self.folder, self.name, self.slices = folder, name, slices


LAYERS, EXPERTS, N_EMBD, N_FF = 4, 24, 768, 581
Q4_K_BLOCK, Q4_K_BYTES = 256, 144


def make_model(folder):
    """Random Q4_K weights under the names that llama.cpp gives to stacked experts; an expert is 250,992 bytes."""
    import gguf
    folder.mkdir(parents=True)
    path = folder / "moe.gguf"
    writer = gguf.GGUFWriter(path, "qwen2moe")
    writer.add_block_count(LAYERS)
    writer.add_expert_count(EXPERTS)
    row = N_EMBD // Q4_K_BLOCK * Q4_K_BYTES
    for layer in range(LAYERS):
        for bank in ("gate", "up", "down"):
            name = f"blk.{layer}.ffn_{bank}_exps.weight"
            data = np.frombuffer(random_bytes(name, EXPERTS * N_FF * row), np.uint8).reshape(EXPERTS, N_FF, row)
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        norm = np.frombuffer(random_bytes(layer, N_EMBD), np.uint8).astype(np.float32)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Model(aged(folder), path.name, expert_slices(path))


def expert_slices(path):
    import gguf
    slices = []
    for tensor in gguf.GGUFReader(path).tensors:
        if "_exps" in tensor.name:
            length = int(tensor.n_bytes) // EXPERTS
            slices += [(int(tensor.data_offset) + i * length, length) for i in range(EXPERTS)]
    return slices
