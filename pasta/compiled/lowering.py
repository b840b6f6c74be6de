"""LLVM IR of functions, as Numba types and lowers them for the host: to be linked, and optimized
for what it is for.

Numba itself optimizes each callee, and again in each of its callers, which takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numba.core import compiler, config
from numba.core.codegen import AOTCodeLibrary, AOTCPUCodegen
from numba.core.registry import cpu_target

#: Options of dispatchers that lowered functions call.
CALLEE: dict[str, Any] = {
    "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False,
}  # fmt: skip


@dataclass(frozen=True)
class Lowered:
    """Symbol and result (a type of Numba) of a function, and IR modules of it and its callees."""

    symbol: str
    result: Any
    modules: list[str]


class _Library(AOTCodeLibrary):  # type: ignore[misc,unused-ignore]
    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass


class _Codegen(AOTCPUCodegen):  # type: ignore[misc,unused-ignore]
    _library_class = _Library


def lowered(function: Callable[..., Any], arguments: Sequence[Any]) -> Lowered:
    """IR of a function for arguments of Numba types.

    The function cannot allocate memory. It calls dispatchers with the options CALLEE. Raises
    NumbaError.
    """
    with _target() as (typing, target):
        numba_compiler: Any = compiler
        flags = numba_compiler.Flags()
        flags.error_model = "numpy"
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.nrt = flags.enable_pyobject = False
        made = numba_compiler.compile_extra(
            typing, target, function, tuple(arguments), None, flags, {}
        )
    libraries: dict[int, Any] = {}

    def collect(library: Any) -> None:
        if id(library) not in libraries and library.name != "nrt":
            libraries[id(library)] = library
            for each in library._linking_libraries:
                collect(each)

    collect(made.library)
    modules = [each.get_llvm_str() for each in libraries.values()]
    return Lowered(made.fndesc.llvm_func_name, made.signature.return_type, modules)


def prepare() -> None:
    """Load ahead what the first call of `lowered` would load."""
    with _target():
        pass


@contextmanager
def _target() -> Iterator[tuple[Any, Any]]:
    """Typing and target context that generate IR only, also of callees."""
    typing = cpu_target.typing_context
    target = cpu_target.target_context.with_aot_codegen("pasta")
    codegen: Any = _Codegen
    target._internal_codegen = codegen("pasta")
    # Dispatchers need a C function, by which Numba identifies callees; nothing calls it.
    target.get_executable = lambda library, description, environment: [].append
    typing.refresh()
    target.refresh()
    settings: Any = config
    cached: dict[str, Any] = vars(cpu_target)
    before = settings.LOOP_VECTORIZE, settings.SLP_VECTORIZE, cached["_toplevel_target_context"]
    settings.LOOP_VECTORIZE = settings.SLP_VECTORIZE = 0
    # Callees are compiled in this context too: it cannot generate machine code.
    cached["_toplevel_target_context"] = target
    try:
        yield typing, target
    finally:
        settings.LOOP_VECTORIZE, settings.SLP_VECTORIZE, cached["_toplevel_target_context"] = before
