"""Values in memory, and in the registers that the library saved."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import I64, Intrinsic, Values, narrow, tuple_of

#: The first 16 of $3 bytes at $2, aligned to 4: low word $0, high word $1.
_VALUE = """{
.reg .pred p;
.reg .b32 a, b;
mov.b64 $0, 0;
mov.b64 $1, 0;
setp.eq.u64 p, $2, 0;
@p bra done${:uid};
setp.lt.u32 p, $3, 4;
@p bra narrow${:uid};
mov.b32 b, 0;
ld.b32 a, [$2];
setp.ge.u32 p, $3, 8;
@p ld.b32 b, [$2+4];
mov.b64 $0, {a, b};
setp.lt.u32 p, $3, 16;
@p bra done${:uid};
ld.b32 a, [$2+8];
ld.b32 b, [$2+12];
mov.b64 $1, {a, b};
bra done${:uid};
narrow${:uid}:
setp.eq.u32 p, $3, 2;
@p ld.u16 a, [$2];
@!p ld.u8 a, [$2];
cvt.u64.u32 $0, a;
done${:uid}:
}"""


def _value(builder: Any, arguments: Values) -> Any:
    address, bytes = arguments
    kind = ir.FunctionType(ir.LiteralStructType([I64, I64]), [I64, ir.IntType(32)])
    assembly = ir.InlineAsm(kind, _VALUE, "=&l,=&l,l,r", side_effect=True)
    return tuple_of(builder, builder.call(assembly, [address, narrow(builder, bytes)]))


#: The value of `bytes` bytes at a generic address, zero-extended to two words; 0 at address 0.
value_at = Intrinsic("value_at", 2, _value)
