"""Patches for the devices of this machine, compiled once, and the plan by which they are used.

The launcher calls `plan_for` before the program starts: no target ever waits for a compiler.  What
was compiled before is found in the user's cache by the text of the patches, the versions of all
that translates them, and the device's architecture.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import paths
from pasta.errors import MissingDependency, PastaError, ToolError
from pasta.probes.kinds import KIND
from pasta.probes.layout import BIN_STRIPES, Layout
from pasta.probes.patches import Instance, PatchText, looked_up, symbols, write
from pasta.probes.signatures import VERSIONS, ApiError

if TYPE_CHECKING:
    from pasta.probes.nvptx import PatchFunction
    from pasta.tool import Tool

_SOURCES = ("intrinsics.py", "nvptx.py", "patches.py", "trace.py")


@dataclass(frozen=True)
class Plan:
    """What the source needs: the numbers of the kinds that probes ask for, and its file's lines."""

    kinds: tuple[int, ...]
    lines: tuple[str, ...]

    def write(self, path: Path) -> None:
        path.write_text("".join(f"{line}\n" for line in self.lines))


def instances_of(tools: Sequence[Tool]) -> list[Instance]:
    """Probes of tools, each with its tool's options and a prefix for its names."""
    return [
        Instance(probe, tool._options, f"t{number}_")
        for number, tool in enumerate(tools)
        for probe in tool.probes()
    ]


def layout_of(tools: Sequence[Tool]) -> Layout:
    """Where the maps of tools are on a device: the same in the launcher and in a collector."""
    return Layout.of(
        (kind.name, spec)
        for tool in tools
        if (kind := type(tool)).probes()
        for spec in kind.maps(tool).values()
    )


def plan_for(
    tools: Sequence[Tool],
    sanitizer: Path | None,
    sms: Sequence[int],
    memory: int,
    trace_memory: int = 64 << 20,
) -> Plan:
    """The plan for tools with probes, its patches compiled. `sms` without one: no NVIDIA device.

    Raises PastaError: tools that the GPU cannot run, an unknown library, no compiler.
    """
    instances = instances_of(tools)
    kinds = tuple(sorted({KIND[kind].number for each in instances for kind in each.probe.kinds}))
    lines = ["kinds " + ",".join(map(str, kinds))]
    if not sms:
        return Plan(kinds, tuple(lines))
    if sanitizer is None:
        raise MissingDependency(
            "probes need NVIDIA's Sanitizer library", remedy="pip install 'pasta-profiler[nvidia]'"
        )
    version = library_version(sanitizer)
    layout = layout_of(tools)
    text, patches = write(layout, instances, version)
    lines += [
        f"api {version}",
        *symbols(patches),
        *(f"cubin {sm} {cubin}" for sm, cubin in compiled(text, patches, version, sms)),
        f"plain_words {layout.plain_words}",
        f"slot_words {layout.slot_words}",
        f"object_words {layout.object_words}",
        "stripes 128",
        f"objects {int(layout.objects or looked_up(instances, layout))}",
        f"planes {layout.planes}",
        f"plane_shift {layout.plane_shift}",
        f"bin_words {layout.bin_words}",
        f"bin_shift {layout.bin_shift}",
        f"bin_stripes {BIN_STRIPES}",
        f"memory {memory}",
        f"trace {trace_memory if layout.traces else 0}",
        *(f"hash {each.rows} {each.words} {each.stripes}" for each in layout.hashes),
    ]
    return Plan(kinds, tuple(lines))


# ---- versions --------------------------------------------------------------------------------


def library_version(library: Path) -> str:
    """Major.minor of a Sanitizer library: of its wheel, or of the toolkit around it.

    PASTA_SANITIZER_VERSION says it where neither does. Raises ApiError.
    """
    named = os.environ.get("PASTA_SANITIZER_VERSION")
    if named:
        return named
    for parent in library.resolve().parents:
        for info in sorted(parent.glob("nvidia_cuda_sanitizer_api*.dist-info")):
            found = re.search(r"-(\d+\.\d+)\.", info.name)
            if found:
                return found[1]
        document = parent / "version.json"
        if document.exists():
            parts = json.loads(document.read_text())
            text = parts.get("cuda_sanitizer_api", parts.get("cuda", {})).get("version", "")
            if re.match(r"\d+\.\d+", text):
                return ".".join(text.split(".")[:2])
    raise ApiError(
        f"the version of {library} is not known",
        remedy=f"say it: PASTA_SANITIZER_VERSION={VERSIONS[-1]}",
    )


def device_architectures() -> list[int]:
    """Compute capabilities of the NVIDIA devices, as 90 for 9.0; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.add(10 * major + minor)
        return sorted(found)
    except pynvml.NVMLError:
        return []
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


# ---- compiling -------------------------------------------------------------------------------


def _key(text: str, version: str, sm: int) -> str:
    from pasta.probes.nvptx import find_ptxas

    here = Path(__file__).parent
    ptxas = find_ptxas()
    parts = [
        text, version, str(sm), str(ptxas), str(ptxas.stat().st_mtime_ns),
        metadata.version("numba"), metadata.version("llvmlite"), sys.version.split()[0],
        *((here / name).read_text() for name in _SOURCES),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time compiles one thing: the others wait and then find it."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiled(
    text: str, patches: Sequence[PatchText], version: str, sms: Sequence[int]
) -> list[tuple[int, Path]]:
    """Cubins of the patches for architectures, from the cache or a compiler process.

    Raises MissingDependency without ptxas, PastaError for what does not compile.
    """
    directory = paths.cache("probes")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PastaError(
            f"compiled probes cannot be kept in {directory} ({error.strerror})",
            remedy="set XDG_CACHE_HOME to a directory that can be written",
        ) from None
    found = []
    for sm in sms:
        cubin = directory / f"{_key(text, version, sm)}.cubin"
        if not cubin.exists():
            with _locked(cubin.with_suffix(".lock")):
                if not cubin.exists():
                    _compile(text, patches, sm, cubin)
        found.append((sm, cubin))
    return found


def _compile(text: str, patches: Sequence[PatchText], sm: int, cubin: Path) -> None:
    """In a process of its own: the launcher never loads LLVM."""
    from pasta.runtime.injection import own_python

    request = {
        "text": text,
        "source": str(cubin.with_suffix(".py")),
        "sm": sm,
        "output": str(cubin),
        "patches": arguments_of(patches),
    }
    done = subprocess.run(
        own_python("pasta.probes.build"), input=json.dumps(request), capture_output=True,
        text=True, env={**os.environ, "NUMBA_COLOR_SCHEME": "no_color"},
    )  # fmt: skip
    if done.returncode:
        log = cubin.with_suffix(".log")
        log.write_text(done.stderr)
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("pasta: ")), "pasta: no message")
        raise ToolError(
            f"probes do not compile for sm_{sm}: {why.removeprefix('pasta: ')}",
            remedy=f"all the compiler said is in {log}",
        )


def functions_of(
    text: str, patches: Mapping[str, Sequence[str]], source: str = "patches"
) -> list[PatchFunction]:
    """Functions of the text of patches, which are given by name with the types of arguments."""
    import linecache

    from pasta.probes.nvptx import PatchFunction

    linecache.cache[source] = (len(text), None, text.splitlines(True), source)
    namespace: dict[str, Any] = {"__name__": "pasta_probes"}
    exec(compile(text, source, "exec"), namespace)
    return [
        PatchFunction(name, namespace[name], ("u64", "u64", *arguments))
        for name, arguments in patches.items()
    ]


def arguments_of(patches: Sequence[PatchText]) -> dict[str, list[str]]:
    """Types of the arguments of patches, after the first two that all have, by name."""
    return {each.name: [kind for _, kind in each.signature.arguments] for each in patches}


def main() -> int:
    """Compiles what standard input asks for."""
    from pasta.probes.nvptx import compile_patches

    request: dict[str, Any] = json.load(sys.stdin)
    text, source = request["text"], Path(request["source"])
    source.write_text(text)
    functions = functions_of(text, request["patches"], str(source))
    try:
        made = compile_patches(functions, sm=request["sm"])
    except PastaError as error:
        sys.stderr.write(f"pasta: {error}\n")
        return 1
    output = Path(request["output"])
    temporary = output.with_name(f"{output.name}.{os.getpid()}")
    temporary.write_bytes(made.cubin)
    temporary.replace(output)
    output.with_suffix(".ptx").write_text(made.ptx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
