"""Intrinsics for tests only: a store and a comparison that make results of patches observable."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import Intrinsic

_I64 = ir.IntType(64)


def _store(builder: Any, arguments: list[Any]) -> None:
    pointer = builder.inttoptr(arguments[0], ir.PointerType(_I64, 1))
    builder.store(arguments[1], pointer, align=8)


def _less(builder: Any, arguments: list[Any]) -> Any:
    return builder.zext(builder.icmp_unsigned("<", *arguments), _I64)


#: To global memory.
store_u64 = Intrinsic("store_u64", 2, _store)
ult = Intrinsic("ult", 2, _less)
