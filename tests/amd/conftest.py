"""The replayer, and programs that it plays streams to under the preloaded library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.amd.stream import Stream
from tests.played import LIBRARY, Played, play

HERE = Path(__file__).resolve().parent
#: Another build of the source, say one with a sanitizer, may be named.
SOURCE = Path(os.environ.get("PASTA_TEST_AMD_LIBRARY", LIBRARY.with_name("libpasta_amd.so")))


@dataclass(frozen=True)
class Replayer:
    """What stands for a ROCm installation: the library, a program and somebody else's tool."""

    directory: Path

    @property
    def library(self) -> Path:
        return self.directory / "librocprofiler-sdk.so"

    @property
    def program(self) -> Path:
        return self.directory / "hip_app"

    @property
    def tool(self) -> Path:
        return self.directory / "print_tool.so"


def build(directory: Path) -> Replayer:
    compiler = [*os.environ.get("CC", "cc").split(), "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    shared = ["-O2", "-g1", "-shared", "-fPIC", "-fvisibility=hidden"]
    replayer = Replayer(directory)
    for source, output, options in (
        ("replay_sdk.c", replayer.library, shared),
        ("print_tool.c", replayer.tool, shared),
        ("hip_app.c", replayer.program, ["-O2", "-g1"]),
    ):
        command = [*compiler, *options, str(HERE / source), "-o", str(output), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return replayer


@pytest.fixture(scope="session")
def replayer(tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    return build(tmp_path_factory.mktemp("rocm"))


Replay = Callable[..., Played]


@pytest.fixture
def replay(replayer: Replayer, tmp_path: Path) -> Replay:
    """Plays a stream to the source, which is loaded as the library loads it."""

    def run(
        stream: Stream | Path,
        version: str = "1.0.0",
        tools: str = str(SOURCE),
        preload: str = str(LIBRARY),
        **how: str,
    ) -> Played:
        path = stream if isinstance(stream, Path) else stream.write(tmp_path / "stream.txt")
        environment = {
            "ROCPROFILER_REGISTER_LIBRARY": str(replayer.library),
            "ROCP_TOOL_LIBRARIES": tools,
            "REPLAY_VERSION": version,
            "LD_PRELOAD": preload,
        }
        extra = {name: how.pop(name) for name in list(how) if name.isupper()}
        return play([replayer.program, path], tmp_path, **how, **{**environment, **extra})  # type: ignore[arg-type]

    return run


@pytest.fixture(params=["0.5.0", "1.0.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)
