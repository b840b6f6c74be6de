"""Boxes of tensor maps: the memory that a tensor load accesses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Intrinsic,
    Values,
    narrow,
    tuple_of,
)

# A CUtensorMap is opaque; these are its fields as cuTensorMapEncode* writes them (sm_90, measured):
#   0 address · 8 bit 0 im2col, 4-6 rank - 1, 7-10 element type
#   12 + 4 d low 32 bits of pitch d / 16, 28 bits 4 d their upper 4 bits, d from 0 for the second
#   axis · 32 + 4 a size of axis a, less 1
#   52 bits 3 a steps between elements, less 1 · 55 + a box, less 1 · 60 im2col: pixels, less 1

_BOX = """{
.reg .pred p, image;
.reg .b32 flags, shift, begin, end, size, count, left, high, c1, c2, c3, c4, steps, boxes;
.reg .b64 at, pitch, low;
mov.b32 c1, $7;
mov.b32 c2, $8;
mov.b32 c3, $9;
mov.b32 c4, $10;
mov.b64 at, $4;
ld.b64 $0, [at];
ld.b32 flags, [at+8];
and.b32 shift, flags, 1;
setp.ne.u32 image, shift, 0;
shr.u32 shift, flags, 6;
and.b32 shift, shift, 30;
shr.u32 shift, ELEMENTS, shift;
and.b32 shift, shift, 3;
ld.b32 steps, [at+52];
ld.b32 high, [at+28];
ld.b32 boxes, [at+56];
ld.b32 size, [at+32];
ld.u8 end, [at+55];
add.s32 end, end, $6;
min.s32 end, end, size;
max.s32 begin, $6, 0;
sub.s32 count, end, begin;
max.s32 count, count, -1;
and.b32 end, steps, 7;
add.u32 end, end, 1;
add.u32 count, count, end;
div.u32 count, count, end;
shl.b32 count, count, shift;
cvt.u64.u32 pitch, begin;
shl.b64 pitch, pitch, shift;
add.u64 $0, $0, pitch;
mov.b32 $1, count;
mov.b32 $2, 1;
mov.b64 $3, 0;
mov.b32 left, $5;
axis${:uid}:
sub.u32 left, left, 1;
setp.le.s32 p, left, 0;
@p bra done${:uid};
add.u64 at, at, 4;
shr.u32 steps, steps, 3;
ld.b32 size, [at+8];
cvt.u64.u32 low, size;
and.b32 size, high, 15;
shr.u32 high, high, 4;
cvt.u64.u32 pitch, size;
shl.b64 pitch, pitch, 32;
or.b64 pitch, pitch, low;
shl.b64 pitch, pitch, 4;
setp.eq.u64 p, $3, 0;
@p mov.b64 $3, pitch;
ld.b32 size, [at+32];
and.b32 end, boxes, 255;
shr.u32 boxes, boxes, 8;
@image mov.b32 end, 0;
add.s32 end, end, c1;
min.s32 end, end, size;
max.s32 begin, c1, 0;
sub.s32 count, end, begin;
max.s32 count, count, -1;
and.b32 end, steps, 7;
add.u32 end, end, 1;
add.u32 count, count, end;
div.u32 count, count, end;
mul.lo.u32 $1, $1, count;
mul.lo.u32 $2, $2, count;
cvt.u64.u32 low, begin;
mul.lo.u64 pitch, pitch, low;
add.u64 $0, $0, pitch;
mov.b32 c1, c2;
mov.b32 c2, c3;
mov.b32 c3, c4;
bra axis${:uid};
done${:uid}:
@image ld.u16 count, [$4+60];
@image add.u32 count, count, 1;
@image mul.lo.u32 $1, $1, count;
@image mul.lo.u32 $2, $2, count;
}"""
#: log2 of the bytes of an element, two bits for each element type.
_ELEMENTS = 0x1E9FA4


def _box(builder: Any, arguments: Values) -> Any:
    kind = ir.LiteralStructType([I64, I32, I32, I64])
    tensor, *rest = arguments
    given = [tensor, *(narrow(builder, each) for each in rest)]
    assembly = ir.InlineAsm(
        ir.FunctionType(kind, [each.type for each in given]),
        _BOX.replace("ELEMENTS", str(_ELEMENTS)), "=&l,=&r,=&r,=&l,l,r,r,r,r,r,r", side_effect=True,
    )  # fmt: skip
    return tuple_of(builder, builder.call(assembly, given))


#: Box of a tensor map, rank, coordinates: first byte, bytes, rows, bytes between rows, of what
#: lies inside the tensor.  Rows of more than two axes are counted, and placed as if evenly spaced;
#: pixels of im2col are counted without regard to the image's borders.
tensor_box = Intrinsic("tensor_box", 7, _box)
