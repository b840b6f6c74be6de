"""Arithmetic that wraps around, shifts and bits of 64-bit patterns."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Values,
    call_llvm,
    define,
    narrow,
    wide,
)


def _shift(builder: Any, arguments: Values) -> Any:
    return builder.lshr(*arguments)


def _count(builder: Any, arguments: Values) -> Any:
    return call_llvm(builder, "llvm.ctpop.i64", I64, arguments)


def _some(builder: Any, arguments: Values) -> Any:
    value = narrow(builder, arguments[0])
    return wide(builder, builder.icmp_unsigned("!=", value, ir.Constant(I32, 0)))


def _again(builder: Any, arguments: Values) -> Any:
    kind = ir.FunctionType(I32, [I32])
    given = [narrow(builder, arguments[0])]
    return wide(builder, builder.call(ir.InlineAsm(kind, "mov.b32 $0, $1;", "=r,r"), given))


#: The same value, below 1 << 32, opaque to the compiler: results are recomputed from it, which
#: costs less than registers that keep them.
again = define("again", 1, _again)
#: Arithmetic that wraps around: Numba declares that + - * do not.
plus = define("plus", 2, lambda builder, arguments: builder.add(*arguments))
minus = define("minus", 2, lambda builder, arguments: builder.sub(*arguments))
times = define("times", 2, lambda builder, arguments: builder.mul(*arguments))
#: Logical shift right by less than 64.
lshr = define("lshr", 2, _shift)
#: Whether any of the low 32 bits is set: comparing 64 bits takes twice as many instructions.
some = define("some", 1, _some)
#: Number of set bits.
popc = define("popc", 1, _count)
