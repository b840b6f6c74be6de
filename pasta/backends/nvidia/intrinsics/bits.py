"""Shifts and bits of 64-bit patterns."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Intrinsic,
    Values,
    call_llvm,
    narrow,
    truth,
    wide,
)


def _shift(builder: Any, arguments: Values) -> Any:
    return builder.lshr(*arguments)


def _count(builder: Any, arguments: Values) -> Any:
    return call_llvm(builder, "llvm.ctpop.i64", I64, arguments)


def _some(builder: Any, arguments: Values) -> Any:
    return wide(builder, truth(builder, narrow(builder, arguments[0])))


def _again(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(I32, [I32])
    given = [narrow(builder, arguments[0])]
    return wide(builder, builder.call(ir.InlineAsm(kind, "mov.b32 $0, $1;", "=r,r"), given))


#: The same value, below 1 << 32, opaque to the compiler: results are recomputed from it, which
#: costs less than registers that keep them.
again = Intrinsic("again", 1, _again)
#: Logical shift right by less than 64.
lshr = Intrinsic("lshr", 2, _shift)
#: Whether any of the low 32 bits is set: comparing 64 bits takes twice as many instructions.
some = Intrinsic("some", 1, _some)
#: Number of set bits.
popc = Intrinsic("popc", 1, _count)
