"""Bins of objects: the bin of an offset, and the address of its words."""

from __future__ import annotations

from typing import Any

from pasta.backends.nvidia.areas import BIN_STRIPES
from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Intrinsic,
    Values,
    emit_ptx,
    fill_in,
    narrow,
    wide,
    with_offsets,
)

#: Number of the bin of offset $3 in object $2, among those of all objects; all ones: none.
_BIN = """{
.reg .pred p;
.reg .b32 shift;
.reg .b64 at;
mov.b32 $0, -1;
setp.eq.u32 p, $2, 0;
@p bra done${:uid};
RANGE_OF at, $1, $2;
ld.global.b32 $0, [at+R_BINS-RANGE];
setp.eq.u32 p, $0, -1;
@p bra done${:uid};
ld.global.u8 shift, [at+R_BIN_SHIFT-RANGE];
shr.u64 at, $3, shift;
cvt.u32.u64 shift, at;
add.u32 $0, $0, shift;
done${:uid}:
}"""
#: Address of the words of a bin in a stripe.
_BIN_AT = """{
.reg .b32 stripe;
.reg .b64 bytes, wide;
ld.global.b64 $0, [$1+L_BINS];
mad.wide.u32 $0, $2, BYTES, $0;
mov.u32 stripe, %clock;
and.b32 stripe, stripe, STRIPES;
ld.global.b64 bytes, [$1+L_BIN_STRIPE];
cvt.u64.u32 wide, stripe;
mad.lo.u64 $0, bytes, wide, $0;
}"""


def _bin(builder: Any, arguments: Values) -> Any:
    user, object, offset = arguments
    given = [user, narrow(builder, object), offset]
    return wide(builder, emit_ptx(builder, with_offsets(_BIN), "=&r,l,r,l", given, I32))


def bin_address(words: int) -> Any:
    """An intrinsic that returns the address of a bin's words: descriptor, number → address."""
    text = fill_in(_BIN_AT, {"BYTES": str(8 * words), "STRIPES": str(BIN_STRIPES - 1)})

    def generate(builder: Any, arguments: Values) -> Any:
        given = [arguments[0], narrow(builder, arguments[1])]
        return emit_ptx(builder, text, "=&l,l,r", given, I64)

    return Intrinsic("bin_at", 2, generate)


#: Number of an object's bin: descriptor, object, offset; 0xFFFFFFFF: none.
bin_of = Intrinsic("bin_of", 3, _bin)
