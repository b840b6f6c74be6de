"""Patches for the devices of this machine, compiled once, and the plan that libpasta reads.

The launcher calls `plan_for` before the program starts.  The user's cache has cubins by the text of
the patches, the versions of their compilers, and the device's architecture.  A missing cubin is
compiled by a process.  The launcher waits for all but ptxas, which runs while the program starts.
libpasta waits for the cubin (plan.c) as long as the process holds the lock beside it, and the
program runs without probes if that ends without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import paths, private
from pasta.backends.nvidia.areas import BIN_STRIPES, STRIPES
from pasta.backends.nvidia.layout import Layout
from pasta.backends.nvidia.patch import Instance, need_object
from pasta.backends.nvidia.patches import PatchText, symbols, write
from pasta.backends.nvidia.signatures import VERSIONS, ApiError
from pasta.errors import MissingDependency, PastaError, ToolError
from pasta.probes.declare import maps_of, probes_of
from pasta.progress import report_progress

if TYPE_CHECKING:
    from pasta.backends.nvidia.lowering import PatchFunction
    from pasta.members import Owner

#: Files of this folder that determine the machine code of patches, besides the patches' text.
_SOURCES = (
    "device_functions.py", "intrinsics/*.py", "lowering.py", "nvptx.py", "structs.py",
    "trace_records.py",
)  # fmt: skip

_TRIES, _BETWEEN_TRIES = 3, 0.01  # s


def instances_of(tools: Sequence[Owner]) -> list[Instance]:
    """Probes of tools, each with its tool's options and a prefix for its names."""
    return [
        Instance(probe, tool._options, f"t{number}_")
        for number, tool in enumerate(tools)
        for probe in probes_of(tool)
    ]


def layout_of(tools: Sequence[Owner], memory: int = Layout.memory) -> Layout:
    """Layout of the maps of tools on a device. Results are laid out alike with any `memory` (bytes
    of each context)."""
    maps = (
        (type(tool).name, spec)
        for tool in tools
        if probes_of(tool)
        for spec in maps_of(tool).values()
    )
    return Layout(maps, memory)


def plan_for(
    tools: Sequence[Owner],
    sanitizer: Path | None,
    sms: Sequence[int],
    memory: int,
    trace_memory: int = 64 << 20,
    *,
    waits: bool = True,
    on_missing: Callable[[], None] | None = None,
) -> tuple[str, ...]:
    """Lines of the plan for tools with probes, with patches compiled for the architectures `sms`;
    none without a device. `memory`, `trace_memory`: bytes of each context. `waits`: until cubins
    exist, otherwise until they will in a few tenths of a second. `on_missing`: called before
    waiting.

    Raises PastaError: tools that the GPU cannot run, an unknown library, no compiler.
    """
    if not sms:
        return ()
    if sanitizer is None:
        raise MissingDependency(
            "probes need NVIDIA's Sanitizer library",
            remedy="pip install 'nvidia-cuda-sanitizer-api>=13'",
        )
    version = library_version(sanitizer)
    instances, layout = instances_of(tools), layout_of(tools, memory)
    text, patches = write(layout, instances, version)
    cubins = compiled(text, patches, version, sms, waits, on_missing)
    return (
        f"api {version}",
        *symbols(patches),
        *(f"cubin {sm} {cubin}" for sm, cubin in cubins),
        f"plain_words {layout.plain_words}",
        f"slot_words {layout.slot_words}",
        f"slot_stripe_bytes {layout.slot_stripe_bytes}",
        f"slot_stripes {layout.slot_stripes}",
        f"object_words {layout.object_words}",
        f"stripes {STRIPES}",
        f"objects {int(layout.objects or need_object(instances, layout))}",
        f"planes {layout.planes}",
        f"plane_shift {layout.plane_shift}",
        f"lasting_planes {layout.lasting_planes}",
        f"bin_words {layout.bin_words}",
        f"bin_shift {layout.bin_shift}",
        f"bin_stripes {BIN_STRIPES}",
        f"pair_rows {layout.pairs.rows}",
        f"pair_words {layout.pairs.words}",
        f"pair_stripes {layout.pairs.stripes}",
        f"memory {memory}",
        f"trace {trace_memory if layout.traces else 0}",
        *(f"hash {each.rows} {each.words} {each.stripes}" for each in layout.hashes),
    )


# ---- versions --------------------------------------------------------------------------------


def library_version(library: Path) -> str:
    """Major.minor version of a Sanitizer library, from its wheel or CUDA toolkit.

    PASTA_SANITIZER_VERSION overrides both. Raises ApiError.
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
        f"the version of {library} is unknown",
        remedy=f"set PASTA_SANITIZER_VERSION={VERSIONS[-1]}",
    )


# ---- compiling -------------------------------------------------------------------------------


def _key(text: str, version: str, sm: int) -> str:
    from pasta.backends.nvidia.libraries import find_ptxas

    here = Path(__file__).parent
    sources = [path for name in _SOURCES for path in sorted(here.glob(name))]
    ptxas = find_ptxas()
    parts = [
        text, version, str(sm), str(ptxas), str(ptxas.stat().st_mtime_ns),
        paths.installed("llvmlite"), *(path.read_text() for path in sources),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def compiled(
    text: str,
    patches: Sequence[PatchText],
    version: str,
    sms: Sequence[int],
    waits: bool = True,
    on_missing: Callable[[], None] | None = None,
) -> list[tuple[int, Path]]:
    """Cubins of the patches for architectures. One process per missing cubin compiles it. With
    `waits` the call waits for them, otherwise only until ptxas is left; `on_missing` is
    called before it waits.

    Raises MissingDependency without ptxas, PastaError if a patch does not compile.
    """
    directory = paths.cache("probes")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = [(sm, directory / f"{_key(text, version, sm)}.cubin") for sm in sms]
        compilers = [_Compiler(text, patches, sm, cubin, waits) for sm, cubin in found]
    except OSError as error:
        raise PastaError(
            f"compiled probes cannot be stored in {directory} ({error.strerror})",
            remedy="set XDG_CACHE_HOME to a writable directory",
        ) from None
    if on_missing and any(each.process for each in compilers):
        on_missing()
    report_progress("compiling probes, once on a machine (or in advance: pasta prepare)")
    for each in compilers:
        each.finish() if waits else each.await_ptxas()
    return found


class _Compiler:
    """A process that compiles a cubin unless it exists or another process compiles it; the launcher
    never loads LLVM. It holds a lock while it runs."""

    def __init__(
        self, text: str, patches: Sequence[PatchText], sm: int, cubin: Path, waits: bool
    ) -> None:
        """Starts the process. `waits`: for one of another launcher. Raises OSError."""
        self.sm, self.cubin = sm, cubin
        self.process: subprocess.Popen[bytes] | None = None
        if cubin.exists():
            return
        with cubin.with_suffix(".lock").open("a") as lock:
            if _lock(lock.fileno(), waits) and not cubin.exists():
                request: dict[str, object] = {
                    "text": text,
                    "source": str(cubin.with_suffix(".py")),
                    "sm": sm,
                    "output": str(cubin),
                    "patches": arguments_of(patches),
                }
                self._start(request, lock.fileno())

    def _start(self, request: dict[str, object], lock: int) -> None:
        import tempfile

        from pasta.own_python import own_python

        read_end, write_end = os.pipe()
        self.before_ptxas = open(read_end, "rb")
        request["before_ptxas"] = write_end
        try:
            with tempfile.TemporaryFile() as file, self._log.open("wb") as log:
                file.write(json.dumps(request).encode())
                file.seek(0)
                self.process = subprocess.Popen(
                    own_python("pasta.backends.nvidia.plan"), stdin=file, stdout=subprocess.DEVNULL,
                    stderr=log, pass_fds=(lock, write_end),
                )  # fmt: skip
        finally:
            os.close(write_end)

    @property
    def _log(self) -> Path:
        return self.cubin.with_suffix(".log")

    def await_ptxas(self) -> None:
        """Wait until only ptxas is left: the process closes its end of a pipe then."""
        if self.process is not None:
            self.before_ptxas.read()
            self.before_ptxas.close()

    def finish(self) -> None:
        """Wait for the process. Raises ToolError if it failed."""
        self.await_ptxas()
        if self.process is None or self.process.wait() == 0:
            return
        lines = self._log.read_text(errors="replace").splitlines()
        why = next((line for line in lines if line.startswith("pasta: ")), "pasta: no message")
        raise ToolError(
            f"probes do not compile for sm_{self.sm}: {why.removeprefix('pasta: ')}",
            remedy=f"the compiler's messages are in {self._log}",
        )


def _lock(descriptor: int, waits: bool) -> bool:
    """Lock a file for this process and those that inherit it; False if another one has it."""
    for _ in range(_TRIES):  # libpasta tries it too, for a moment
        if private.lock(descriptor, wait=waits):
            return True
        time.sleep(_BETWEEN_TRIES)
    return False


def functions_of(
    text: str, patches: Mapping[str, Sequence[str]], source: str = "patches"
) -> list[PatchFunction]:
    """Functions in the text of patches; `patches`: types of their arguments by name."""
    import linecache

    from pasta.backends.nvidia.lowering import PatchFunction

    linecache.cache[source] = (len(text), None, text.splitlines(True), source)
    namespace: dict[str, Any] = {"__name__": "pasta_probes"}
    exec(compile(text, source, "exec"), namespace)
    return [
        PatchFunction(name, namespace[name], ("u64", "u64", *arguments))
        for name, arguments in patches.items()
    ]


def arguments_of(patches: Sequence[PatchText]) -> dict[str, list[str]]:
    """Types of the arguments of patches by name, without the first two, which all have."""
    return {each.name: [kind for _, kind in each.signature.arguments] for each in patches}


def main() -> int:
    """Compile the request on standard input (JSON); 1 if it does not compile."""
    from pasta.backends.nvidia.nvptx import compile_patches

    request: dict[str, Any] = json.load(sys.stdin)
    text, source = request["text"], Path(request["source"])
    source.write_text(text)
    functions = functions_of(text, request["patches"], str(source))
    before_ptxas = partial(os.close, request["before_ptxas"])
    try:
        made = compile_patches(functions, request["sm"], before_ptxas)
    except PastaError as error:
        sys.stderr.write(f"pasta: {error}\n")
        return 1
    output = Path(request["output"])
    temporary = output.with_name(f"{output.name}.{os.getpid()}")
    temporary.write_bytes(made.cubin)
    temporary.replace(output)
    output.with_suffix(".ptx").write_text(made.ptx)
    output.with_suffix(".log").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
