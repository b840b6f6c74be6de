"""A replacement for a ROCm installation: the library, a program and another vendor's tool."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.places import PROGRAMS

SOURCES = PROGRAMS / "amd"


@dataclass(frozen=True)
class Replayer:
    """Compiled programs in a directory."""

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

    def environment(self, tools: str, version: str = "1.0.0") -> dict[str, str]:
        """Variables read by rocprofiler-register and the library."""
        return {
            "ROCPROFILER_REGISTER_LIBRARY": str(self.library),
            "ROCP_TOOL_LIBRARIES": tools,
            "REPLAY_VERSION": version,
        }


def build(directory: Path, *flags: str) -> Replayer:
    """Compiles them with additional flags. Raises RuntimeError with the compiler's output."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-g1", *flags]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden"]
    replayer = Replayer(directory)
    for source, output, more in (
        ("replay_sdk.c", replayer.library, shared),
        ("print_tool.c", replayer.tool, shared),
        ("hip_app.c", replayer.program, []),
    ):
        command = [*compiler, *options, *more, str(SOURCES / source), "-o", str(output)]
        done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
    return replayer
