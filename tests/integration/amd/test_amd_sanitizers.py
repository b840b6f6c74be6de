"""The AMD source and the replayer, compiled with ASan and UBSan, and with TSan."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shim.build import Compiler, libpasta_amd
from tests.support.amd_replayer import Replayer, build
from tests.support.amd_samples import D1, HOST, KERNELS, S, cut_short, everything
from tests.support.amd_stream import Stream, recorded
from tests.support.c_builds import BUILDS, Build
from tests.support.places import DATA
from tests.support.played import LIBRARY, Played, play

RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
pytestmark = pytest.mark.sanitizers

Sanitized = Callable[[Stream], Played]


@pytest.fixture(scope="module", params=BUILDS[1:], ids=lambda b: b.name)
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Sanitized:
    made: Build = request.param
    directory = tmp_path_factory.mktemp(made.name)
    if not made.works(directory):
        pytest.skip(f"this compiler has no {made.flags[-1]}")
    (directory / "libpasta.so").symlink_to(LIBRARY)
    compiler = os.environ.get("CC", "cc").split()
    libpasta_amd(Compiler(tuple(compiler), (*made.flags, "-O0", "-g")), directory)
    replayer: Replayer = build(directory, *made.flags, "-O0")
    asked = [*compiler, f"-print-file-name={RUNTIMES[made.name]}"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    def run(stream: Stream) -> Played:
        session = tmp_path_factory.mktemp("session")
        return play(
            [replayer.program, stream.write(session / "stream.txt")],
            session,
            LD_PRELOAD=f"{Path(runtime).resolve()}:{LIBRARY}",
            **replayer.environment(str(directory / "libpasta_amd.so")),
            **made.options,
        )

    return run


def clean(played: Played) -> Played:
    assert (played.status, played.stderr) == (7, "")
    return played


def test_recorded_stream(sanitized: Sanitized) -> None:
    played = clean(sanitized(recorded(DATA / "amd" / "hip63_sdk100.events.txt")))
    assert len(played["kernel_complete"]) == 4


def test_threads(sanitized: Sanitized) -> None:
    """Each thread performs all operations; completions arrive on other threads, some too early."""
    s = Stream()
    s.load(2, KERNELS)
    with s.block("parallel"):
        for thread in range(2, 6):
            own = D1 + (thread << 32)
            with s.block("loop 200 1000"):
                s.correlation = s.dispatches = 100 * thread
                with s.call("hipLaunchKernel", thread=thread, stream=S + thread):
                    first, second = s.dispatch(1, thread=thread), s.dispatch(2, thread=thread)
                s.complete(second, by=thread)
                s.complete(first, by=2 + (thread - 1) % 4)
                s.hip("hipMalloc", thread=thread, size=64, ptr=own)
                s.hip("hipMemcpyAsync", thread=thread, dst=own, src=HOST, sizeBytes=64, kind=4,
                      stream=S)  # fmt: skip
                s.hip("hipStreamSynchronize", thread=thread, stream=S)
                s.hip("hipFree", thread=thread, ptr=own)
                s.lines += loading(thread)
    played = clean(sanitized(s))
    assert len(played["kernel_launch"]) == 1600
    assert len(played["memory_alloc"]) == len(played["memory_free"]) == 800
    assert len(played["module_load"]) == 801


def loading(thread: int) -> list[str]:
    """A thread loads and unloads its own code object."""
    own = Stream()
    begin = len(own.lines)
    own.load(10 + thread, {100 + thread: f"of_thread_{thread}.kd"})
    own.unload(10 + thread, {100 + thread: f"of_thread_{thread}.kd"})
    return [f"{line} @thread={thread}" for line in own.lines[begin:]]


def test_truncated_records(sanitized: Sanitized) -> None:
    for size in (0, 16, 32, 72):
        clean(sanitized(cut_short(everything(), size)))
