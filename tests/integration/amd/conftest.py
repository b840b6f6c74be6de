"""The replayer, and programs to which it plays streams under the preloaded library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from tests.support.amd_replayer import Replayer, build
from tests.support.amd_stream import Stream
from tests.support.places import PROGRAMS, ROOT
from tests.support.played import LIBRARY, Played, play

__all__ = ["SOURCE", "Replay", "Replayer"]

#: Path of another build of the source, such as one with a sanitizer.
SOURCE = Path(os.environ.get("PASTA_TEST_AMD_LIBRARY", LIBRARY.with_name("libpasta_amd.so")))
#: A sanitizer's runtime has to come first.
PRELOAD = ":".join(filter(None, [os.environ.get("PASTA_TEST_RUNTIME"), str(LIBRARY)]))


@pytest.fixture(scope="session")
def replayer(tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    return build(tmp_path_factory.mktemp("rocm"), "-O0")  # compiling takes longer than playing


Replay = Callable[..., Played]


@pytest.fixture
def replay(replayer: Replayer, tmp_path: Path) -> Replay:
    """Plays a stream to the source, loaded as the library loads it."""

    def run(
        stream: Stream | Path,
        version: str = "1.0.0",
        tools: str = str(SOURCE),
        preload: str = PRELOAD,
        **how: str,
    ) -> Played:
        path = stream if isinstance(stream, Path) else stream.write(tmp_path / "stream.txt")
        environment = {
            **replayer.environment(tools, version),
            "LD_PRELOAD": preload,
            "REPLAY_ERRNO": "" if tools != str(SOURCE) else "1",
            "REPLAY_SEED": str(crc32(tmp_path.name.encode())),  # numbers differ between tests
        }
        extra = {name: how.pop(name) for name in list(how) if name.isupper()}
        return play([replayer.program, path], tmp_path, **how, **{**environment, **extra})  # type: ignore[arg-type]

    return run


@pytest.fixture(params=["0.5.0", "0.6.0", "1.0.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workload of amd_work.py on the replayed driver (cuda) and on the reference accelerator
    (refacc)."""
    directory = tmp_path_factory.mktemp("work")
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]
    native, nvidia = LIBRARY.parent, PROGRAMS / "nvidia"
    for command in (
        ["-shared", "-fPIC", "-fvisibility=hidden", nvidia / "fake_sanitizer.c",
         "-o", directory / "libsanitizer-public.so"],
        [nvidia / "fake_cuda_program.c",
         "-o", directory / "cuda", "-ldl", "-lpthread"],
        [f"-I{ROOT / 'shim' / 'include'}", f"-I{ROOT / 'shim' / 'refacc'}",
         PROGRAMS / "refacc_work.c", "-o", directory / "refacc",
         f"-L{native}", "-lrefacc", f"-Wl,-rpath,{native}", "-ldl"],
    ):  # fmt: skip
        subprocess.run([*compiler, *map(str, command)], check=True)
    return directory
