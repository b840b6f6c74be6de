"""Planes with a bit for each granule of the objects: marks of touched granules."""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import (
    I32,
    I64,
    Intrinsic,
    Values,
    emit_ptx,
    narrow,
    tuple_of,
    with_offsets,
)

#: Bytes of granules of $2: of those set in $3, the word of granule $4.  The last granule ends with
#: the object.
_BYTES = """{
.reg .pred p;
.reg .b32 shift, padding, last, bit;
.reg .b64 size;
RANGE_OF size, $1, $2;
ld.global.u8 shift, [size+R_PLANE_SHIFT-RANGE];
ld.global.b64 size, [size+R_SIZE-RANGE];
mov.b32 padding, 1;
shl.b32 padding, padding, shift;
popc.b32 bit, $3;
mul.wide.u32 $0, bit, padding;
sub.u32 padding, padding, 1;
cvt.u32.u64 bit, size;
neg.s32 bit, bit;
and.b32 padding, padding, bit;
sub.u64 size, size, 1;
shr.u64 size, size, shift;
cvt.u32.u64 last, size;
and.b32 bit, last, 31;
shr.u32 bit, $3, bit;
and.b32 bit, bit, 1;
setp.ne.u32 p, bit, 0;
xor.b32 last, last, $4;
setp.lt.and.u32 p, last, 32, p;
@!p mov.b32 padding, 0;
cvt.u64.u32 size, padding;
sub.u64 $0, $0, size;
}"""
#: Marks the granule of each lane's access in plane PLANE; $2: descriptor, $3: object, $4: offset.
#: Lanes with unmarked granules are grouped by word, and one lane of a group marks for all: $0: the
#: bits that it marked first; $1: the granule, all ones: the object has none.  Bits are ORed in
#: rounds, one a distinct bit, unless they are contiguous from the first lane's to the last lane's.
#: A concurrent launch may claim a word at any moment: words are swapped whole.
#: Values are looked up again, because there are no registers to keep them.
_TOUCH = """{
.reg .pred p;
.reg .b32 all, group, first, last, low, old;
mov.b32 $0, 0;
mov.b32 $1, -1;
{
.reg .b64 at, range;
.reg .b32 word;
setp.eq.u32 p, $3, 0;
@p bra done${:uid};
RANGE_OF range, $2, $3;
ld.global.b32 word, [range+R_PLANE-RANGE];
ld.global.b64 at, [$2+L_PLANES+PLANE];
setp.eq.u32 p, word, -1;
setp.eq.or.u64 p, at, 0, p;
@p bra done${:uid};
ld.global.u8 first, [range+R_PLANE_SHIFT-RANGE];
shr.u64 range, $4, first;
cvt.u32.u64 $1, range;
shr.u32 first, $1, 5;
add.u32 word, word, first;
mad.wide.u32 at, word, 8, at;
ld.relaxed.gpu.global.v2.b32 {low, old}, [at];
EPOCH first;
setp.eq.u32 p, old, first;
and.b32 first, $1, 31;
shr.u32 first, low, first;
and.b32 first, first, 1;
setp.ne.and.u32 p, first, 0, p;
@p bra done${:uid};
activemask.b32 all;
match.any.sync.b32 group, word, all;
}
brev.b32 first, group;
bfind.shiftamt.u32 first, first;
shfl.sync.idx.b32 first, $1, first, 31, group;
bfind.u32 last, group;
shfl.sync.idx.b32 last, $1, last, 31, group;
match.any.sync.b32 low, $1, group;
brev.b32 low, low;
bfind.shiftamt.u32 low, low;
mov.u32 all, %laneid;
setp.eq.u32 p, low, all;
vote.sync.ballot.b32 $0, p, group;
popc.b32 $0, $0;
setp.lt.u32 p, $1, first;
setp.gt.or.u32 p, $1, last, p;
vote.sync.any.pred p, p, group;
sub.u32 low, last, first;
add.u32 low, low, 1;
setp.ne.or.u32 p, low, $0, p;
@p bra rounds${:uid};
mov.b32 low, -1;
sub.u32 $0, 32, $0;
shr.u32 $0, low, $0;
and.b32 first, first, 31;
shl.b32 $0, $0, first;
bra marked${:uid};
rounds${:uid}:
mov.b32 $0, 0;
mov.b32 last, group;
round${:uid}:
brev.b32 first, last;
bfind.shiftamt.u32 first, first;
shfl.sync.idx.b32 first, $1, first, 31, group;
setp.ne.u32 p, $1, first;
and.b32 first, first, 31;
mov.b32 low, 1;
shl.b32 low, low, first;
or.b32 $0, $0, low;
vote.sync.ballot.b32 low, p, group;
and.b32 last, last, low;
setp.ne.u32 p, last, 0;
@p bra round${:uid};
marked${:uid}:
brev.b32 first, group;
bfind.shiftamt.u32 first, first;
mov.u32 all, %laneid;
setp.eq.u32 p, all, first;
@!p mov.b32 $0, 0;
@!p bra done${:uid};
{
.reg .b64 at, was, new;
.reg .pred other;
RANGE_OF at, $2, $3;
ld.global.b32 low, [at+R_PLANE-RANGE];
shr.u32 first, $1, 5;
add.u32 low, low, first;
ld.global.b64 at, [$2+L_PLANES+PLANE];
mad.wide.u32 at, low, 8, at;
again${:uid}:
ld.relaxed.gpu.global.v2.b32 {low, old}, [at];
mov.b64 was, {low, old};
EPOCH first;
setp.ne.u32 other, old, first;
or.b32 low, low, $0;
@other mov.b32 low, $0;
mov.b64 new, {low, first};
atom.relaxed.gpu.global.cas.b64 new, [at], was, new;
setp.ne.u64 p, new, was;
@p bra again${:uid};
mov.b64 {low, old}, was;
not.b32 low, low;
@!other and.b32 $0, $0, low;
}
done${:uid}:
}"""


def _marking(plane: int, by_launch: bool) -> str:
    epoch = r"ld.global.b32 \1, [$2+L_EPOCH];" if by_launch else r"mov.b32 \1, 1;"
    return with_offsets(re.sub(r"EPOCH (\w+);", epoch, _TOUCH)).replace("PLANE", str(8 * plane))


def touch_plane(plane: int, by_launch: bool) -> Any:
    """An intrinsic that marks granules in a plane: descriptor, object, offset → bits, granule.

    Which granules of the word this lane marked first on behalf of all lanes that touch it, and its
    own granule; 0xFFFFFFFF: the object has none.
    """
    text = _marking(plane, by_launch)

    def generate(builder: Any, arguments: Values) -> Any:
        kind = ir.FunctionType(ir.LiteralStructType([I32, I32]), [I64, I32, I64])
        assembly = ir.InlineAsm(kind, text, "=&r,=&r,l,r,l,~{memory}", side_effect=True)
        user, object, offset = arguments
        given = [user, narrow(builder, object), offset]
        return tuple_of(builder, builder.call(assembly, given, attrs=("convergent",)))

    return Intrinsic(f"touch_plane_{plane}", 3, generate)


def _bytes(builder: Any, arguments: Values) -> Any:
    given = [arguments[0], *(narrow(builder, each) for each in arguments[1:])]
    return emit_ptx(builder, with_offsets(_BYTES), "=&l,l,r,r,r", given, I64)


#: Bytes of granules of an object: descriptor, object, bits of a word, a granule of that word.
bytes_of = Intrinsic("bytes_of", 4, _bytes)
