"""Patches as machine code: LLVM IR (lowering.py), LLVM's NVPTX back end, ptxas.

llvmlite, which Numba needs anyway, contains the NVPTX back end, so that ptxas is the only CUDA
package needed; every ptxas since 12.0 reads the PTX.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.lowering import PatchError, PatchFunction, lowered

_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
#: Architectures and PTX versions to compile for: ptxas translates PTX for later architectures.
#: LLVM aborts the process on an architecture that it does not know.
_BASES = ((90, "+ptx80"), (80, "+ptx70"), (75, "+ptx63"))


@dataclass(frozen=True)
class Patches:
    """Compiled patches; `usage` is the report of ptxas on each function."""

    cubin: bytes
    ptx: str
    usage: str


def compile_patches(
    functions: Sequence[PatchFunction], sm: int, before_ptxas: Callable[[], None] | None = None
) -> Patches:
    """Compile functions and their callees for an architecture, such as 90. `before_ptxas` is called
    when only that is left.

    Raises PatchError if the lowering or ptxas rejects them, MissingDependency without ptxas.
    """
    ptxas = find_ptxas()
    ptx = to_ptx(functions, sm)
    if before_ptxas:
        before_ptxas()
    with tempfile.TemporaryDirectory() as directory:
        source, output = Path(directory, "patches.ptx"), Path(directory, "patches.cubin")
        source.write_text(ptx)
        done = subprocess.run(
            [ptxas, "-v", f"-arch=sm_{sm}", "--compile-as-tools-patch", "-o", output, source],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise PatchError(f"{ptxas} rejects the patches: {lines[0] if lines else 'no message'}")
        return Patches(output.read_bytes(), ptx, done.stderr)


def to_ptx(functions: Sequence[PatchFunction], sm: int) -> str:
    """PTX of the functions. Raises PatchError."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    base = next(((base, version) for base, version in _BASES if base <= sm), None)
    if base is None:
        raise PatchError(f"probes need sm_{_BASES[-1][0]} or later, not sm_{sm}")
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu=f"sm_{base[0]}", features=base[1], opt=3
    )
    module = lowered(functions)
    module.triple, module.data_layout = "nvptx64-nvidia-cuda", _LAYOUT
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    # First for the host: for GPUs LLVM skips jump threading, without which patches need more
    # registers. It does not copy operations of the warp, which are convergent.
    host = llvm.Target.from_default_triple().create_target_machine(opt=2)
    for machine in (host, target):
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(parsed, builder)
    return str(target.emit_assembly(parsed))
