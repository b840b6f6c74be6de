"""Runs patches on the CPU: their IR is the same for every target, but for operations of a warp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from pasta.backends.nvidia.lowering import PatchFunction, lowered


@lru_cache(maxsize=4)
def _compiled(function: Callable[..., int], arity: int) -> tuple[Any, Any]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = lowered([PatchFunction("patch", function, ("u64",) * arity)])
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arity)
    return kind(engine.get_function_address("patch")), engine


def stored(function: Callable[..., int], words: int, *arguments: int) -> list[int]:
    """What a function stores in `words` words at its first argument."""
    memory = np.zeros(words, np.int64)
    call, _ = _compiled(function, 1 + len(arguments))
    call(memory.ctypes.data, *arguments)
    return [int(each) for each in memory]
