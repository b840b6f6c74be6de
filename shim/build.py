"""Builds the native parts: libpasta.so, libpasta_amd.so, libpasta_managed.so, librefacc.so with
its demos, three cffi modules, and the commands that start PASTA's Python.

`python -m shim.build [DIRECTORY]` builds into pasta/_native; hatch_build.py calls `build()`. With
PASTA_PLATFORM=manylinux_2_28_x86_64 (a tag of wheels) it builds for that glibc and processor, on
any machine.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SHIM = Path(__file__).resolve().parent
WARNINGS = ("-std=c11", "-Wall", "-Wextra")
#: Commands, which installers put on PATH, and the function of pasta_entry.py that each calls.
COMMANDS = {"pasta": "pasta", "pasta-preload": "pasta_preload"}
SCRIPTS = "scripts"
PUBLIC_HEADERS = (
    "include/pasta.h", "include/pasta_abi.h", "include/pasta_framework.h",
    "include/pasta_source.h", "include/pasta_trace.h",
    "refacc/refacc.h", "refacc/refacc_kernel.h", "refacc/refacc_tools.h",
)  # fmt: skip


#: Zig's C compiler has the headers and symbol versions of every glibc and processor; its version is
#: fixed so that the same source gives the same files.
ZIG = "ziglang==0.17.1"


class BuildError(RuntimeError):
    """The native parts cannot be built; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Platform:
    """The processor and the oldest glibc that a wheel is for."""

    tag: str  # manylinux_2_28_x86_64
    machine: str
    glibc: str

    @classmethod
    def given(cls) -> Platform | None:
        """The platform that PASTA_PLATFORM names; None: this machine. Raises BuildError."""
        tag = os.environ.get("PASTA_PLATFORM")
        if not tag:
            return None
        found = re.fullmatch(r"manylinux_(\d+)_(\d+)_(x86_64|aarch64)", tag)
        if not found:
            raise BuildError(
                f"PASTA_PLATFORM={tag} is not a platform such as manylinux_2_28_x86_64 or _aarch64"
            )
        return cls(tag, found[3], f"{found[1]}.{found[2]}")

    def compiler(self) -> tuple[str, ...]:
        """The command that compiles for the platform. Raises BuildError without Zig."""
        if not find_spec("ziglang"):
            raise BuildError(f"building for {self.tag} needs Zig: pip install {ZIG}")
        target = f"{self.machine}-linux-gnu.{self.glibc}"
        return (sys.executable, "-m", "ziglang", "cc", "-target", target)


@dataclass(frozen=True)
class Compiler:
    """A C compiler and the flags added to every call (sanitizers, -Werror, …)."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = ("-O2",)

    @classmethod
    def find(cls, flags: Sequence[str] | None = None) -> Compiler:
        """Zig's for the platform that PASTA_PLATFORM names, else the one CC names, else the first
        there is; flags default to PASTA_CFLAGS or -O2."""
        if flags is None:
            flags = shlex.split(os.environ.get("PASTA_CFLAGS", "-O2"))
        target = Platform.given()
        if target:  # no debug information: it has paths of this machine
            return cls(target.compiler(), (*flags, "-Wl,--strip-debug"))
        if os.environ.get("CC"):
            command = tuple(shlex.split(os.environ["CC"]))
            if shutil.which(command[0]):
                return cls(command, tuple(flags))
            raise BuildError(f"CC names {command[0]!r}, which was not found")
        for name in ("cc", "gcc", "clang"):
            if shutil.which(name):
                return cls((name,), tuple(flags))
        raise BuildError(
            "PASTA needs a C compiler, and none of cc, gcc, clang was found: "
            "install one (Debian/Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc)"
        )

    def joins_files(self) -> tuple[str, ...]:
        """The flag by which functions become parts of others in other files; () if the compiler or
        its linker has none, and with sanitizers, whose reports name functions."""
        flag = "-flto=auto"
        if any(each.startswith("-fsanitize") for each in self.flags):
            return ()
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "empty.c")
            source.write_text("int empty(void) { return 0; }\n")
            output = Path(directory, "empty.so")
            command = [*self.command, *self.flags, flag, "-fPIC", "-shared", str(source)]
            done = subprocess.run([*command, "-o", str(output)], capture_output=True)
        return () if done.returncode else (flag,)

    def run(self, arguments: Sequence[str | Path]) -> None:
        command = [*self.command, *self.flags, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.stderr:
            sys.stderr.write(done.stderr)
        if done.returncode:
            raise BuildError(f"the C compiler failed ({done.returncode}): {shlex.join(command)}")


def shared_library(
    compiler: Compiler, output: Path, sources: Sequence[Path], *options: str
) -> None:
    compiler.run(
        # frame pointers: call paths are walked from inside these libraries
        [*WARNINGS, "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-g1",
         "-fno-omit-frame-pointer",
         *sources, "-o", output, "-Wl,-z,nodelete", *options, "-ldl"]
    )  # fmt: skip


def libpasta(compiler: Compiler, directory: Path) -> Path:
    """The library that is preloaded; it links libc only."""
    sources = [
        SHIM / "load.c",
        *sorted((SHIM / "core").glob("*.c")),
        *sorted(set((SHIM / "backends").rglob("*.c")) - {*amd_sources(), *managed_sources()}),
        *sorted((SHIM / "frameworks").rglob("*.c")),
        *sorted((SHIM / "annotations").glob("*.c")),
        *sorted((SHIM / "communication").rglob("*.c")),
        SHIM / "python" / "start.c",
    ]
    output = directory / "libpasta.so"
    shared_library(
        compiler, output, sources, "-DPASTA_INSIDE", "-Wl,-soname,libpasta.so",
        *compiler.joins_files(),
    )  # fmt: skip
    return output


def amd_sources() -> list[Path]:
    """A library of its own: a program with rocprofiler-register aborts where a library that it
    has loaded exports rocprofiler_configure and the SDK cannot be loaded."""
    folder = SHIM / "backends" / "amd"
    return sorted(set(folder.glob("*.c")) - {folder / "backend.c"})


def libraries(compiler: Compiler, directory: Path) -> None:
    """libpasta and the libraries that link it."""
    libpasta(compiler, directory)
    libpasta_amd(compiler, directory)
    libpasta_managed(compiler, directory)


def libpasta_amd(compiler: Compiler, directory: Path) -> Path:
    """The tool that rocprofiler-sdk loads; it calls the core in libpasta.so beside it."""
    output = directory / "libpasta_amd.so"
    shared_library(
        compiler, output, amd_sources(), f"-L{directory}", "-lpasta",
        "-Wl,-soname,libpasta_amd.so", "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    return output


def managed_sources() -> list[Path]:
    """A library of its own: it interposes functions of vendors, for pasta-preload
    --apply-uvm-plan only."""
    return sorted((SHIM / "managed").glob("*.c")) + sorted((SHIM / "backends").glob("*/managed*.c"))


def libpasta_managed(compiler: Compiler, directory: Path) -> Path:
    """Carries out plans for managed memory; it calls the core in libpasta.so beside it."""
    output = directory / "libpasta_managed.so"
    shared_library(
        compiler, output, managed_sources(), f"-L{directory}", "-lpasta",
        "-Wl,-soname,libpasta_managed.so", "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    return output


def sampler_sources() -> list[Path]:
    """Run in the launcher only, when it samples the program's call stacks."""
    parts = (
        *("core/cfi", "core/objects", "core/python_objects", "core/hash"),
        *("python/reader", "python/writer"),
    )
    return [*sorted((SHIM / "sampler").glob("*.c")), *(SHIM / f"{part}.c" for part in parts)]


def librefacc(compiler: Compiler, directory: Path) -> Path:
    """The reference accelerator and its demonstration programs (bin/)."""
    output = directory / "librefacc.so"
    sources = sorted((SHIM / "refacc").glob("*.c"))
    shared_library(compiler, output, sources, "-lm", "-Wl,-soname,librefacc.so")
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    for source in sorted((SHIM / "refacc" / "demos").glob("*.c")):
        compiler.run(
            [*WARNINGS, "-g1", "-pthread", f"-I{SHIM / 'refacc'}", f"-I{SHIM / 'include'}", source,
             "-o", programs / source.stem, f"-L{directory}", "-lrefacc", "-lm", "-ldl",
             "-Wl,-rpath,$ORIGIN/.."]
        )  # fmt: skip
    return output


def commands(compiler: Compiler, directory: Path) -> None:
    """The commands of COMMANDS, in `directory`/scripts."""
    scripts = directory / SCRIPTS
    scripts.mkdir(exist_ok=True)
    for name, entry in COMMANDS.items():
        compiler.run(
            [*WARNINGS, f'-DPASTA_ENTRY="{entry}"', SHIM / "command.c", "-o", scripts / name]
        )


def extension_suffix() -> str:
    """End of the names of this Python's extension modules, on the platform built for."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    target = Platform.given()
    return suffix.replace(platform.machine(), target.machine) if target else suffix


def extension(compiler: Compiler, directory: Path, name: str, source: Path, *more: Path) -> Path:
    """A Python extension module; not linked to libpython, which the process provides."""
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        raise BuildError(
            f"Python.h was not found in {include}: install the headers of this Python "
            "(Debian/Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)"
        )
    output = directory / f"{name}{extension_suffix()}"
    # cffi's generated code is not ours to make warning-free
    compiler.run(
        ["-fPIC", "-shared", "-pthread", "-w", f"-I{include}", f"-I{SHIM / 'include'}",
         f"-I{SHIM / 'python'}", source, *more, "-o", output, "-ldl"]
    )  # fmt: skip
    return output


def build(directory: Path, compiler: Compiler | None = None) -> list[Path]:
    """Builds everything into `directory` and returns the files. Raises BuildError."""
    try:
        import cffi  # noqa: F401
    except ImportError as error:
        raise BuildError("building PASTA needs cffi: pip install cffi") from error
    from shim.python import embed, native

    compiler = compiler or Compiler.find()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as pool:
        parts = [
            pool.submit(part, compiler, directory) for part in (libraries, librefacc, commands)
        ]
        ring, sampler, embedding = (
            Path(temporary, f"{name}.c") for name in ("_ring", "_sampler", "_embed")
        )
        native.builder(list(compiler.command)).emit_c_code(str(ring))
        native.sampler(list(compiler.command)).emit_c_code(str(sampler))
        embed.builder().emit_c_code(str(embedding))
        shared = ("python/reader", "python/writer", "python/trace_reader", "core/hash")
        for source, more in (
            (ring, [SHIM / f"{name}.c" for name in shared]),
            (sampler, sampler_sources()),
            (embedding, []),
        ):
            parts.append(pool.submit(extension, compiler, directory, source.stem, source, *more))
        for part in parts:
            part.result()
    headers = directory / "include"
    headers.mkdir(exist_ok=True)
    for header in PUBLIC_HEADERS:
        shutil.copy(SHIM / header, headers)
    return [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".py"]


if __name__ == "__main__":
    sys.path.insert(0, str(SHIM.parent))
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIM.parent / "pasta" / "_native"
    try:
        build(target)
    except BuildError as error:
        sys.exit(f"pasta: {error}")
