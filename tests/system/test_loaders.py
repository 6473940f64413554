# SPDX-License-Identifier: Apache-2.0
"""Real loaders see the same: gguf, safetensors, numpy memmap; and the plain tools cp, dd, tar, cmp."""

import os
import subprocess

import numpy as np
import pytest

import trees
from harness import Mount, drop_caches, run


@pytest.fixture(scope="module")
def loadables(sources, model):
    """One file for each loader, in the folder of the GGUF model."""
    from safetensors.numpy import save_file
    a = np.frombuffer(trees.random_bytes("a", 6_000_000), np.uint16).reshape(1500, 2000)
    b = np.frombuffer(trees.random_bytes("b", 1_234_560), np.uint8).reshape(3, -1)
    save_file({"layer.a": a, "layer.b": b, "scalar": np.array(7, np.int64)}, model.folder / "two.safetensors")
    np.save(model.folder / "array.npy", np.frombuffer(trees.random_bytes("npy", 8_000_000), np.int32).reshape(1000, -1))
    return trees.aged(model.folder)


def gguf_tensors(folder):
    import gguf
    return {t.name: (tuple(t.shape), t.data.tobytes()) for t in gguf.GGUFReader(folder / "moe.gguf").tensors}


def safetensors(folder):
    from safetensors import safe_open
    with safe_open(folder / "two.safetensors", framework="numpy") as f:
        whole = {k: (f.get_tensor(k).shape, f.get_tensor(k).tobytes()) for k in f.keys()}
        whole["slice"] = f.get_slice("layer.a")[100:130, 17:900].tobytes()
        return whole


def memmap(folder):
    m = np.load(folder / "array.npy", mmap_mode="r")
    rows = np.random.default_rng(1).integers(0, len(m), 50)
    return m.shape, m[rows].tobytes(), m.tobytes()


@pytest.mark.parametrize("load", [gguf_tensors, safetensors, memmap])
def test_loader_cold_warm_and_restarted(work, loadables, load):
    want = load(loadables)
    with Mount(loadables, work / "mnt", work / "cache") as m:
        assert load(m.path) == want
        m.settle()
        drop_caches()
        with m.counting() as c:
            assert load(m.path) == want
        assert c["hit_bytes"] > 0 and c["source_read_bytes"] <= c["read_bytes"] // 50
        m.restart()
        drop_caches()
        assert load(m.path) == want


@pytest.mark.parametrize("copy", [["cp", "-r", "--sparse=auto"], ["cp", "-r", "--reflink=auto", "--sparse=never"]])
def test_cp_makes_the_same_files(work, loadables, copy):
    with Mount(loadables, work / "mnt", work / "cache") as m:
        for state in ["cold", "warm"]:
            run(*copy, m.path, work / state, timeout=60)
            run("diff", "-r", loadables, work / state, timeout=60)
            m.settle()
            drop_caches()


@pytest.mark.parametrize("arguments", [["bs=1M"], ["bs=1M", "iflag=direct"], ["bs=12345"],
                                       ["bs=64K", "skip=3", "count=99"]])
def test_dd(work, loadables, arguments):
    with Mount(loadables, work / "mnt", work / "cache") as m:
        for _ in ["cold", "warm"]:
            for folder, out in [(m.path, work / "mounted"), (loadables, work / "plain")]:
                run("dd", f"if={folder}/array.npy", f"of={out}", "status=none", *arguments)
            run("cmp", work / "mounted", work / "plain")
            m.settle()
            drop_caches()


def test_tar_of_the_odd_tree(work, odd_tree):
    """tar sees names, modes, owners, times, links and attributes at once."""
    def tar(folder):
        options = ["--sort=name", "--xattrs", "--pax-option=delete=atime,exthdr.name=%d/PaxHeaders/%f"]
        return subprocess.run(["tar", "-C", folder, *options, "--exclude=./huge", "-cf", "-", "."],
                              stdout=subprocess.PIPE, timeout=60, check=True).stdout
    with Mount(odd_tree, work / "mnt", work / "cache") as m:
        want = tar(odd_tree)
        assert tar(m.path) == want
        m.settle()
        drop_caches()
        assert tar(m.path) == want


def test_exec_from_the_mount(work):
    """A program and its pages come through the mount."""
    source = work / "source"
    source.mkdir()
    run("cp", "/bin/sort", source / "sort")
    trees.aged(source)
    with Mount(source, work / "mnt", work / "cache") as m:
        for _ in ["cold", "warm"]:
            assert run(m / "sort", os.devnull).returncode == 0
            assert run(m / "sort", "--version").stdout == run("/bin/sort", "--version").stdout
            m.settle()
            drop_caches()
