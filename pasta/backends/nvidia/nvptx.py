"""Numba functions as patches: LLVM IR of Numba's typing and lowering, LLVM's NVPTX back end, ptxas.

Numba's CPU target types and lowers a function to IR that depends on the host only by its calling
convention; a wrapper replaces that, and the IR is retargeted.  llvmlite contains the NVPTX back
end, so that ptxas is the only CUDA package needed; every ptxas since 12.0 reads the PTX.

Patches compute with integers: code that can raise, that uses floating-point numbers or that calls
functions of the host is rejected.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.backends.nvidia.libraries import find_ptxas
from pasta.compiled.ir import RAISED, checked_call, without_environments
from pasta.errors import PastaError

_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
#: Architectures and PTX versions to compile for: ptxas translates PTX for later architectures.
#: LLVM aborts the process on an architecture that it does not know.
_BASES = ((90, "+ptx80"), (80, "+ptx70"), (75, "+ptx63"))
_FLOATING = re.compile(r"= (?:[us]itofp|fpto[us]i|f(?:add|sub|mul|div|rem|neg|cmp)) ")


class PatchError(PastaError):
    """A patch does not compile."""


@dataclass(frozen=True)
class PatchFunction:
    """A function, its symbol, and the C types of its parameters: "u64", "u32", "i32"."""

    symbol: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Patches:
    """Compiled patches; `usage` is the report of ptxas on each function."""

    cubin: bytes
    ptx: str
    usage: str


def compile_patches(
    functions: Sequence[PatchFunction],
    sm: int,
    processes: int = 1,
    before_ptxas: Callable[[], None] | None = None,
) -> Patches:
    """Compile functions and their callees for an architecture, such as 90. `processes` run Numba,
    which takes most of the time; `before_ptxas` is called when a tenth of it is left.

    Raises PatchError if Numba, LLVM or ptxas rejects them, MissingDependency without ptxas.
    """
    ptxas = find_ptxas()
    ptx = to_ptx(functions, sm, processes)
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


def to_ptx(functions: Sequence[PatchFunction], sm: int, processes: int = 1) -> str:
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
    texts = _lower_all(functions, processes)
    whole = None
    for function, text in zip(functions, texts, strict=True):
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as error:  # undefined symbols: functions of Python
            why = " ".join(str(error).split())
            raise PatchError(f"{function.symbol} needs Python at run time: {why}") from None
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    assert whole is not None, "no functions"
    whole.verify()
    for each in whole.functions:
        if not each.is_declaration:  # so that no call moves across branches before it is inlined
            each.add_function_attribute("convergent")
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(whole, builder)
    _check(str(whole))
    return str(target.emit_assembly(whole))


def _lower_all(functions: Sequence[PatchFunction], processes: int) -> list[str]:
    """IR of each function, lowered in forked processes. Raises PatchError."""
    from pasta.compiled.lowering import prepare

    prepare()
    if processes == 1:
        return [_retargeted(each) for each in functions]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    global _shared
    _shared = functions
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        by_size = sorted(range(len(functions)), key=lambda i: -len(_code(functions[i])))
        texts = dict(zip(by_size, pool.map(_lower_shared, by_size), strict=True))
    return [texts[i] for i in range(len(functions))]


#: What forked processes lower: functions cannot be sent to them.
_shared: Sequence[PatchFunction] = ()


def _code(patch: PatchFunction) -> bytes:
    function: Any = patch.function
    return bytes(function.__code__.co_code)


def _lower_shared(index: int) -> str:
    return _retargeted(_shared[index])


def _check(text: str) -> None:
    """Raises PatchError for optimized IR that a patch must not contain."""
    defined = set(re.findall(r"^define [^@\n]*@([\w.$]+)\(", text, re.M))
    for body in re.findall(r"^define .*?^}", text, re.M | re.S):
        symbol = re.search(r"@([\w.$]+)\(", body)
        name = symbol[1] if symbol else "a patch"
        if f"@{RAISED}(" in body:
            raise PatchError(f"{name} can raise an exception")
        if _FLOATING.search(body):
            raise PatchError(
                f"{name} computes with floating-point numbers",
                remedy="use // for /, and integers below 2**63: Numba converts others to float",
            )
        for called in re.findall(r"call [^@\n]*@(?!llvm\.)([\w.$]+)\(", body):
            if called not in defined:
                raise PatchError(f"{name} calls {called}, which does not exist on GPUs")


def _retargeted(patch: PatchFunction) -> str:
    """IR of a function and its callees, all internal, and a wrapper with C's calling convention."""
    name, modules = _lowered(patch)
    import llvmlite.binding as llvm

    whole = llvm.parse_assembly(modules[0])
    for each in modules[1:]:
        whole.link_in(llvm.parse_assembly(each))
    text = str(whole)
    text = re.sub(
        r"^target triple = .*$", 'target triple = "nvptx64-nvidia-cuda"', text, flags=re.M
    )
    text = re.sub(r"^target datalayout = .*$", f'target datalayout = "{_LAYOUT}"', text, flags=re.M)
    text = without_environments(text)
    text = re.sub(r"^define (linkonce_odr |internal )?", "define internal ", text, flags=re.M)
    text = re.sub(r'"(target-cpu|target-features|tune-cpu)"="[^"]*"', "", text)
    types = {"u64": "i64", "u32": "i32", "i32": "i32"}
    parameters = ", ".join(f"{types[kind]} %p{i}" for i, kind in enumerate(patch.arguments))
    lines = ["%value = alloca i64", "%error = alloca ptr"]
    given = ["ptr %value", "ptr %error"]
    for i, kind in enumerate(patch.arguments):
        if kind == "u64":
            given.append(f"i64 %p{i}")
        else:
            lines.append(f"%w{i} = {'sext' if kind == 'i32' else 'zext'} i32 %p{i} to i64")
            given.append(f"i64 %w{i}")
    lines += [
        *checked_call(name, given),
        "%result = load i64, ptr %value",
        "%narrow = trunc i64 %result to i32",
        "ret i32 %narrow",
    ]
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"{text}\ndeclare void @{RAISED}()\n"
        f"define i32 @{patch.symbol}({parameters}) noinline {{\n{body}\n}}\n"
    )


def _lowered(patch: PatchFunction) -> tuple[str, list[str]]:
    """Symbol and IR modules of a function and its callees, as Numba lowers them."""
    from numba.core import types
    from numba.core.errors import NumbaError

    from pasta.compiled.lowering import lowered

    _compile_callees(patch.function, set())
    arguments = (types.int64,) * len(patch.arguments)
    try:
        made = lowered(patch.function, arguments, types.int64, inline=True, optimized=True)
    except NumbaError as error:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        raise PatchError(f"{patch.symbol} does not compile: {plain}") from None
    return made.symbol, made.modules


def device_function(function: Callable[..., Any]) -> Any:
    """A function that patches call: compiled with each of them, and inlined."""
    from numba import njit

    from pasta.compiled.lowering import CALLEE

    return njit(**CALLEE, forceinline=True)(function)


def _compile_callees(function: Callable[..., Any], seen: set[int]) -> None:
    """Replaces plain Python functions among the globals of `function` by device functions."""
    from types import FunctionType

    names: Any = function
    for name in names.__code__.co_names:
        called = names.__globals__.get(name)
        if isinstance(called, FunctionType) and id(called) not in seen:
            seen.add(id(called))
            _compile_callees(called, seen)
            names.__globals__[name] = device_function(called)
