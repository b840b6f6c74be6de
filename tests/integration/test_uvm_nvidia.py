"""A plan for managed memory in a program of CUDA, with a driver that prints the calls it gets."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pasta.processors.managed_plan import Allocation, Entry, LaunchKey, written
from tests.support.places import PROGRAMS, ROOT

SOURCE = PROGRAMS / "nvidia" / "fake_managed.c"
KEY, K = Allocation(4096), "_Z1kv"
PLAN = written(
    [
        Entry("read_mostly", KEY, 0, 4096),
        Entry("prefetch", KEY, 1024, 2048, LaunchKey(K, (4, 1, 1), 0)),
        Entry("evict", KEY, 0, 4096, LaunchKey(K, (4, 1, 1), 1)),
        Entry("pin", KEY, 0, 4096),
    ]
)
CALLS = """\
alloc 4096 1
advise 0x7000000 4096 1 for 2
advise 0x7000000 4096 3 for 2
{thread}prefetch 0x7000400 2048 to 2 in 0x51
{thread}launch 0x1 4 1 1 in 0x51
{thread}launch 0x2 4 1 1 in 0x51
launch ex 0x1 4 1 1 in 0x51
prefetch 0x7000000 4096 to -1 in 0x51
free 0x7000000
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cuda")
    compiler = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", "-Wall", "-Wextra"]
    driver = directory / "libcuda.so.1"
    subprocess.run(
        [*compiler, "-Werror", "-shared", "-fPIC", "-DFAKE_DRIVER", SOURCE, "-o", driver,
         "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-ldl"],
        check=True,
    )  # fmt: skip
    found = directory / "program"
    subprocess.run([*compiler, "-Werror", SOURCE, "-o", found, "-ldl"], check=True)
    return found


def run(pasta_preload: Any, program: Path, how: str, plan: Path | None = None) -> Any:
    options = ("-t", "kernel_freq", *(("--apply-uvm-plan", str(plan)) if plan else ()))
    where = {"LD_LIBRARY_PATH": str(program.parent)}
    done = pasta_preload(program, how, options=options, environment=where)
    assert done.exit_status == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "how", [pytest.param("dlsym", marks=pytest.mark.main), "address", "thread"]
)
def test_calls_around_launches(pasta_preload: Any, program: Path, tmp_path: Path, how: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    done = run(pasta_preload, program, how, plan)
    expected = CALLS.format(thread="per thread " if how == "thread" else "")
    assert done.stdout == expected
    assert any("4 of 4 entries applied, 4 calls" in line for line in done.lines)


def test_a_stream_that_is_captured_is_left_alone(
    pasta_preload: Any, program: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    done = run(pasta_preload, program, "capture", plan)
    alone = run(pasta_preload, program, "capture")
    without = [line for line in done.stdout.splitlines() if not line.startswith("advise")]
    assert "\n".join(without) + "\n" == alone.stdout and "prefetch" not in done.stdout
    assert any("2 of 4 entries applied" in line for line in done.lines)
    assert sum("the first with error 900" in line for line in done.lines) == 2


POOL = """
import ctypes, os, sys
pool = ctypes.CDLL(sys.argv[1])
alloc, release = pool.pasta_managed_alloc, pool.pasta_managed_free
alloc.restype = ctypes.c_void_p
alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
release.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
assert alloc(100, 0, None) is None
assert pool.pasta_managed_ready() == 1
MIB, BASE = 1 << 20, 0x7000000
one, two = alloc(100, 0, None), alloc(1 * MIB, 0, None)
assert (one, two) == (BASE, BASE + 512)  # parts of one segment of 32 MiB
other = alloc(100, 0, 0x51)  # another stream: another segment
assert other == BASE + 32 * MIB
large = alloc(33 * MIB, 0, None)  # a segment of 34 MiB
assert large == BASE + 64 * MIB
release(one, 100, 0, None)
assert alloc(400, 0, None) == one  # the same part again
release(one, 400, 0, None)
release(two, 1 * MIB, 0, None)
assert alloc(15 * MIB, 0, None) == BASE  # parts that were freed are joined
release(large, 33 * MIB, 0, None)
assert alloc(20 * MIB, 0, None) == large
release(12345, 1, 0, None)  # not of the pool
parts = [alloc(4096, 0, None) for _ in range(3000)]
assert len(set(parts)) == 3000
for part in parts[::2] + parts[1::2]:
    release(part, 4096, 0, None)
assert alloc(12 * MIB, 0, None) == min(parts)
share = pool.pasta_managed_record_stream
share.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
shared = alloc(40 * MIB, 0, None)
share(shared, 0x51)
release(shared, 40 * MIB, 0, None)
assert alloc(40 * MIB, 1, None) != shared  # of another device: nothing is awaited for it
mine = alloc(40 * MIB, 0, None)  # awaits the other stream
assert mine == shared
share(mine, None)  # its own stream
release(mine, 40 * MIB, 0, None)
assert alloc(40 * MIB, 0, None) == mine
sys.stdout.flush()
if not os.fork():  # a child has no driver
    release(mine, 40 * MIB, 0, None)
    os._exit(alloc(100, 0, None) is not None)
assert os.wait()[1] == 0
"""


def test_the_pool_of_managed_memory(program: Path, native: Path) -> None:
    """The allocator that torch.managed gives to PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", POOL, native / "libpasta_managed.so"],
        env={**os.environ, "LD_LIBRARY_PATH": str(program.parent)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mib = 1 << 20
    assert done.stdout.splitlines() == [
        *(f"alloc {size * mib} 1" for size in (32, 32, 34, 40, 40)), "synchronize"
    ]  # fmt: skip


def test_torch_gets_the_pool(native: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hooks = ROOT / "pasta" / "frameworks" / "torch" / "hooks.py"
    library = str(native / "libpasta_managed.so")
    space: dict[str, Any] = {
        "settings": json.dumps({"block": True, "managed": library, "quiet": False}),
        "__file__": str(hooks),
    }
    exec(compile(hooks.read_text(), hooks, "exec"), space)
    given: list[Any] = []
    memory = SimpleNamespace(
        CUDAPluggableAllocator=lambda *named: SimpleNamespace(
            named=named, allocator=lambda: SimpleNamespace(set_record_stream_fn=given.append)
        ),
        change_current_allocator=lambda allocator: given.append(allocator.named),
    )
    torch = SimpleNamespace(
        __version__="2.9", version=SimpleNamespace(cuda=None), cuda=SimpleNamespace(memory=memory)
    )
    space["_use_managed"](torch)
    assert (
        "torch.managed=true has no effect: torch 2.9 is not built for CUDA"
        in capfd.readouterr().err
    )
    torch.version.cuda = "13.0"
    pool = ctypes.CDLL(library)
    record = ctypes.cast(pool.pasta_managed_record_stream, ctypes.c_void_p).value
    ready = SimpleNamespace(
        pasta_managed_ready=lambda: True,
        pasta_managed_record_stream=pool.pasta_managed_record_stream,
    )
    with patch("ctypes.CDLL", {library: ready}.get):
        space["_use_managed"](torch)
    assert given == [record, (library, "pasta_managed_alloc", "pasta_managed_free")]
